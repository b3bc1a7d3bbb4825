"""What runs in another process: tile tasks of passes that came there as a parcel.

A task names its parcel. A process that does not have it answers None, and gets the task again with the parcel. It keeps
one parcel at a time, with the stores opened and the in-memory arguments on its device; compiled functions it keeps
from parcel to parcel.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from jask_zarr import _compat, _disk
from jask_zarr._run import task as tasks
from jask_zarr._run.executors import devices
from jask_zarr._run.reads import Reader


@dataclass(frozen=True)
class Parcel:
    """What all tasks of a pass share."""

    jax_version: str
    artefacts: dict[tuple[int, ...], bytes]
    """The tile function of each tile shape."""
    sources: tuple[Any, ...]
    parts: tuple[bool, ...]
    """Whether their tiles are parts of chunks."""
    origins: tuple[np.ndarray, ...]
    memory: tuple[Any, ...]
    deliveries: tuple[tasks.Delivery, ...]


@dataclass(frozen=True)
class Answer:
    """What goes back of each result; what was read and written; and which process did it."""

    values: list[Any]
    read: tuple[int, int]
    """Blocks and bytes."""
    written: tuple[int, int]
    process: str


class _Work:
    """An opened parcel."""

    def __init__(self, parcel: Parcel) -> None:
        if parcel.jax_version != jax.__version__:
            raise RuntimeError(
                f"This worker has JAX {jax.__version__}, and the computation comes from JAX {parcel.jax_version}: "
                "install the same version in both."
            )
        self.parcel = parcel
        self.device = devices()[0]
        self.reader = Reader(parcel.sources, parcel.parts)
        with jax.enable_x64(True):
            self.memory = [jax.device_put(value, self.device) for value in parcel.memory]

    def perform(self, task: tasks.Task) -> Answer:
        p, function = self.parcel, _function(self.parcel.artefacts[task.shape])
        with _disk.own_io_cost() as cost:
            reads = self.reader.reads(task.boxes)
            values = tasks.perform(task, function, p.origins, reads, self.memory, self.device, p.deliveries)
        read, written = (cost.blocks_read, cost.bytes_read), (cost.blocks_written, cost.bytes_written)
        return Answer(values, read, written, _disk.own_tag())


_function = lru_cache(maxsize=256)(_compat.loaded)
_latest: tuple[str, _Work] | None = None


def perform(name: str, task: tasks.Task, parcel: bytes | None = None) -> Answer | None:
    """Run a task of the parcel of that name; None if the parcel is needed."""
    try:
        work = _work(name, parcel)
        return None if work is None else work.perform(task)
    except Exception as error:
        if _is_portable(error):
            raise
        # An executor would break, or wait for ever, on an error that does not survive the way back.
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _work(name: str, parcel: bytes | None) -> _Work | None:
    global _latest
    latest = _latest
    if latest is not None and latest[0] == name:
        return latest[1]
    if parcel is None:
        return None
    _latest = latest = None  # the old parcel goes before the new one is opened
    work = _Work(pickle.loads(parcel))
    _latest = name, work
    return work


def _is_portable(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True
