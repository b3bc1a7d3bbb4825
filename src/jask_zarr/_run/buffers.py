"""Memory for tiles: aligned, used again, and given back to the system.

The CPU device takes an aligned buffer without a copy, so a buffer may be used again only when no result points into it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

ALIGNMENT = 64
LARGE = 32 << 20
"""Bytes from which a pass keeps freed memory for its next tiles, and gives it back when it is done."""


class BufferPool:
    """Buffers of one pass. A tile has the same size as the next: each buffer is faulted in once."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._lock = Lock()

    def take(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array that begins at a multiple of `ALIGNMENT` bytes; its content is arbitrary."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            free = self._free.get(nbytes)
            raw = free.pop() if free else _aligned(nbytes)
        return raw.view(dtype).reshape(shape)

    def give(self, array: np.ndarray) -> None:
        """Take an array back; nobody may use it any more."""
        raw = array.reshape(-1).view(np.uint8)
        with self._lock:
            self._free.setdefault(raw.nbytes, []).append(raw)


def _aligned(nbytes: int) -> np.ndarray:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + nbytes]


def keep_freed_memory(nbytes: int) -> None:
    """Let glibc keep freed blocks of up to so many bytes, and at most 32 MiB.

    It maps those larger than any freed so far from the system, and faults in their pages each time.
    """
    np.empty(min(nbytes, LARGE - 2 * mmap.PAGESIZE), np.uint8)


def give_back_freed_memory(beyond: int = 0) -> None:
    """Return to the system what glibc keeps of freed blocks (it keeps those of up to 32 MiB, for each thread).

    Only if the process has more bytes in memory than ``beyond``: pages that are given back are soon faulted in again.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None and resident_memory() > beyond:
        trim(0)


def resident_memory() -> int:
    """Bytes of this process that are in memory, as Linux counts them."""
    with suppress(FileNotFoundError), open("/proc/self/statm", "rb") as pages:
        return int(pages.read().split()[1]) * mmap.PAGESIZE
    return 1  # not known


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
