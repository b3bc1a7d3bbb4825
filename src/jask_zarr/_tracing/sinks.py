"""Where a compiled function leaves JAX: one callback for each thing it must have now.

While JAX lowers a function, operations compose expressions whose leaves are tracers. A sink
emits ONE ordered callback:

* `compute`: results in memory. The only callback that computes.
* `leave`: an array leaves the function. The callback records it and gives it a number; it is
  computed when it is asked for, or when another callback of the run needs it.
* `park`: puts a large operand aside, since a callback that both takes a large array and computes
  can hang (jax issues 24255 and 25861).
* `update`: notes an update; all updates of a call are done together, from the old values.

At run time a callback replaces the leaves by what their numbers stand for and goes on with
ordinary recorded values. Programs were planned at the first run.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat
from jask_zarr._tracing import force, handles, updates
from jask_zarr._tracing.expr import Resident, Traced, Value, collect, record
from jask_zarr._tracing.function import Function, trace

MAX_OPERAND = 1024
"""Operands in memory of more bytes than this are parked."""

HANDLE = jax.ShapeDtypeStruct((), np.int32)

last_failure: list[BaseException | None] = [None]
"""The exception that a callback raised last; JAX passes on only its text."""


class Site:
    """A place in a compiled function where values are needed."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.graph = collect(values)
        self.shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
        self.traced = [v.leaf for v in self.graph.leaves if isinstance(v.leaf, Traced)]

    def arguments(self) -> list[Any]:
        return [_argument(leaf) for leaf in self.traced]

    def values(self, arguments: Sequence[Any]) -> tuple[list[Value], list[handles.Handle]]:
        """The values of this run, and the handles they refer to."""
        found: list[handles.Handle] = []
        given = iter(arguments)
        leaves = [
            _resolve(value, next(given), found) if isinstance(value.leaf, Traced) else value
            for value in self.graph.leaves
        ]
        return self.graph.evaluate(leaves, _record_again), found


def _record_again(function: Function, operands: Sequence[Value]) -> list[Value]:
    return record(function, operands[len(function.consts) :])


def _argument(leaf: Traced) -> Any:
    if leaf.is_handle or leaf.tracer.size * leaf.tracer.dtype.itemsize <= MAX_OPERAND:
        return leaf.tracer
    if leaf.parked is None:
        leaf.parked = _emit(_parker(leaf), HANDLE, [leaf.tracer])
    leaf.uses[0] += 1
    return leaf.parked


def _parker(leaf: Traced) -> Callable[..., Any]:
    uses = leaf.uses
    weak_type = bool(leaf.tracer.aval.weak_type)

    def park(array: Any) -> np.int32:
        value = _in_memory(array, weak_type)
        handle = handles.add(value, None)
        handle.uses = uses[0]
        return np.int32(handle.number)

    return park


def _in_memory(array: Any, weak_type: bool) -> Value:
    copied = np.array(array)
    return Value(copied.shape, copied.dtype, weak_type, leaf=Resident(copied, weak_type))


def _resolve(value: Value, argument: Any, found: list[handles.Handle]) -> Value:
    leaf = value.leaf
    if not leaf.is_handle and leaf.parked is None:
        return _in_memory(argument, value.weak_type)
    numbers = np.asarray(argument)
    entries = [handles.find(int(n)) for n in numbers.ravel()]
    found.extend(entries)
    return entries[0]._value if numbers.ndim == 0 else stack([e._value for e in entries])


def _emit(callback: Callable[..., Any], result: Any, arguments: Sequence[Any]) -> Any:
    results, tree = jax.tree.flatten(result)
    out = _compat.ordered_callback(lambda *a: jax.tree.leaves(_guarded(callback)(*a)), results, arguments)
    return jax.tree.unflatten(tree, out)


def _guarded(callback: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*arguments: Any) -> Any:
        with handles.callback_scope():
            try:
                return callback(*arguments)
            except BaseException as failure:
                last_failure[0] = failure
                raise

    return guarded


def original_failure(error: BaseException) -> BaseException:
    """The exception that a callback raised, for the one that JAX made of its text."""
    failure, last_failure[0] = last_failure[0], None
    return error if failure is None else failure


def _owner(found: Sequence[handles.Handle]) -> int | None:
    return next((handle.owner for handle in found if handle.owner is not None), None)


def _settle_inputs(found: Sequence[handles.Handle]) -> list[Value]:
    """Arrays that this run recorded and now uses: each is computed once, not at every use."""
    lazy = [handle for handle in found if handle.is_lazy]
    updates.flush_handles(lazy)
    return [handle._value for handle in lazy if handle._value.is_pending]


def _done(found: Sequence[handles.Handle]) -> None:
    for handle in found:
        handles.consume(handle)


def compute(values: Sequence[Value]) -> list[Any]:
    """Emit the callback that computes values into memory."""
    site = Site(values)

    def callback(*arguments: Any) -> list[Any]:
        _, found = site.values(arguments)
        kept = _settle_inputs(found)
        values, _ = site.values(arguments)
        results = force.to_memory(values, kept)
        _done(found)
        return results

    return _emit(callback, site.shapes, site.arguments())


def _in_trace(values: Sequence[Value]) -> Any:
    """The trace to emit a callback in: that of some leaf.

    JAX lowers the results of a function after it has left the function's trace.
    """
    traced = next(v.leaf for v in collect(values).leaves if isinstance(v.leaf, Traced))
    return _compat.inside(_compat.trace_of(traced.tracer))


def leave(value: Value) -> Any:
    """Emit the callback that gives a recorded array a number."""
    with _in_trace([value]):
        site = Site([value])

        def callback(*arguments: Any) -> np.int32:
            (result,), found = site.values(arguments)
            force.force(_settle_inputs(found))
            (result,), _ = site.values(arguments)
            handle = handles.add(result, _owner(found))
            handle.is_lazy = True
            _done(found)
            return np.int32(handle.number)

        return _emit(callback, HANDLE, site.arguments())


def leave_rows(value: Value) -> Any:
    """Emit the callback that gives each row of an array a number (for `scan`)."""
    with _in_trace([value]):
        site = Site([value])

        def callback(*arguments: Any) -> np.ndarray:
            (result,), found = site.values(arguments)
            force.force(_settle_inputs(found))
            (result,), _ = site.values(arguments)
            numbers = [handles.add(row, _owner(found)).number for row in rows(result)]
            _done(found)
            return np.array(numbers, np.int32)

        return _emit(callback, jax.ShapeDtypeStruct(value.shape[:1], np.int32), site.arguments())


def materialize(value: Value) -> Any:
    """Emit the callback that computes an array in place."""
    site = Site([value])

    def callback(*arguments: Any) -> np.int32:
        (result,), found = site.values(arguments)
        force.force([*_settle_inputs(found), result])
        _done(found)
        return np.int32(handles.add(result, _owner(found)).number)

    return _emit(callback, HANDLE, site.arguments())


class UpdateSite:
    """An update in a compiled function."""

    def __init__(self, old: Value, new: Value) -> None:
        self.site = Site([old, new])
        self.escapes = False
        """Does the function return the updated array? Then the update is done at its return, in any case."""

    def emit(self) -> Any:
        return _emit(self.callback, HANDLE, self.site.arguments())

    def callback(self, *arguments: Any) -> np.int32:
        _, found = self.site.values(arguments)
        force.force(_settle_inputs(found))
        (old, new), _ = self.site.values(arguments)
        owner = _owner(found)
        handle = handles.add(new, owner)
        handle.is_lazy = True
        updates.defer(handle, old, new)
        _done(found)
        if not self.escapes and not _compat.is_attended():
            updates.flush_handles([handle])
        return np.int32(handle.number)


@lru_cache(maxsize=1024)
def _stacker(count: int, shape: tuple[int, ...], dtype: Any) -> Function:
    return trace(lambda *xs: [jnp.stack(xs)], [jax.ShapeDtypeStruct(shape, dtype)] * count)


def stack(values: Sequence[Value]) -> Value:
    """Arrays of one shape as one array, without computing it."""
    (stacked,) = record(_stacker(len(values), values[0].shape, values[0].dtype), values)
    stacked.pieces = tuple(values)
    return stacked


@lru_cache(maxsize=1024)
def _row_of(shape: tuple[int, ...], dtype: Any) -> Function:
    structs = [jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((), np.int32)]
    return trace(lambda x, k: [jax.lax.dynamic_index_in_dim(x, k, 0, keepdims=False)], structs)


def rows(value: Value) -> list[Value]:
    """The rows of an array: of a stacked one its pieces, else views."""
    if value.pieces:
        return list(value.pieces)
    numbers = [np.int32(k) for k in range(value.shape[0])]
    function = _row_of(value.shape, value.dtype)
    return [record(function, [value, _in_memory(k, False)])[0] for k in numbers]
