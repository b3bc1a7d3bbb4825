"""Boxes of stored arrays, read once for the tiles that share them, and put on the devices that compute these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jax
import numpy as np

from jask_zarr._chunks import box_shape, box_slices, covering_box
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
        values = self.values()
        if device.platform == "cpu":
            return values
        with self.lock:
            if device not in self.arrays:
                self.arrays[device] = _put(values, device)
            return self.arrays[device]

    def values(self) -> np.ndarray:
        """The values, read now if they are not yet."""
        with self.lock:
            if self.buffer is None:
                self.buffer = self._read()
            return self.buffer

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


@dataclass(frozen=True)
class PartOfRead:
    """Part of a box that several tiles share."""

    whole: SharedRead
    part: tuple[slice, ...]

    def on(self, device: Any) -> jax.Array | np.ndarray:
        """The values, on a device."""
        return self.values() if device.platform == "cpu" else _put(self.values(), device)

    def values(self) -> np.ndarray:
        """The values, read now if they are not yet."""
        return self.whole.values()[self.part]

    def keep_if_part_of(self, result: Any) -> None:
        """A result that is part of the buffer keeps it."""
        self.whole.keep_if_part_of(result)


def _put(values: np.ndarray, device: Any) -> jax.Array:
    with jax.enable_x64(True):
        return jax.device_put(values, device)


Read = SharedRead | PartOfRead


class Reader:
    """Reads the streams of a pass; a box that the tile before has needed too is not read again.

    Of streams whose tiles are parts of chunks, whole chunks are read.
    """

    def __init__(self, sources: Sequence[Any], parts: Sequence[bool]) -> None:
        self.sources, self.parts, self.pool = sources, parts, BufferPool()
        self._last: dict[int, SharedRead] = {}

    def reads(self, boxes: Sequence[Box]) -> list[Read]:
        """What will read a box of each stream."""
        return [
            self._part(number, box) if is_part else self._read(number, box)
            for number, (box, is_part) in enumerate(zip(boxes, self.parts, strict=True))
        ]

    def _part(self, number: int, box: Box) -> PartOfRead:
        source, (places, shape) = self.sources[number], box
        start = tuple(place for place in places if not isinstance(place, Listed))
        stop = tuple(a + n for a, n in zip(start, shape, strict=True))
        first, last = covering_box(start, stop, source.shape, source.chunks)
        return PartOfRead(self._read(number, (first, box_shape(first, last))), box_slices(start, stop, first))

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
