"""Values into a new stored array, in stages where one would decode the same chunks again and again.

1. Values are written box by box. A box holds whole chunks of what is written; where the grids of what is read and of
   what is written cross, such as rows and columns, it cuts chunks of what is read, and those are decoded once for each
   box they are in.
2. If that moves more bytes than to go through scratch, the values do: first into chunks that lie within boxes of
   both grids, then from there. Each chunk is read once and written once in each stage.
3. If such chunks would be tiny, as those of a very large array are, larger ones are a first step towards them, and one
   more stage is cheaper than millions of files.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from jask_zarr import _chunks, _config, _disk, errors
from jask_zarr._tracing import force
from jask_zarr._tracing.expr import Stored, Value, stored
from jask_zarr._tracing.sources import Source, created

BOXES = 8
"""Boxes of a stage in a memory budget: several are under way, each is read, written and encoded."""
TINY, MANY = 1 << 15, 1 << 15
"""Bytes of a chunk below which, and number of chunks above which, one more stage is cheaper than the files."""


def write_new(path: Any, fill: Callable[[Any], None], **options: Any) -> Source:
    """Create a stored array and fill it. A local one that it overwrites stays until all of the new one is there."""
    place = _disk.place_of(path)
    directory = place.directory
    if not options.get("overwrite") or directory is None or not directory.exists():
        fill(array := _disk.BlockedArray.create(path, **options))
        return created(array)
    _disk.check_creatable(place)
    with force.lock:
        with _disk.held(directory), _disk.replacing(directory) as beside:
            fill(_disk.BlockedArray.create(beside, **{**options, "overwrite": False}))
        return created(_disk.BlockedArray.open(directory))


def write(value: Value, array: Any) -> None:
    """Compute a value into a stored array that nobody reads yet."""
    target = tuple(array.write_chunks)
    while (scratch := _on_the_way(value, target)) is not None:
        force.write(value, scratch)
        value = _stored(scratch)
    force.write(value, array)


def _on_the_way(value: Value, target: tuple[int, ...]) -> Any:
    """An array in scratch that the value had better go to first; None if there is none."""
    again = _decoded_again(value, target)
    if again <= 2 * value.nbytes:
        return None
    for grid, is_last in _between(value, target):
        scratch = _disk.SpillFile.create(value.shape, value.dtype, grid)
        onwards = _decoded_again(_stored(scratch), target) if is_last else 0
        if _decoded_again(value, grid) + onwards + 2 * value.nbytes < again:
            return scratch
    return None


def _stored(scratch: Any) -> Value:
    return stored(Source(scratch, is_scratch=True))


def _decoded_again(value: Value, chunks: tuple[int, ...]) -> float:
    """Bytes that are decoded more than once to write a value on a grid; infinite if it does not fit."""
    try:
        passes = force.plan_for([value], [chunks]).passes
    except errors.MemoryBudgetError:
        return math.inf
    return sum(p.tiling.traffic - sum(stream.nbytes for stream in p.streams) for p in passes)


def _between(value: Value, target: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Chunks through which a value may go, and whether from there it goes to the target.

    Large ones first, for large boxes, then smaller ones if the planner finds that those do not fit.
    """
    chunks = tuple(value.leaf.source.array.chunks) if isinstance(value.leaf, Stored) else _natural_chunks(value)
    for boxes in (BOXES, 2 * BOXES, 4 * BOXES):
        volume = _config.memory_budget() // boxes // value.dtype.itemsize
        grid = _chunks.grid_between(value.shape, chunks, target, volume)
        halfway = _chunks.grid_halfway(value.shape, chunks, grid)
        if _is_costly(grid, value) and halfway != grid:
            yield halfway, False
        yield grid, True


def _is_costly(grid: tuple[int, ...], value: Value) -> bool:
    tiny = math.prod(grid) * value.dtype.itemsize < TINY
    return tiny and math.prod(_chunks.grid_shape(value.shape, grid)) > MANY


def _natural_chunks(value: Value) -> tuple[int, ...]:
    return force.plan_for([value], [force.CHOOSE]).output_chunks[0]
