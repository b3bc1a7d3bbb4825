"""Runs a plan: read tiles, compute, combine or write. Decides nothing.

1. The coordinator walks the tiles of a pass in order and hands tile tasks to the workers, a few at a time.
2. A tile task reads its boxes, calls the compiled tile function, and writes what is complete.
3. Partial results come back to the coordinator, which combines them in tile order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import jax
import numpy as np

from jask_zarr._disk import SpillFile
from jask_zarr._plan.plan import Destination, Pass, Plan, Result
from jask_zarr._plan.tiles import Stream
from jask_zarr._run import combine
from jask_zarr._run.buffers import LARGE, BufferPool, give_back_freed_memory
from jask_zarr._run.compiled import compiled
from jask_zarr._run.executors import in_order
from jask_zarr._run.tile import Tile, tiles_of

Progress = Callable[[int, int, int, int], None]
"""Called with pass number, passes, tiles done, tiles, after every tile."""


def run(
    plan: Plan, inputs: Sequence[Any], writers: Sequence[Any], progress: Progress | None = None
) -> list[np.ndarray | None]:
    """Run all passes; give the outputs that are in memory, None for those written to disk.

    ``inputs`` are `BlockedArray`s where the plan says on disk, else arrays. ``writers`` are None for outputs in memory,
    else objects with ``write_box(start, values)``.
    """
    values: dict[int, Any] = dict(zip(plan.program.inputs, inputs, strict=True))
    outputs = [
        np.empty(plan.program.shape(v), plan.program.dtype(v)) if spec.chunks is None else None
        for v, spec in zip(plan.program.outputs, plan.outputs, strict=True)
    ]
    for number, p in enumerate(plan.passes):
        _PassRun(plan, p, number, values, outputs, writers, progress).run()
        for value in p.frees:
            values.pop(value, None)
        if p.tiling.resident > LARGE:
            give_back_freed_memory()
    return outputs


class _SharedRead:
    """A box that one or several tiles need; read once, by the first that asks.

    Its buffer goes back to the pool when the last of them is done.
    """

    def __init__(self, source: Any, start: tuple[int, ...], shape: tuple[int, ...], pool: BufferPool) -> None:
        self.source, self.start, self.shape, self.pool = source, start, shape, pool
        self.buffer: np.ndarray | None = None
        self.array: Any = None
        self.lock = Lock()

    def get(self) -> Any:
        with self.lock:
            if self.array is None:
                self.buffer = self.pool.take(self.shape, self.source.dtype)
                read_padded(self.source, self.start, self.buffer)
                with jax.enable_x64(True):
                    self.array = jax.device_put(self.buffer)
            return self.array

    def keep_if_part_of(self, result: Any) -> None:
        """A result that is the buffer itself keeps it."""
        if self.buffer is not None and np.may_share_memory(self.buffer, result):
            self.buffer = None

    def __del__(self) -> None:
        self.array = None
        if self.buffer is not None:
            self.pool.give(self.buffer)


def read_padded(source: Any, start: tuple[int, ...], buffer: np.ndarray) -> None:
    """Read a box that may lie partly outside the array; zeros there."""
    stop = tuple(s + n for s, n in zip(start, buffer.shape, strict=True))
    inside_start = tuple(min(max(s, 0), n) for s, n in zip(start, source.shape, strict=True))
    inside_stop = tuple(min(max(s, 0), n) for s, n in zip(stop, source.shape, strict=True))
    if (inside_start, inside_stop) == (start, stop):
        if buffer.size:
            source.read_box(start, stop, out=buffer)
        return
    buffer[...] = np.zeros((), source.dtype)
    if all(a < b for a, b in zip(inside_start, inside_stop, strict=True)):
        cut = tuple(slice(a - s, b - s) for a, b, s in zip(inside_start, inside_stop, start, strict=True))
        buffer[cut] = source.read_box(inside_start, inside_stop)


@dataclass
class _PassRun:
    plan: Plan
    pass_: Pass
    number: int
    values: dict[int, Any]
    outputs: list[np.ndarray | None]
    writers: Sequence[Any]
    progress: Progress | None
    pool: BufferPool = field(default_factory=BufferPool)
    totals: dict[tuple[int, tuple[int, ...]], tuple[int, Any]] = field(default_factory=dict)
    """Partial results so far, by result and kept tile: how many tiles they hold, and their combination."""

    def run(self) -> None:
        p = self.pass_
        self._open_destinations()
        self.origins = {v: int(np.asarray(self._value(v))) for v in p.origins}
        self.compiled = compiled(p)
        self.memory = self.compiled.hold([self._value(v) for v, _ in self.compiled.held])
        self.origin_values = [np.asarray(self._value(v)) for v in p.origins]
        often = self._tiles_between_trims()
        for done, (tile, partials) in enumerate(in_order(self._task, self._jobs(), self._workers()), 1):
            self._combine(tile, partials)
            if done % often == 0:
                give_back_freed_memory()
            if self.progress is not None:
                self.progress(self.number, len(self.plan.passes), done, p.tiles)

    def _tiles_between_trims(self) -> int:
        """Freed memory is given back each time half a budget, and at least `LARGE` bytes, have passed through."""
        tile = 1 + self.pass_.tiling.traffic // self.pass_.tiles
        return max(1, max(self.plan.budget // 2, LARGE) // tile)

    def _workers(self) -> int:
        """As many tiles at a time as fit the budget with what XLA really needs for one."""
        if self.pass_.tiles == 1:
            return 1
        tile_bytes = max(1, self.compiled.tile_bytes(next(tiles_of(self.pass_))))
        spare = self.plan.budget - self.pass_.tiling.held
        return max(1, min(self.pass_.tiling.workers, spare // tile_bytes))

    def _value(self, value: int) -> Any:
        constants = self.plan.program.constants
        return constants[value] if value in constants else self.values[value]

    def _open_destinations(self) -> None:
        """Make room for what this pass keeps for later ones."""
        for result in self.pass_.results:
            for d in result.destinations:
                if d.kind == "kept":
                    kept = self.plan.kept[d.number]
                    self.values[d.number] = (
                        SpillFile.create(result.shape, result.dtype, kept.chunks)
                        if d.on_disk
                        else np.empty(result.shape, result.dtype)
                    )

    # -- the walk --

    def _jobs(self) -> Iterator[tuple[Tile, list[_SharedRead]]]:
        previous: dict[int, _SharedRead] = {}
        for tile in tiles_of(self.pass_):
            yield tile, [self._read(n, stream, tile, previous) for n, stream in enumerate(self.pass_.streams)]

    def _read(self, number: int, stream: Stream, tile: Tile, previous: dict[int, _SharedRead]) -> _SharedRead:
        start, shape = tile.start(stream.index, self.origins), tile.extent(stream.shape, stream.index)
        last = previous.get(number)
        if last is None or (last.start, last.shape) != (start, shape):
            previous[number] = last = _SharedRead(self.values[stream.version[0]], start, shape, self.pool)
        return last

    # -- one tile, in a worker --

    def _task(self, tile: Tile, reads: list[_SharedRead]) -> tuple[Tile, list[Any]]:
        results = self.compiled.call(tile, self.origin_values, [read.get() for read in reads], self.memory)
        partials = [self._deliver(r, tile, array) for r, array in zip(self.pass_.results, results, strict=True)]
        for partial in jax.tree.leaves(partials):
            for read in reads:
                read.keep_if_part_of(partial)
        return tile, partials

    def _deliver(self, result: Result, tile: Tile, array: Any) -> Any:
        """Write what is complete; give back what is partial; drop what an earlier tile has given already."""
        if any(tile.starts[label] for label in result.active):
            return None
        if result.combine is None:
            self._write(result, tile, np.asarray(array))
            return None
        partial = tuple(np.asarray(a) for a in array) if isinstance(array, tuple) else np.asarray(array)
        if self._contributions(result) == 1:
            self._write(result, tile, combine.finish(result.combine, partial, result.dtype))
            return None
        return partial

    def _write(self, result: Result, tile: Tile, values: np.ndarray) -> None:
        start, shape = tile.start(result.index, self.origins), tile.extent(result.shape, result.index)
        for destination in result.destinations:
            if destination.on_disk:
                self._writer(destination).write_box(start, values)
            else:
                self._array(destination)[tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))] = values

    def _writer(self, destination: Destination) -> Any:
        return self.writers[destination.number] if destination.kind == "output" else self.values[destination.number]

    def _array(self, destination: Destination) -> Any:
        return self.outputs[destination.number] if destination.kind == "output" else self.values[destination.number]

    # -- partial results, in the coordinator --

    def _contributions(self, result: Result) -> int:
        kept = {axis.label for axis in result.index if axis is not None} | result.active
        return math.prod(loop.count for loop in self.pass_.loops if loop.label not in kept)

    def _combine(self, tile: Tile, partials: list[Any]) -> None:
        for number, (result, partial) in enumerate(zip(self.pass_.results, partials, strict=True)):
            if partial is None or result.combine is None:
                continue
            key = number, tile.start(result.index, self.origins)
            count, total = self.totals.pop(key, (0, None))
            total = (
                combine.first(result.combine, partial) if count == 0 else combine.merge(result.combine, total, partial)
            )
            if count + 1 == self._contributions(result):
                self._write(result, tile, combine.finish(result.combine, total, result.dtype))
            else:
                self.totals[key] = (count + 1, total)
