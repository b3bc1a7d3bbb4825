"""Chunk files read and written directly, for the hand-written loops: no pipeline, no copies, no event loop."""

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import zarr
from numcodecs import Blosc, blosc
from stores import CODEC, Moved

blosc.use_threads = False
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_pool = ThreadPoolExecutor(THREADS)
_local = threading.local()
moved = Moved()
Index = tuple[int, ...]


class ChunkFiles:
    """A zarr array of format 3 with the benchmark's codec whose chunks divide its shape."""

    def __init__(self, path: Path, replace: bool = False) -> None:
        array = zarr.open_array(str(path), mode="r+")
        self.path, self.replace = f"{path}/c/", replace
        self.shape, self.chunks, self.dtype = array.shape, array.chunks, array.dtype
        self.grid = tuple(n // c for n, c in zip(self.shape, self.chunks, strict=True))
        self.nbytes = int(np.prod(self.chunks)) * self.dtype.itemsize
        self.codec = Blosc(CODEC["cname"], CODEC["clevel"], Blosc.SHUFFLE)

    def indices(self) -> Iterator[Index]:
        """All chunks, the last axis fastest."""
        return itertools.product(*map(range, self.grid))

    def read(self, index: Index, out: np.ndarray | None = None) -> np.ndarray:
        """Decode one chunk, by default into this thread's buffer for this array."""
        out = _buffer(self.path, self.chunks, self.dtype) if out is None else out
        with open(self.path + "/".join(map(str, index)), "rb", buffering=0) as file:
            blosc.decompress(file.read(), out)
        moved.add(read=self.nbytes)
        return out

    def write(self, index: Index, values: Any) -> None:
        """Encode and write one chunk; where asked for, so that a crash leaves a whole one."""
        place = self.path + "/".join(map(str, index))
        target = place + ".new" if self.replace else place
        data = self.codec.encode(np.ascontiguousarray(values))
        try:
            file = open(target, "wb", buffering=0)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            file = open(target, "wb", buffering=0)
        with file:
            file.write(data)
        if self.replace:
            os.replace(target, place)
        moved.add(written=self.nbytes)

    def read_box(self, start: Index, stop: Index, name: str = "box") -> np.ndarray:
        """Decode a box of chunks, given by their indices, into this thread's buffer of that name."""
        shape = tuple((b - a) * c for a, b, c in zip(start, stop, self.chunks, strict=True))
        out = _buffer(self.path + name, shape, self.dtype)
        for index in itertools.product(*map(range, start, stop)):
            part = tuple(slice((i - a) * c, (i - a + 1) * c) for i, a, c in zip(index, start, self.chunks, strict=True))
            if out[part].flags.c_contiguous:
                self.read(index, out[part])
            else:
                out[part] = self.read(index)
        return out


def aligned(shape: Index, dtype: Any) -> np.ndarray:
    """An empty array that JAX takes without a copy."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def _buffer(name: str, shape: Index, dtype: Any) -> np.ndarray:
    """One buffer a thread and name, used again and again."""
    buffers = _local.__dict__
    if name not in buffers or buffers[name].shape != shape:
        buffers[name] = aligned(shape, dtype)
    return buffers[name]


def in_threads(task: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """The answers in order; a few more tasks than threads are under way."""
    items = iter(items)
    running = [_pool.submit(task, item) for item in itertools.islice(items, THREADS + 1)]
    while running:
        yield running.pop(0).result()
        running.extend(_pool.submit(task, item) for item in itertools.islice(items, 1))


def done(value: Any) -> Any:
    """Wait, so that the buffers it was computed from may be used again; as numpy, without a copy."""
    return jax.tree.map(np.asarray, jax.block_until_ready(value))
