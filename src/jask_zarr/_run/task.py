"""The task of one tile, wherever it runs: read boxes, compute, write what is complete, give back what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jask_zarr._chunks import Index, block_box, blocks_touching, box_slices
from jask_zarr._run import combine
from jask_zarr._run.compiled import CompiledPass
from jask_zarr._run.executors import in_leaves
from jask_zarr._run.reads import Box, Read

Start = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One tile, as data."""

    shape: tuple[int, ...]
    """Its lengths along the loops of the pass, which tell the function."""
    starts: np.ndarray
    """Where it begins along these loops, and where the walk along each began."""
    boxes: tuple[Box, ...]
    """What it reads of each stream."""
    targets: tuple[Start | None, ...]
    """Where each result belongs; None if an earlier tile has given it already."""
    parts: tuple[int, ...]
    """Tiles that each result is combined of: with one it is final, else partial, and goes back."""


@dataclass(frozen=True)
class InMemory:
    """An array in memory, written like one on disk."""

    array: np.ndarray

    def write_box(self, start: Start, values: np.ndarray) -> None:
        box = tuple(slice(a, a + n) for a, n in zip(start, values.shape, strict=True))
        self.array[box] = values


@dataclass(frozen=True)
class InParts:
    """An array on disk, written chunk by chunk in threads that have nothing else to do."""

    array: Any
    chunks: Index

    def write_box(self, start: Start, values: np.ndarray) -> None:
        stop = tuple(a + n for a, n in zip(start, values.shape, strict=True))
        in_leaves(self._write, ((start, stop, values, index) for index in blocks_touching(start, stop, self.chunks)))

    def _write(self, start: Start, stop: Start, values: np.ndarray, index: Index) -> None:
        first, last = block_box(index, stop, self.chunks)
        self.array.write_box(first, values[box_slices(first, last, start)])


@dataclass(frozen=True)
class Delivery:
    """What becomes of one of the results of a pass."""

    combine: str | None
    dtype: Any
    on_disk: tuple[Any, ...]
    in_memory: tuple[InMemory, ...]
    goes_back: bool = False
    """Whether a final result goes back too, to where the memory is."""

    def deliver(self, start: Start, array: Any, parts: int) -> Any:
        """Write a final result; give back what is to go back."""
        value = jax.tree.map(np.asarray, array)
        if parts > 1:
            return value
        if self.combine is not None:
            value = combine.finish(self.combine, value, self.dtype)
        self.write(start, value)
        return value if self.goes_back else None

    def write(self, start: Start, values: np.ndarray) -> None:
        """Write a final result to all its places."""
        for place in self.on_disk:
            place.write_box(start, values)
        self.write_in_memory(start, values)

    def write_in_memory(self, start: Start, values: np.ndarray) -> None:
        """Write a final result that came from another process, where it was written to disk."""
        for place in self.in_memory:
            place.write_box(start, values)


@dataclass(frozen=True)
class Shared:
    """What the tasks of a pass have in common."""

    form: CompiledPass
    sources: tuple[Any, ...]
    """The arrays that are read."""
    origins: tuple[np.ndarray, ...]
    memory: tuple[Any, ...]
    """The in-memory arguments."""
    deliveries: tuple[Delivery, ...]


def perform(
    task: Task,
    function: Callable[..., Sequence[Any]],
    origins: Sequence[Any],
    reads: Sequence[Read],
    memory: Sequence[Any],
    device: Any,
    deliveries: Sequence[Delivery],
) -> list[Any]:
    """Run a task; what goes back of each result, or None."""
    with jax.enable_x64(True):
        results = function(task.starts, list(origins), [read.on(device) for read in reads], list(memory))
    found = [
        None if start is None else delivery.deliver(start, array, parts)
        for start, parts, delivery, array in zip(task.targets, task.parts, deliveries, results, strict=True)
    ]
    for value in jax.tree.leaves(found):
        for read in reads:
            read.keep_if_part_of(value)
    return found
