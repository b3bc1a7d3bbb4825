"""Which arrays are one and the same store.

An array opened twice (by another path, through a link) is one `Source`. When `update_` replaces
what a store holds, the source it had becomes stale, and the store gets a new one: whoever still
refers to the old one is told so and never sees the new values.
"""

import threading
import weakref
from typing import Any

import numpy as np

from jask_zarr import errors

_sources: "weakref.WeakValueDictionary[Any, Source]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


class Source:
    """What a store holds until its next update."""

    __slots__ = ("__weakref__", "_replaced", "array", "is_scratch", "origin")

    def __init__(self, array: Any, *, is_scratch: bool = False, origin: "Source | None" = None) -> None:
        self.array = array
        self.is_scratch = is_scratch
        self.origin: Source = origin or self
        """The source of the store itself, if this one reads it in another way (as a cast)."""
        self._replaced = False

    @property
    def is_stale(self) -> bool:
        """Does the store hold other values now?"""
        return self.origin._replaced

    @property
    def kind(self) -> tuple[Any, ...]:
        return (tuple(self.array.shape), np.dtype(self.array.dtype), tuple(self.array.chunks))

    def check(self) -> None:
        """Refuse to be read once the store holds other values."""
        if self.is_stale:
            raise errors.StaleArrayError(
                f"this array was replaced by update_, or written over ({where(self.array)} now holds new values). "
                "Use the array that update_ returned: w = w.update_(new). To keep the old values "
                "as well, save them before the update: old = jz.materialize(w)."
            )


def where(array: Any) -> str:
    return f"the store at {array.path!r}" if getattr(array, "path", None) else "its store"


def source_of(array: Any) -> Source:
    """The source of a stored array: the one that is already known, if there is one."""
    with _lock:
        known = _sources.get(array.identity)
        if known is None or _is_gone(known):
            known = _sources[array.identity] = Source(array)
        if known.array.read_only == array.read_only:
            return known
        return Source(array, origin=known)


def created(array: Any) -> Source:
    """The source of an array that was just written; what was at its place before is replaced."""
    with _lock:
        known = _sources.get(array.identity)
        if known is not None:
            known.origin._replaced = True
        fresh = _sources[array.identity] = Source(array)
        return fresh


def _is_gone(known: Source) -> bool:
    """Has the store been resized or replaced by somebody else, so that what was opened cannot be read?"""
    try:
        known.array.check_unchanged()
    except errors.StaleArrayError:
        return True
    return False


def renewed(source: Source) -> Source:
    """The store of `source` holds new values: the source of those."""
    with _lock:
        source.origin._replaced = True
        fresh = Source(source.array, is_scratch=source.is_scratch)
        _sources[source.array.identity] = fresh
        return fresh
