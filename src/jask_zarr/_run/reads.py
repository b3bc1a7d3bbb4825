"""Boxes of stored arrays, read once for the tiles that share them, and put on the devices that compute these."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import jax
import numpy as np

from jask_zarr._run.buffers import BufferPool
from jask_zarr._run.rows import Place, read_listed
from jask_zarr._run.tile import Listed

Box = tuple[tuple[Place, ...], tuple[int, ...]]
"""Where it begins along each dim, or its positions there; and its shape."""


class SharedRead:
    """A box that one or several tiles need; read once, by the first that asks.

    Its buffer goes back to the pool when the last of them is done.
    """

    def __init__(self, source: Any, box: Box, pool: BufferPool) -> None:
        self.source, self.box, self.pool = source, box, pool
        self.buffer: np.ndarray | None = None
        self.arrays: dict[Any, jax.Array] = {}
        self.lock = Lock()

    def on(self, device: Any) -> jax.Array | np.ndarray:
        """The values, on a device; a compiled function on the CPU takes the buffer as it is."""
        with self.lock:
            if self.buffer is None:
                self.buffer = self._read()
            if device.platform == "cpu":
                return self.buffer
            if device not in self.arrays:
                with jax.enable_x64(True):
                    self.arrays[device] = jax.device_put(self.buffer, device)
            return self.arrays[device]

    def _read(self) -> np.ndarray:
        places, shape = self.box
        buffer = self.pool.take(shape, self.source.dtype)
        read(self.source, places, buffer, self.pool)
        return buffer

    def keep_if_part_of(self, result: Any) -> None:
        """A result that is the buffer itself keeps it."""
        if self.buffer is not None and np.may_share_memory(self.buffer, result):
            self.pool = BufferPool()

    def __del__(self) -> None:
        self.arrays = {}
        if self.buffer is not None:
            self.pool.give(self.buffer)


class Reader:
    """Reads the streams of a pass; a box that the tile before has needed too is not read again."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self.sources, self.pool = sources, BufferPool()
        self._last: dict[int, SharedRead] = {}

    def reads(self, boxes: Sequence[Box]) -> list[SharedRead]:
        """What will read a box of each stream."""
        return [self._read(number, box) for number, box in enumerate(boxes)]

    def _read(self, number: int, box: Box) -> SharedRead:
        last = self._last.get(number)
        if last is None or last.box != box:
            self._last[number] = last = SharedRead(self.sources[number], box, self.pool)
        return last


def read(source: Any, places: tuple[Place, ...], buffer: np.ndarray, pool: BufferPool) -> None:
    """Read a box."""
    start = tuple(place for place in places if not isinstance(place, Listed))
    if len(start) == len(places):
        read_padded(source, start, buffer)
    else:
        read_listed(source, places, buffer, pool)


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
