"""Which chunks does a box touch, and where are the cuts of a grid?

A *box* is a pair ``start, stop`` of equally long tuples of integers. A *grid* cuts an array of
some shape into chunks of one size; the chunks at the far end may reach beyond the array, and
are clipped to it here. All functions are pure and none enumerates a grid unless asked to.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import isqrt, prod
from typing import Any, SupportsIndex

from .errors import ShapeMismatchError

Index = tuple[int, ...]
Box = tuple[Index, Index]


def ceil_div(a: int, b: int) -> int:
    """Division rounded up.

    >>> ceil_div(7, 3)
    3
    """
    return -(-a // b)


def normalize_chunks(chunks: int | Sequence[int], shape: Index) -> Index:
    """The shape of a chunk as a user gives it: one number stands for all dimensions, -1 for a whole one.

    >>> normalize_chunks((2, -1), (6, 5))
    (2, 5)
    """
    lengths = (chunks,) * len(shape) if isinstance(chunks, SupportsIndex) else tuple(chunks)
    if len(lengths) != len(shape):
        raise ShapeMismatchError(f"chunks {lengths} must have one length for each dimension of {shape}.")
    return tuple(_length(operator.index(c), n, lengths) for c, n in zip(lengths, shape, strict=True))


def _length(chunk: int, size: int, chunks: Sequence[Any]) -> int:
    if chunk == -1 or (chunk == 0 and size == 0):
        return max(size, 1)
    if chunk < 1:
        raise ShapeMismatchError(f"chunks {tuple(chunks)}: {chunk} is no length; -1 stands for the whole dimension.")
    return chunk


def grid_shape(shape: Index, chunks: Index) -> Index:
    """Number of chunks along each dimension; 0 along an empty one.

    >>> grid_shape((7, 5, 0), (3, 2, 4))
    (3, 3, 0)
    """
    return tuple(ceil_div(n, c) for n, c in zip(shape, chunks, strict=True))


def block_box(index: Index, shape: Index, chunks: Index) -> Box:
    """The box of one chunk, clipped to the array.

    >>> block_box((2, 0), (7, 5), (3, 2))
    ((6, 0), (7, 2))
    """
    start = tuple(i * c for i, c in zip(index, chunks, strict=True))
    return start, tuple(min(a + c, n) for a, c, n in zip(start, chunks, shape, strict=True))


def chunk_range(start: int, stop: int, chunk: int) -> range:
    """Indices of the chunks that ``start:stop`` touches along one dimension.

    >>> chunk_range(2, 7, 3)
    range(0, 3)
    """
    return range(start // chunk, ceil_div(stop, chunk)) if stop > start else range(0)


def chunk_ranges(start: Index, stop: Index, chunks: Index) -> tuple[range, ...]:
    """`chunk_range` of every dimension."""
    return tuple(map(chunk_range, start, stop, chunks))


def blocks_touching(start: Index, stop: Index, chunks: Index) -> Iterator[Index]:
    """Indices of the chunks that a box touches, in C order.

    >>> list(blocks_touching((2, 0), (4, 2), (3, 2)))
    [(0, 0), (1, 0)]
    """
    return product(*chunk_ranges(start, stop, chunks))


def count_touching(start: Index, stop: Index, chunks: Index) -> int:
    """How many chunks a box touches.

    >>> count_touching((2, 0), (7, 5), (3, 2))
    9
    """
    return prod(map(len, chunk_ranges(start, stop, chunks)))


def covering_box(start: Index, stop: Index, shape: Index, chunks: Index) -> Box:
    """The box, grown to whole chunks and clipped to the array.

    >>> covering_box((2, 1), (4, 2), (7, 5), (3, 2))
    ((0, 0), (6, 2))
    """
    grown = tuple(min(ceil_div(b, c) * c, n) for b, c, n in zip(stop, chunks, shape, strict=True))
    return tuple(a // c * c for a, c in zip(start, chunks, strict=True)), grown


def is_whole(start: Index, stop: Index, shape: Index, chunks: Index) -> bool:
    """Whether the box consists of whole chunks, those at the far end clipped to the array.

    >>> is_whole((3, 0), (7, 4), (7, 5), (3, 2))
    True
    >>> is_whole((3, 0), (7, 3), (7, 5), (3, 2))
    False
    """
    return covering_box(start, stop, shape, chunks) == (start, stop)


def is_inside(start: Index, stop: Index, shape: Index) -> bool:
    """Whether the box has the array's rank and lies inside it.

    >>> is_inside((0, 0), (8, 5), (7, 5))
    False
    """
    return len(start) == len(stop) == len(shape) and all(
        0 <= a <= b <= n for a, b, n in zip(start, stop, shape, strict=True)
    )


def box_shape(start: Index, stop: Index) -> Index:
    """Lengths of a box.

    >>> box_shape((3, 0), (7, 4))
    (4, 4)
    """
    return tuple(b - a for a, b in zip(start, stop, strict=True))


def intersection(a: Box, b: Box) -> Box:
    """The box common to both; some length is zero or less when there is none.

    >>> intersection(((0, 0), (3, 2)), ((2, 1), (4, 4)))
    ((2, 1), (3, 2))
    """
    return tuple(map(max, a[0], b[0])), tuple(map(min, a[1], b[1]))


def box_slices(start: Index, stop: Index, origin: Index | None = None) -> tuple[slice, ...]:
    """The box as slices, counted from ``origin``.

    >>> box_slices((2, 1), (3, 2), origin=(2, 0))
    (slice(0, 1, None), slice(1, 2, None))
    """
    origin = origin or (0,) * len(start)
    return tuple(slice(a - o, b - o) for a, b, o in zip(start, stop, origin, strict=True))


def cuts(size: int, chunk: int) -> tuple[int, ...]:
    """Where a grid cuts a dimension, both ends included.

    >>> cuts(7, 3)
    (0, 3, 6, 7)
    """
    return (*range(0, size, chunk), size) if size else (0,)


def union_cuts(all_cuts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Cuts at which at least one of several grids cuts the same dimension.

    >>> union_cuts([(0, 4, 8, 10), (0, 3, 6, 9, 10)])
    (0, 3, 4, 6, 8, 9, 10)
    """
    return tuple(sorted(set().union(*all_cuts)))


def grid_between(shape: Index, source: Index, target: Index, volume: int) -> Index:
    """Chunks through which an array goes from one grid to another, in boxes of about ``volume`` elements.

    Boxes of whole chunks of both ``source`` and the result, and such of the result and ``target``, have that volume,
    or that of one chunk if it is larger. Where the grids do not nest, chunks still cross boxes.

    >>> grid_between((4096, 4096), (1, 4096), (4096, 1), 65536)
    (16, 16)
    >>> grid_between((100, 4096), (100, 1), (1, 512), 65536)
    (100, 512)
    """
    read, written = (tuple(map(min, chunks, shape)) for chunks in (source, target))
    grid = list(map(min, read, written))
    for outer, inner in ((read, written), (written, read)):
        box = prod(outer)  # of the stage that has `outer` whole; it grows towards `inner`
        for dim in reversed(range(len(shape))):
            if outer[dim] < inner[dim]:
                grid[dim] = _grown(outer[dim], inner[dim], volume // (box // outer[dim]), inner[dim] == shape[dim])
                box = box // outer[dim] * grid[dim]
    return tuple(grid)


def grid_halfway(shape: Index, source: Index, grid: Index) -> Index:
    """Chunks like ``grid``, but where those of ``source`` are larger halfway to them, in the geometric mean.

    >>> grid_halfway((4096, 4096), (1, 4096), (16, 16))
    (16, 256)
    """
    dims = zip(grid, map(min, source, shape), shape, strict=True)
    return tuple(_grown(g, s, isqrt(g * s), s == n) if g < s else g for g, s, n in dims)


def _grown(unit: int, whole: int, most: int, spans: bool) -> int:
    """The largest multiple of ``unit``, not above ``most``, of which ``whole`` is one, or which divides a whole dim."""
    multiples = range(max(min(most, whole) // unit, 1) * unit, 0, -unit)
    return next(n for n in multiples if spans or whole % n == 0 or n == unit)


def default_chunks(shape: Index, itemsize: int, target: int = 4 * 2**20) -> Index:
    """Chunks of about ``target`` bytes and nearly equal sides, for an array that names none.

    Short dimensions are kept whole; the long ones share what is left.

    >>> default_chunks((8192, 8192), 4)
    (1024, 1024)
    >>> default_chunks((10**9, 3), 4)
    (349525, 3)
    """
    left, chunks = max(target // itemsize, 1), {}
    by_length = sorted(range(len(shape)), key=lambda d: shape[d])
    for done, dim in enumerate(by_length):
        side = max(int(left ** (1 / (len(shape) - done)) + 1e-9), 1)
        chunks[dim] = max(min(side, shape[dim]), 1)
        left = max(left // chunks[dim], 1)
    return tuple(chunks[dim] for dim in range(len(shape)))
