"""The tasks of a pass in threads of this process, on its devices in turn."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import cycle
from threading import Semaphore
from typing import Any

from jask_zarr._run import executors
from jask_zarr._run.reads import Read, Reader
from jask_zarr._run.task import Shared, Task, perform


class Threads:
    """Runs the tasks of one pass here, `workers` at a time; if that is one, another may read meanwhile."""

    def __init__(self, shared: Shared, devices: Sequence[Any], workers: int, reads_ahead: bool = False) -> None:
        self.shared, self.workers = shared, workers + reads_ahead
        self.computing = Semaphore(workers)
        self.memory = {device: shared.form.hold(shared.memory, device) for device in devices}
        self.reader, self.in_turn = Reader(shared.sources, shared.form.pass_.tiling.parts), cycle(devices)

    def answers(self, tasks: Iterable[Task]) -> Generator[tuple[Task, list[Any]]]:
        """Each task with what goes back of it, in order."""
        if self.workers > 1:
            return executors.in_order(self._submit, tasks, self.workers)
        return ((task, self._perform(*self._ready(task))) for task in tasks)

    def _submit(self, task: Task) -> Any:
        return executors.here().submit(self._perform, *self._ready(task))

    def _ready(self, task: Task) -> tuple[Task, list[Read], Any]:
        return task, self.reader.reads(task.boxes), next(self.in_turn)

    def _perform(self, task: Task, reads: list[Read], device: Any) -> list[Any]:
        function = self.shared.form.function(task.shape, device)
        memory = self.memory[device]
        for read in reads:
            read.values()
        with self.computing:
            return perform(task, function, self.shared.origins, reads, memory, device, self.shared.deliveries)
