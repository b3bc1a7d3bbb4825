"""Numbers that stand for arrays inside compiled functions.

A compiled function sees one integer for an array. Python cannot see which of these integers are
still in use inside it, so they are taken back by these rules:

1. The number of an argument lives as long as the scalar that was passed; then it is *dead*.
2. The number of an array that a callback made belongs to the thread that called the function.
3. A thread frees its dead numbers at a quiet point: when it is about to call the next function
   and everything it dispatched has finished.
4. A parked array is freed by the last callback that uses it.
"""

import itertools
import threading
import weakref
from collections import OrderedDict
from typing import Any

import jax
import numpy as np

from jask_zarr import _compat, errors
from jask_zarr._tracing import force
from jask_zarr._tracing.expr import Value

MAX_ORPHANS = 1024
"""How many arrays made by callbacks of unknown callers are kept."""


class Handle:
    """An entry of the table."""

    __slots__ = ("__weakref__", "_value", "is_lazy", "number", "owner", "update", "uses")

    def __init__(self, number: int, value: Value, owner: int | None) -> None:
        self.number, self._value, self.owner = number, value, owner
        self.is_lazy = False
        """Made inside a compiled function, and not computed."""
        self.update: Any = None
        """The update that this array is the result of, until it is done."""
        self.uses: int | None = None
        """How many callbacks will still use it, if it is parked."""


_numbers = itertools.count(1)
_lock = threading.RLock()
_table: dict[int, Handle] = {}
_made: dict[int | None, "OrderedDict[int, None]"] = {}
_dead: dict[int, list[int]] = {}
_in_callback = threading.local()


def size() -> int:
    """How many arrays compiled functions can refer to now."""
    return len(_table)


def add(value: Value, owner: int | None) -> Handle:
    """Give an array that a callback made a number."""
    with _lock:
        handle = _register(value, owner)
        made = _made.setdefault(owner, OrderedDict())
        made[handle.number] = None
        while owner is None and len(made) > MAX_ORPHANS:
            _table.pop(made.popitem(last=False)[0], None)
        return handle


def _register(value: Value, owner: int | None) -> Handle:
    handle = Handle(next(_numbers), value, owner)
    _table[handle.number] = handle
    force.watch(handle)
    return handle


def lower(value: Value) -> Any:
    """The number of an array as a scalar to pass to a compiled function."""
    owner = threading.get_ident()
    with _lock:
        handle = _register(value, owner)
    with _compat.evaluating():
        scalar = jax.device_put(np.int32(handle.number))
    weakref.finalize(scalar, _bury, handle.number, owner).atexit = False
    return scalar


def lower_many(values: list[Value]) -> Any:
    """The numbers of several arrays as one vector."""
    owner = threading.get_ident()
    with _lock:
        numbers = [_register(value, owner).number for value in values]
    with _compat.evaluating():
        vector = jax.device_put(np.array(numbers, np.int32))
    for number in numbers:
        weakref.finalize(vector, _bury, number, owner).atexit = False
    return vector


def _bury(number: int, owner: int) -> None:
    _dead.setdefault(owner, []).append(number)


def find(number: int) -> Handle:
    """The array behind a number."""
    handle = _table.get(number)
    if handle is None:
        raise errors.StaleArrayError(
            f"a compiled function refers to array number {number}, which is gone. "
            "Return arrays from the function instead of keeping their numbers."
        )
    return handle


def adopt(handle: Handle) -> None:
    """The array has arrived in Python: its number goes at this thread's next quiet point."""
    owner = threading.get_ident()
    with _lock:
        made = _made.get(handle.owner, {})
        if handle.owner != owner and handle.number in made:
            del made[handle.number]
            _made.setdefault(owner, OrderedDict())[handle.number] = None
            handle.owner = owner


def consume(handle: Handle) -> None:
    """One callback fewer will use a parked array."""
    with _lock:
        if handle.uses is not None:
            handle.uses -= 1
            if handle.uses <= 0:
                drop(handle)


def drop(handle: Handle) -> None:
    """Forget an array that a callback made."""
    _table.pop(handle.number, None)
    _made.get(handle.owner, {}).pop(handle.number, None)


def quiet_point() -> None:
    """Free the numbers that nothing can use any more; waits for what this thread dispatched."""
    owner = threading.get_ident()
    if getattr(_in_callback, "depth", 0) or not (_dead.get(owner) or _made.get(owner)):
        return
    jax.effects_barrier()
    with _lock:
        numbers = [*_dead.pop(owner, ()), *_made.pop(owner, ())]
        for number in numbers:
            _table.pop(number, None)


class callback_scope:
    """While a callback runs, its thread is not at a quiet point."""

    def __enter__(self) -> None:
        _in_callback.depth = getattr(_in_callback, "depth", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _in_callback.depth -= 1
