"""Runs a plan: read tiles, compute, combine or write. Decides nothing.

1. The coordinator walks the tiles of a pass in order and hands their tasks to workers, a few at a time: threads, or the
   executor that the user has set.
2. A task reads its boxes, calls the compiled tile function, and writes what is complete.
3. Partial results come back to the coordinator, which combines them in tile order: the bits of a result do not depend
   on how many workers, devices or processes there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jask_zarr import _config
from jask_zarr._disk import SpillFile
from jask_zarr._plan.plan import Destination, Pass, Plan, Result
from jask_zarr._plan.program import itemsize
from jask_zarr._run import combine, executors, shipping
from jask_zarr._run.buffers import LARGE, give_back_freed_memory, keep_freed_memory, resident_memory
from jask_zarr._run.compiled import compiled
from jask_zarr._run.shipping import Shipment
from jask_zarr._run.task import Delivery, InMemory, InParts, Shared, Task
from jask_zarr._run.threads import Threads
from jask_zarr._run.tile import Tile, tiles_of

WORTH_A_THREAD = 1 << 19
"""Bytes that take far longer to encode than a thread to be called."""

Progress = Callable[[int, int, int, int], None]
"""Called with pass number, passes, tiles done, tiles, after every tile."""


def run(
    plan: Plan, inputs: Sequence[Any], writers: Sequence[Any], progress: Progress | None = None
) -> list[np.ndarray | None]:
    """Run all passes; give the outputs that are in memory, None for those written to disk.

    ``inputs`` are `BlockedArray`s where the plan says on disk, else arrays. ``writers`` are None for outputs in memory,
    else objects with ``write_box(start, values)``.
    """
    executors.check_process()
    values: dict[int, Any] = dict(zip(plan.program.inputs, inputs, strict=True))
    if executors.elsewhere() is not None:
        shipping.check(plan, values, writers)
    outputs = [
        np.empty(plan.program.shape(v), plan.program.dtype(v)) if spec.chunks is None else None
        for v, spec in zip(plan.program.outputs, plan.outputs, strict=True)
    ]
    for number, p in enumerate(plan.passes):
        is_large = p.tiling.resident > LARGE
        if is_large:
            keep_freed_memory(plan.budget // 8)
        _PassRun(plan, p, number, values, outputs, writers, progress).run()
        for value in p.frees:
            values.pop(value, None)
        if is_large:
            give_back_freed_memory()
    return outputs


@dataclass
class _PassRun:
    plan: Plan
    pass_: Pass
    number: int
    values: dict[int, Any]
    outputs: list[np.ndarray | None]
    writers: Sequence[Any]
    progress: Progress | None
    totals: dict[tuple[int, tuple[int, ...]], tuple[int, Any]] = field(default_factory=dict)
    """Partial results so far, by result and kept tile: how many tiles they hold, and their combination."""

    def run(self) -> None:
        self._open_destinations()
        self.shared = self._what_is_shared()
        origins = zip(self.pass_.origins, self.shared.origins, strict=True)
        self.origins = {value: int(origin) for value, origin in origins}
        often = self._tiles_between_trims()
        much = resident_memory() + self.plan.budget // 2 if self.pass_.tiles >= often else 0
        total = 0 if self.progress is None else sum(1 for _ in self._tiles())
        with closing(self._workers().answers(map(self._task, self._tiles()))) as answers:
            for done, (task, found) in enumerate(answers, 1):
                self._receive(task, found)
                if done % often == 0:
                    give_back_freed_memory(beyond=much)
                if self.progress is not None:
                    self.progress(self.number, len(self.plan.passes), done, total)

    def _tiles(self) -> Iterator[Tile]:
        return tiles_of(self.pass_, self.origins, self._value)

    def _tiles_between_trims(self) -> int:
        """Whether to give freed memory back is asked when half a budget, and at least `LARGE` bytes, have passed."""
        tile = 1 + self.pass_.tiling.traffic // self.pass_.tiles
        return max(1, max(self.plan.budget // 2, LARGE) // tile)

    # -- what the tasks share --

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

    def _what_is_shared(self) -> Shared:
        p, form = self.pass_, compiled(self.pass_)
        return Shared(
            form,
            tuple(self.values[stream.version[0]] for stream in p.streams),
            tuple(np.asarray(self._value(v)) for v in p.origins),
            tuple(self._value(v) for v, _ in form.held),
            tuple(map(self._delivery, p.results)),
        )

    def _value(self, value: int) -> Any:
        constants = self.plan.program.constants
        return constants[value] if value in constants else self.values[value]

    def _delivery(self, result: Result) -> Delivery:
        on_disk = tuple(self._writing(d, result) for d in result.destinations if d.on_disk)
        in_memory = tuple(InMemory(self._array(d)) for d in result.destinations if not d.on_disk)
        return Delivery(result.combine, result.dtype, on_disk, in_memory)

    def _writing(self, destination: Destination, result: Result) -> Any:
        """What a result is written by: a pass of one tile has one thread, others take a chunk each if there is room."""
        writer, number, p = self._writer(destination), destination.number, self.pass_
        chunks = self.plan.output_chunks[number] if destination.kind == "output" else self.plan.kept[number].chunks
        assert chunks is not None, "it is on disk"
        encoded = 2 * math.prod(map(min, chunks, result.shape)) * itemsize(result.dtype)
        fits = p.tiling.resident + (_config.threads() - 1) * encoded <= self.plan.budget
        return InParts(writer, chunks) if p.tiles == 1 and encoded >= WORTH_A_THREAD and fits else writer

    def _writer(self, destination: Destination) -> Any:
        return self.writers[destination.number] if destination.kind == "output" else self.values[destination.number]

    def _array(self, destination: Destination) -> Any:
        return self.outputs[destination.number] if destination.kind == "output" else self.values[destination.number]

    def _parts(self, tile: Tile, result: Result) -> int:
        """Tiles that the result at hand is combined of."""
        if result.combine is None:
            return 1
        kept = {axis.label for axis in result.index if axis is not None} | result.active
        return math.prod(tile.walked(loop) for loop in self.pass_.loops if loop.label not in kept)

    # -- the walk --

    def _workers(self) -> Threads | Shipment:
        devices, away = executors.devices(), executors.elsewhere()
        if not shipping.is_worth_sending(self.pass_):
            return Threads(self.shared, devices[:1], 1)
        spare, copy = self.plan.budget - self.pass_.tiling.held, self.shared.form.held_bytes
        tile_bytes = self._tile_bytes(devices[0])
        if away is not None:
            return Shipment(away, self.shared, self._at_a_time(spare - copy, tile_bytes + copy))
        if devices[0].platform == "cpu" and copy:  # each has a copy, in the memory that the budget bounds
            devices = devices[: max(1, 1 + (spare - tile_bytes) // copy)]
            spare -= copy * (len(devices) - 1)
        at_a_time = self._at_a_time(spare, tile_bytes)
        planned = self.pass_.tiling.resident - self.pass_.tiling.held
        ahead = at_a_time == 1 and spare - max(tile_bytes, planned) >= self.pass_.tiling.ahead
        return Threads(self.shared, devices, at_a_time, reads_ahead=ahead)

    def _tile_bytes(self, device: Any) -> int:
        return max(1, self.shared.form.tile_bytes(device))

    def _at_a_time(self, spare: int, tile_bytes: int) -> int:
        """As many tiles as are wanted and fit the budget, with what XLA really needs for one."""
        tiling = self.pass_.tiling
        planned = (tiling.resident - tiling.held) // tiling.workers
        fit = max(tiling.workers, spare // max(tile_bytes, planned))
        return max(1, min(executors.wanted_workers(), fit, spare // tile_bytes))

    def _task(self, tile: Tile) -> Task:
        p = self.pass_
        labels = [loop.label for loop in p.loops]
        starts = np.array([[tile.starts[label] for label in labels], [*map(tile.begin, labels)]], np.int64)
        boxes = tuple(
            (tile.places(s.index, self.origins, self._value), tile.extent(s.shape, s.index)) for s in p.streams
        )
        targets = tuple(self._target(tile, r) for r in p.results)
        parts = tuple(self._parts(tile, r) for r in p.results)
        return Task(self.shared.form.shape(tile), starts, boxes, targets, parts)

    def _target(self, tile: Tile, result: Result) -> tuple[int, ...] | None:
        given = not all(map(tile.is_first, result.active))
        return None if given else tile.start(result.index, self.origins)

    # -- what comes back --

    def _receive(self, task: Task, found: Sequence[Any]) -> None:
        for number, (start, value) in enumerate(zip(task.targets, found, strict=True)):
            if start is None or value is None:
                continue
            if task.parts[number] == 1:
                self.shared.deliveries[number].write_in_memory(start, value)
            else:
                self._combine(number, start, value, task.parts[number])

    def _combine(self, number: int, start: tuple[int, ...], partial: Any, parts: int) -> None:
        result = self.pass_.results[number]
        kind = str(result.combine)
        count, total = self.totals.pop((number, start), (0, None))
        total = combine.first(kind, partial) if count == 0 else combine.merge(kind, total, partial)
        if count + 1 == parts:
            self.shared.deliveries[number].write(start, combine.finish(kind, total, result.dtype))
        else:
            self.totals[number, start] = (count + 1, total)
