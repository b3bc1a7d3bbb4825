"""Values into a new stored array, in two stages where one would decode the same chunks again and again.

1. Values are written box by box. A box holds whole chunks of what is written; where the grids of what is read and of
   what is written cross, such as rows and columns, it cuts chunks of what is read, and those are decoded once for each
   box they are in.
2. If that moves more bytes than to go through scratch, the values do: first into chunks that lie within boxes of
   both grids, then from there. Each chunk is read once and written once in each stage.
"""

import math
from collections.abc import Iterator
from typing import Any

from jask_zarr import _chunks, _config, _disk, errors
from jask_zarr._tracing import force
from jask_zarr._tracing.expr import Stored, Value, stored
from jask_zarr._tracing.sources import Source

BOXES = 8
"""Boxes of a stage in a memory budget: several are under way, each is read, written and encoded."""


def write(value: Value, array: Any) -> None:
    """Compute a value into a stored array that nobody reads yet."""
    target = tuple(array.write_chunks)
    again = _decoded_again(value, target)
    if again > 2 * value.nbytes:
        for scratch in _between(value, target):
            onwards = stored(Source(scratch, is_scratch=True))
            if _decoded_again(value, scratch.chunks) + _decoded_again(onwards, target) + 2 * value.nbytes < again:
                force.write(value, scratch)
                value = onwards
                break
    force.write(value, array)


def _decoded_again(value: Value, chunks: tuple[int, ...]) -> float:
    """Bytes that are decoded more than once to write a value on a grid; infinite if it does not fit."""
    try:
        passes = force.plan_for([value], [chunks]).passes
    except errors.MemoryBudgetError:
        return math.inf
    return sum(p.tiling.traffic - sum(stream.nbytes for stream in p.streams) for p in passes)


def _between(value: Value, target: tuple[int, ...]) -> Iterator[Any]:
    """Arrays in scratch through which a value may go: with large chunks, and with smaller ones if those do not fit."""
    chunks = value.leaf.source.array.chunks if isinstance(value.leaf, Stored) else _natural_chunks(value)
    for boxes in (BOXES, 2 * BOXES, 4 * BOXES):
        volume = _config.memory_budget() // boxes // value.dtype.itemsize
        grid = _chunks.grid_between(value.shape, tuple(chunks), target, volume)
        yield _disk.SpillFile.create(value.shape, value.dtype, grid)


def _natural_chunks(value: Value) -> tuple[int, ...]:
    return force.plan_for([value], [force.CHOOSE]).output_chunks[0]
