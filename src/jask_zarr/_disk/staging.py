"""New contents for stored arrays: staged beside the old ones, then put in their place.

On local stores by `atomic`, so that a crash leaves all old or all new. On others (memory,
remote) the new values wait in scratch and are copied at the end, one write chunk after another.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from operator import add

import numpy as np

from .. import _chunks
from ..errors import StaleArrayError, StoreBusyError
from . import atomic
from .blocks import BlockedArray
from .scratch import SpillFile


class StagedUpdate:
    """New values for an array, not yet visible in it.

    Write chunks that were not written keep their old values at the commit. What is dropped
    without a commit is discarded.

    Attributes
    ----------
    array : BlockedArray
        The array to be updated; it has its old values until the commit.
    """

    def __init__(self, array: BlockedArray) -> None:
        self.array = array

    def write_box(self, start: Sequence[int], values: np.ndarray) -> None:
        """As `BlockedArray.write_box`."""
        raise NotImplementedError

    def for_workers(self) -> BlockedArray:
        """What writes new values from other processes; all of them are to be written."""
        raise NotImplementedError

    def discard(self) -> None:
        """Forget the new values. Harmless after a commit."""
        raise NotImplementedError


class _LocalUpdate(StagedUpdate):
    def __init__(self, array: BlockedArray) -> None:
        super().__init__(array)
        files = prod(_chunks.grid_shape(array.shape, array.write_chunks))
        self.staging = atomic.Staging.begin(str(array.path), files)
        array.check_unchanged()  # nobody writes over it from here on
        self._target = array.staged_at(self.staging.prefix)

    def write_box(self, start: Sequence[int], values: np.ndarray) -> None:
        self._target.write_box(start, values)

    def for_workers(self) -> BlockedArray:
        return self._target

    def discard(self) -> None:
        self.staging.discard()


class _CopiedUpdate(StagedUpdate):
    def __init__(self, array: BlockedArray) -> None:
        super().__init__(array)
        _claim(array)
        self._release = weakref.finalize(self, _claimed.discard, array.identity)
        self._spill = SpillFile.create(array.shape, array.dtype, array.write_chunks)
        self._written: set[_chunks.Index] = set()

    def write_box(self, start: Sequence[int], values: np.ndarray) -> None:
        self._spill.write_box(start, values)
        stop = tuple(map(add, start, values.shape))
        self._written.update(_chunks.blocks_touching(tuple(start), stop, self._spill.chunks))

    def for_workers(self) -> BlockedArray:
        self._written.update(_chunks.blocks_touching((0,) * self._spill.ndim, self._spill.shape, self._spill.chunks))
        return self._spill.for_workers()

    def copy(self) -> None:
        for index in sorted(self._written):
            self.array.write_block(index, self._spill.read_block(index))
        self.discard()

    def discard(self) -> None:
        self._written.clear()
        self._release()
        vars(self).pop("_spill", None)


_claimed: set[tuple] = set()
_claim_lock = threading.Lock()


def _claim(array: BlockedArray) -> None:
    with _claim_lock:
        if array.identity in _claimed:
            raise StoreBusyError(
                f"{array!r} is already being updated; two updates of one array at once would lose one of them."
            )
        _claimed.add(array.identity)


def stage(array: BlockedArray) -> StagedUpdate:
    """Begin to replace the values of a stored array.

    Raises
    ------
    ReadOnlyStoreError
        If the store cannot be written; nothing has been written then.
    StoreBusyError
        If an update of the same array is under way, in this process or another one.

    Examples
    --------
    >>> a = SpillFile.create((4,), "f4", chunks=(2,))
    >>> update = stage(a)
    >>> update.write_box((0,), np.ones(4, "f4"))
    >>> a.read_box((0,), (4,)).sum()
    np.float32(0.0)
    >>> commit([update])
    >>> a.read_box((0,), (4,)).sum()
    np.float32(4.0)
    """
    array.check_writable()
    array.check_unchanged()
    return _CopiedUpdate(array) if array.path is None else _LocalUpdate(array)


def commit(updates: Sequence[StagedUpdate]) -> None:
    """Make the staged values the arrays' own: on local stores all of them as one step.

    On an error before that step every array has its old values, and what was staged is gone.
    """
    try:
        for update in updates:
            if isinstance(update, _CopiedUpdate):
                update.copy()
    except BaseException:
        for update in updates:
            update.discard()
        raise
    local = [update for update in updates if isinstance(update, _LocalUpdate)]
    atomic.commit([update.staging for update in local])
    for update in local:
        update.array.was_updated()


@contextmanager
def one_version(arrays: Sequence[BlockedArray]) -> Iterator[None]:
    """Raise `StaleArrayError` if another process replaced values of a local array meanwhile."""
    before = [array.version() for array in arrays]
    yield
    for array, version in zip(arrays, before, strict=True):
        if array.version() != version:
            raise StaleArrayError(
                f"Another process replaced values of the array at {array.path!r} while they were read: it is of two "
                "versions. Read it again."
            )
