"""Updates that compiled functions ask for, done together when the function returns.

All updates of one call read the old values, as in JAX: the order in which the function names
them does not matter. They are planned jointly, so optimizer state and parameters are written in
one pass over what they are computed from.
"""

import atexit
import threading
from collections.abc import Sequence
from typing import Any

from jask_zarr._tracing import force, handles
from jask_zarr._tracing.expr import Stored, Value, stored

_pending: list[handles.Handle] = []
_lock = threading.RLock()


def apply(pairs: Sequence[tuple[Value, Value]]) -> list[Value]:
    """Replace old values by new ones, in their stores where they have one."""
    with force.lock:
        for old, _ in pairs:
            force.check(old)
        targets = [_store(old) for old, _ in pairs]
        if len({id(t.origin) for t in targets if t is not None}) < sum(t is not None for t in targets):
            raise ValueError("two updates of one store in one step: combine them into one")
        in_stores = [(t, new) for t, (_, new) in zip(targets, pairs, strict=True) if t is not None]
        fresh = iter(force.replace(in_stores)[0] if in_stores else ())
        force.force(new for t, (_, new) in zip(targets, pairs, strict=True) if t is None)
        return [new if t is None else stored(next(fresh)) for t, (_, new) in zip(targets, pairs, strict=True)]


def _store(value: Value) -> Any:
    """The source to update; scratch and memory are not updated but replaced."""
    leaf = value.leaf
    return leaf.source if isinstance(leaf, Stored) and not leaf.source.is_scratch else None


def defer(handle: handles.Handle, old: Value, new: Value) -> None:
    """Note an update of this run."""
    with _lock:
        handle.update = (old, new)
        _pending.append(handle)


def flush_handles(found: Sequence[handles.Handle]) -> None:
    """Do the updates that these arrays are results of, with all others of their callers."""
    owners = {handle.owner for handle in found if handle.update is not None}
    if owners:
        _flush(lambda handle: handle.owner in owners)


def flush() -> None:
    """Do the updates that this thread's calls have left."""
    if _pending:
        owner = threading.get_ident()
        _flush(lambda handle: handle.owner in (owner, None))


def _flush(chosen: Any) -> None:
    with force.lock, _lock:
        group = [handle for handle in _pending if chosen(handle)]
        _pending[:] = [handle for handle in _pending if not chosen(handle)]
        pairs = [handle.update for handle in group]
        for handle in group:
            handle.update = None
        try:
            fresh = apply(pairs)
        except BaseException:
            for handle in group:
                handles.drop(handle)
            raise
        for handle, value in zip(group, fresh, strict=True):
            handle._value = value


@atexit.register
def _flush_all() -> None:
    _flush(lambda handle: True)
