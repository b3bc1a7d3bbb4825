"""Counting what is read and written."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class IOCost:
    """Blocks and bytes that went through `BlockedArray` while `io_cost` was active.

    A chunk that is decoded twice counts twice. Bytes are those of the decoded chunks, the part
    beyond the array's end left out, so that reading an array once costs its ``nbytes``. Rows that
    are looked up in a temporary array are read without the chunk around them, and count alone.
    """

    blocks_read: int = 0
    blocks_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def _add(self, blocks_read: int, bytes_read: int, blocks_written: int, bytes_written: int):
        with self._lock:
            self.blocks_read += blocks_read
            self.bytes_read += bytes_read
            self.blocks_written += blocks_written
            self.bytes_written += bytes_written


_active: tuple[IOCost, ...] = ()
_active_lock = threading.Lock()
_own: ContextVar[IOCost | None] = ContextVar("own", default=None)


@contextmanager
def io_cost() -> Iterator[IOCost]:
    """Count the chunks and bytes that are read and written inside the ``with`` block.

    Counts what any thread does in the meantime, scratch arrays included. Contexts nest.

    Yields
    ------
    IOCost
        With ``blocks_read``, ``blocks_written``, ``bytes_read`` and ``bytes_written``; it keeps
        its numbers after the block.

    Examples
    --------
    >>> with io_cost() as cost:
    ...     pass
    >>> cost
    IOCost(blocks_read=0, blocks_written=0, bytes_read=0, bytes_written=0)
    """
    global _active
    cost = IOCost()
    with _active_lock:
        _active = (*_active, cost)
    try:
        yield cost
    finally:
        with _active_lock:
            _active = tuple(other for other in _active if other is not cost)


@contextmanager
def own_io_cost() -> Iterator[IOCost]:
    """Count what is read and written in this context alone, not what other threads do meanwhile."""
    cost = IOCost()
    token = _own.set(cost)
    try:
        yield cost
    finally:
        _own.reset(token)


def counting() -> bool:
    """Whether anybody counts now."""
    return bool(_active) or _own.get() is not None


def count_read(blocks: int, nbytes: int) -> None:
    """Add decoded chunks to every active count."""
    for cost in _counts():
        cost._add(blocks, nbytes, 0, 0)


def count_written(blocks: int, nbytes: int) -> None:
    """Add encoded chunks to every active count."""
    for cost in _counts():
        cost._add(0, 0, blocks, nbytes)


def _counts() -> tuple[IOCost, ...]:
    own = _own.get()
    return _active if own is None else (*_active, own)
