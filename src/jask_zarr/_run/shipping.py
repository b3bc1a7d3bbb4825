"""How the tasks of a pass get to an executor whose workers are other processes.

1. `check` refuses, before anything is written, what cannot travel: arrays in memory stores, functions that
   `jax.export` does not take.
2. `Shipment` makes a parcel of what the tasks share: exported functions, stores to open, arguments in memory.
3. The first tasks take the parcel along. Later ones only name it, and are sent again with it where it is not known.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import jax
import numpy as np

from jask_zarr import _disk
from jask_zarr._plan.plan import Pass, Plan
from jask_zarr._run.compiled import compiled
from jask_zarr._run.executors import elsewhere, in_order
from jask_zarr._run.task import Delivery, Shared, Task
from jask_zarr._run.worker import Answer, Parcel, perform
from jask_zarr.errors import NotPortableError, WorkerLostError


def is_worth_sending(p: Pass) -> bool:
    """A pass of one tile has nothing to share out."""
    return p.tiles > 1


def check(plan: Plan, values: dict[int, Any], writers: Sequence[Any]) -> None:
    """Refuse a plan of which something cannot be sent."""
    for p in filter(is_worth_sending, plan.passes):
        _ = compiled(p).artefacts
        read = {stream.version[0] for stream in p.streams}
        written = {d.number for r in p.results for d in r.destinations if d.on_disk and d.kind == "output"}
        for array in (*(values[v] for v in read if v in values), *(writers[n] for n in written)):
            array.for_workers()


def check_target(store: Any) -> None:
    """Refuse a store that an array is to be created in, if the executor's workers cannot open it."""
    if elsewhere() is not None:
        _disk.check_portable(_disk.place_of(store))


class Shipment:
    """Sends the tasks of one pass to an executor."""

    def __init__(self, executor: Any, shared: Shared, workers: int) -> None:
        self.executor, self.name, self.workers = executor, uuid4().hex, workers
        self.copies = workers
        self.parcel = _packed(shared)

    def answers(self, tasks: Iterable[Task]) -> Generator[tuple[Task, list[Any]]]:
        """Each task with what goes back of it, in order."""
        return in_order(self.submit, tasks, self.workers)

    def submit(self, task: Task) -> _Sent:
        """Send a task; the first ones with the parcel."""
        self.copies -= 1
        return _Sent(self, task, self.send(task, with_parcel=self.copies >= 0))

    def send(self, task: Task, with_parcel: bool) -> Any:
        try:
            return self.executor.submit(perform, self.name, task, self.parcel if with_parcel else None)
        except BrokenExecutor as error:
            raise self.lost() from error

    def lost(self) -> WorkerLostError:
        """The error of a worker that has gone; the others have gone, too, when it is made."""
        if hasattr(self.executor, "shutdown"):
            self.executor.shutdown(wait=True)
        return WorkerLostError(
            f"A worker process of {type(self.executor).__name__} has ended before its tile was done: it was killed, "
            "or the system had no memory left. Nothing was replaced: arrays under update hold their old values. Set a "
            "new executor (jz.set_executor), with fewer workers or a smaller memory budget if memory was the cause."
        )


def _packed(shared: Shared) -> bytes:
    try:
        return pickle.dumps(
            Parcel(
                jax.__version__,
                shared.form.artefacts,
                tuple(source.for_workers() for source in shared.sources),
                shared.form.pass_.tiling.parts,
                shared.origins,
                tuple(map(np.asarray, shared.memory)),
                tuple(map(_travelling, shared.deliveries)),
            )
        )
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotPortableError(
            f"A computation cannot be sent to other processes: {error}. Run it in this one: jz.set_executor(None)."
        ) from error


def _travelling(delivery: Delivery) -> Delivery:
    writers = tuple(writer.for_workers() for writer in delivery.on_disk)
    return replace(delivery, on_disk=writers, in_memory=(), goes_back=bool(delivery.in_memory))


@dataclass
class _Sent:
    """The future of a task that may have to be sent twice."""

    shipment: Shipment
    task: Task
    future: Any

    def result(self) -> list[Any]:
        """What goes back of each result; what was read and written is counted."""
        try:
            answer = self.future.result()
            if answer is None:
                self.future = self.shipment.send(self.task, with_parcel=True)
                answer = self.future.result()
        except BrokenExecutor as error:
            raise self.shipment.lost() from error
        _count(answer)
        return answer.values

    def cancel(self) -> bool:
        return self.future.cancel()

    def cancelled(self) -> bool:
        return self.future.cancelled()

    def exception(self) -> BaseException | None:
        return self.future.exception()


def _count(answer: Answer) -> None:
    if answer.process != _disk.own_tag():  # else it is counted already
        _disk.count_read(*answer.read)
        _disk.count_written(*answer.written)
