"""How is an array cut into chunks, also where they are of unequal size?

Plans know chunks of one size. For an array of unequal ones (zarr calls its grid rectilinear)
that is the largest along each dimension: any box can be read, at the cost of decoding a chunk
again for each box that it touches. It is not written, since no such box consists of whole chunks.
"""

from collections.abc import Iterator
from itertools import accumulate, product
from typing import Any

import zarr

from .._chunks import Box, Index, block_box, blocks_touching


def is_regular(array: zarr.Array) -> bool:
    """Whether all chunks are of one size, but for those at the end."""
    metadata: Any = array.metadata
    return metadata.zarr_format == 2 or "Rectilinear" not in type(metadata.chunk_grid).__name__


def chunk_shape(array: zarr.Array) -> Index:
    """What is decoded at once, at most."""
    if is_regular(array):
        return tuple(max(c, 1) for c in array.chunks)
    return tuple(max(sizes, default=1) for sizes in _sizes(array))


def file_shape(array: zarr.Array) -> Index:
    """What is stored in one file, at most: a shard, else a chunk."""
    shards = array.shards if is_regular(array) else None
    return tuple(shards or chunk_shape(array))


def chunks_touching(array: zarr.Array, start: Index, stop: Index) -> Iterator[tuple[Index, Box]]:
    """The chunks that a box touches: the index of each, and its box."""
    if is_regular(array):
        chunks = chunk_shape(array)
        for index in blocks_touching(start, stop, chunks):
            yield index, block_box(index, array.shape, chunks)
        return
    for pieces in product(*map(_pieces, _sizes(array), start, stop)):
        index, begins, ends = zip(*pieces, strict=True)
        yield index, (begins, ends)


def _sizes(array: Any) -> tuple[tuple[int, ...], ...]:
    return array.read_chunk_sizes


def _pieces(sizes: tuple[int, ...], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Index, begin and end of each piece of a dimension that ``start:stop`` touches."""
    ends = list(accumulate(sizes))
    every = zip(range(len(sizes)), [0, *ends], ends, strict=False)
    return [(index, a, b) for index, a, b in every if a < stop and b > start]
