"""The one primitive, and `lift`, which makes any JAX function an operation on `DiskArray`s.

A lifted function is traced once for given shapes to a `Function`, which is called through the
primitive `Lifted`. Whatever JAX asks of the primitive (its jvp, its vjp, its transpose, its
batch) is the corresponding JAX transformation of the `Function`, called through `Lifted` again.
So every operation has derivatives of any order, and none has a rule of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat
from jask_zarr._tracing import dense, force, guards, sinks
from jask_zarr._tracing.arguments import Arguments, Static, Statics
from jask_zarr._tracing.array import filled
from jask_zarr._tracing.expr import Traced, Value, record, resident
from jask_zarr._tracing.function import Function, Mask, is_inexact, trace
from jask_zarr._tracing.hitype import DiskArray, DiskArrayType

MAX_DEPTH = 128
"""Recorded calls on top of one another before the operands are forced."""


def is_disk(x: Any) -> bool:
    """Is it a `DiskArray`, or a tracer of one?"""
    return isinstance(x, DiskArray) or (isinstance(x, _compat.Tracer) and isinstance(_compat.typeof(x), DiskArrayType))


class Lifted(_compat.HiPrimitive):
    """A call of a function on arrays of which some are on disk."""

    function: Function
    on_disk: Mask
    to_disk: Mask

    def __init__(self, function: Function, on_disk: Mask, to_disk: Mask) -> None:
        self.in_avals = _types(function.in_avals, on_disk)
        self.out_aval = _types(function.out_avals, to_disk)
        self.params = {"function": function, "on_disk": on_disk, "to_disk": to_disk}
        super().__init__()

    def run(self, *args: Any) -> tuple[Any, ...]:
        """Call it: at once if there is nothing for JAX to see."""
        if _compat.is_evaluating() and not any(isinstance(a, _compat.Tracer) for a in args):
            return tuple(self.expand(*args))
        return self(*args)

    def expand(self, *args: Any) -> tuple[Any, ...]:
        if not any(self.on_disk) and not any(self.to_disk):
            return tuple(self.function(*args))
        values = record(self.function, [operand(arg) for arg in args])
        in_memory = iter(_computed(_chosen(values, [not flag for flag in self.to_disk])))
        return tuple(
            DiskArray(value) if flag else next(in_memory) for value, flag in zip(values, self.to_disk, strict=True)
        )

    def vjp_fwd(self, moving: Sequence[bool], *args: Any) -> tuple[Any, Any]:
        moving = self._differentiable(moving)
        used = self.function.vjp(moving, self.function.inexact).used[: len(args)]
        kept = [arg if flag else None for arg, flag in zip(args, used, strict=True)]
        return self.run(*args), (tuple(kept), Static(moving))

    def vjp_bwd(self, residuals: Any, cts: Sequence[Any], *accums: Any) -> None:
        args, moving = residuals[0], residuals[1].value
        given = tuple(not _compat.is_zero(ct) and flag for ct, flag in zip(cts, self.function.inexact, strict=True))
        if not any(given) or not any(moving):
            return
        function = self.function.vjp(moving, given)
        found = _call(
            function,
            [*_placeholders(args, self.in_avals), *_chosen(cts, given)],
            [*self.on_disk, *_chosen(self.to_disk, given)],
            _chosen(self.on_disk, moving),
        )
        for accum, ct in zip(_chosen(accums, moving), found, strict=True):
            if _compat.is_linear_input(accum):
                accum.accum(ct)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.run(*primals), self._tangents_out(primals, tangents)

    def lin(self, moving: Any, *primals: Any) -> tuple[Any, Any]:
        used = self.function.jvp(self._differentiable(moving)).used[: len(primals)]
        kept = [arg if flag else None for arg, flag in zip(primals, used, strict=True)]
        return self.run(*primals), tuple(kept)

    def linearized(self, residuals: Sequence[Any], *tangents: Any) -> tuple[Any, ...]:
        return self._tangents_out(_placeholders(residuals, self.in_avals), tangents)

    def _tangents_out(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
        moving = self._differentiable([not _compat.is_zero(t) for t in tangents])
        zeros = [_compat.Zero(aval.to_tangent_aval()) for aval in self.out_aval]
        if not any(moving):
            return tuple(zeros)
        inexact = self.function.inexact
        found = iter(
            _call(
                self.function.jvp(moving),
                [*primals, *_chosen(tangents, moving)],
                [*self.on_disk, *_chosen(self.on_disk, moving)],
                _chosen(self.to_disk, inexact),
            )
        )
        pairs = zip(zeros, inexact, strict=True)
        return tuple(next(found) if flag else zero for zero, flag in pairs)

    def transpose(self, cts: Sequence[Any], *args: Any) -> None:
        linear = tuple(map(_compat.is_linear_input, args))
        given = tuple(not _compat.is_zero(ct) for ct in cts)
        if not any(given):
            return
        fixed = [not flag for flag in linear]
        found = _call(
            self.function.transpose(linear, given),
            [*_chosen(args, fixed), *_chosen(cts, given)],
            [*_chosen(self.on_disk, fixed), *_chosen(self.to_disk, given)],
            _chosen(self.on_disk, linear),
        )
        for accum, ct in zip(_chosen(args, linear), found, strict=True):
            accum.accum(ct)

    def batch(self, axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
        if all(dim is None for dim in dims):
            return self.run(*args), (None,) * len(self.out_aval)
        function = self.function.batch(axis.size, tuple(dims), axis.name)
        out = _call(function, args, self.on_disk, self.to_disk)
        return tuple(out), (0,) * len(out)

    def _differentiable(self, moving: Sequence[Any]) -> Mask:
        pairs = zip(moving, self.function.in_avals, strict=True)
        return tuple(bool(flag) and is_inexact(aval.dtype) for flag, aval in pairs)


def _types(avals: Sequence[Any], on_disk: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(
        DiskArrayType(a.shape, a.dtype, a.weak_type) if flag else a for a, flag in zip(avals, on_disk, strict=True)
    )


def _chosen(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, mask, strict=True) if flag]


def _call(function: Function, args: Sequence[Any], on_disk: Sequence[bool], to_disk: Sequence[bool]) -> Sequence[Any]:
    if not any(on_disk) and not any(to_disk):
        return function(*args)
    return Lifted(function, tuple(on_disk), tuple(to_disk)).run(*args)


def _placeholders(args: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Arguments whose values are not used: anything of the right type."""
    pairs = zip(args, types, strict=True)
    return [_blank(aval) if arg is None else arg for arg, aval in pairs]


def _blank(aval: Any) -> Any:
    if isinstance(aval, DiskArrayType) or aval.shape:
        zeros = filled(aval.shape, 0, aval.dtype)
        return zeros if isinstance(aval, DiskArrayType) else jnp.zeros(aval.shape, aval.dtype)
    return np.zeros((), aval.dtype)


def operand(x: Any) -> Value:
    """An argument as a value that can be recorded."""
    if isinstance(x, DiskArray):
        value = x._value
        force.check(value)
        if value.depth > MAX_DEPTH and not value.is_traced:
            force.force([value])
        return value
    aval = _compat.typeof(x)
    if isinstance(x, _compat.Tracer):
        leaf = Traced(x, is_handle=False)
        return Value(aval.shape, aval.dtype, aval.weak_type, leaf=leaf)
    array = x if isinstance(x, jax.Array) else np.array(x, aval.dtype)
    return resident(array, bool(aval.weak_type))


def _computed(values: Sequence[Value]) -> Sequence[Any]:
    """Results in memory: computed now, or by a callback of the function that is compiled."""
    if not values:
        return []
    if not _compat.is_evaluating() or any(value.is_traced for value in values):
        return sinks.compute(values)
    return [jnp.asarray(result) for result in force.to_memory(values)]


@dataclass(frozen=True)
class Call:
    """A traced call: what to call it on, and how to put its results together."""

    function: Function
    closed: tuple[Any, ...]
    """Arrays on disk, and tracers, that the function closes over: its first arguments."""
    out_tree: Any


def trace_call(fn: Callable[..., Any], avals: Sequence[Any]) -> Call:
    """Trace plain JAX code as a function of flat arguments.

    ``fn(*flat)`` may use `DiskArray`s from outside: they become arguments.
    """
    trees: list[Any] = []

    def flat(*args: Any) -> list[Any]:
        with guards.dense_tracing():
            leaves, tree = jax.tree.flatten(fn(*args))
            trees.append(tree)
            return [_plain(leaf) for leaf in leaves]

    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=bool(getattr(a, "weak_type", False))) for a in avals]
    jaxpr = jax.make_jaxpr(flat)(*structs)
    jaxpr, consts = _compat.hoist_constants(jaxpr)
    jaxpr = dense.lowered(jaxpr, Lifted)
    return _separated(jaxpr, consts, trees[-1])


def _plain(leaf: Any) -> Any:
    return guards.as_dense(leaf) if is_disk(leaf) else leaf


def _separated(jaxpr: Any, consts: tuple[Any, ...], out_tree: Any) -> Call:
    """Constants that JAX must see become arguments; the others stay with the function."""
    visible = [is_disk(c) or isinstance(c, _compat.Tracer) for c in consts]
    hidden = [not flag for flag in visible]
    jaxpr = dense.reordered(jaxpr, [k for k, v in enumerate(visible) if not v])
    return Call(Function(jaxpr, _chosen(consts, hidden)), tuple(_chosen(consts, visible)), out_tree)


def lift(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """Make a JAX function an operation on `DiskArray`s.

    The result takes arrays on disk wherever `fn` takes arrays, mixed with ordinary ones, in any
    pytree, and can be differentiated, mapped and compiled by JAX as any other operation. Nothing
    is computed until values are needed. Without an array on disk among its arguments it is `fn`.

    Parameters
    ----------
    fn : callable
        Any JAX function that has no side effects.
    static_argnums, static_argnames : optional
        Arguments that are structure, not data, as in `jax.jit`. Python numbers are data unless
        they are named here: another value does not trace `fn` again.

    Returns
    -------
    callable
        Its results of rank 0 are ordinary arrays; all others are `DiskArray`s.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jask_zarr as jz
    >>> scaled_norm = jz.lift(lambda a, scale: jnp.sqrt(jnp.sum((a * scale) ** 2)))
    >>> a = jz.ones((30, 30), chunks=(10, 10))
    >>> float(scaled_norm(a, 2))
    60.0
    >>> jax.grad(scaled_norm)(a, 2.0).shape
    (30, 30)
    """
    statics = Statics.of(fn, static_argnums, static_argnames)
    calls: dict[Any, Call] = {}

    @wraps(fn)
    def lifted(*args: Any, **kwargs: Any) -> Any:
        split = Arguments.of(args, kwargs, statics)
        if not any(map(is_disk, split.arrays)):
            return fn(*args, **kwargs)
        if guards.is_dense_tracing():
            return split.apply(fn, [_plain(array) for array in split.arrays])
        return recorded(fn, split, calls)

    return lifted


def recorded(fn: Callable[..., Any], split: Arguments, calls: dict[Any, Call]) -> Any:
    """A call of `fn`, recorded, whether or not an array on disk is among its arguments."""
    call = calls.get(split.key)
    if call is None:
        avals = [_compat.typeof(array) for array in split.arrays]
        call = trace_call(lambda *arrays: split.apply(fn, arrays), avals)
        if not any(isinstance(c, _compat.Tracer) for c in call.closed):
            calls[split.key] = call
    args = (*call.closed, *split.arrays)
    to_disk = tuple(bool(aval.shape) for aval in call.function.out_avals)
    outs = Lifted(call.function, tuple(map(is_disk, args)), to_disk).run(*args)
    return jax.tree.unflatten(call.out_tree, outs)


def _dense(x: Any) -> Any:
    """An array on disk as an ordinary tracer, inside plain JAX code that is being traced."""
    aval = _compat.typeof(x)
    identity = _identity(aval.shape, aval.dtype, aval.weak_type)
    return Lifted(identity, (True,), (False,))(x)[0]


@lru_cache(maxsize=1024)
def _identity(shape: tuple[int, ...], dtype: Any, weak_type: bool) -> Function:
    return trace(lambda x: [x], [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)])


guards.register("dense", _dense)
guards.register("add", lift(jnp.add))


def materialize(array: Any) -> Any:
    """Compute an array now, where it stands, also inside a compiled function.

    What is recorded on it afterwards starts from the computed values. The result is another
    array with the same values, so it stays valid when a store is updated.

    Parameters
    ----------
    array : DiskArray
        What to compute. An ordinary array is given back as it is.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.materialize(jz.arange(3) + 1).to_numpy()
    array([1, 2, 3], dtype=int32)
    """
    if not is_disk(array):
        return array
    aval = _compat.typeof(array)
    return Materialized(_identity(aval.shape, aval.dtype, aval.weak_type)).run(array)[0]


class Materialized(Lifted):
    """The identity, computed where it stands."""

    def __init__(self, function: Function) -> None:
        super().__init__(function, (True,), (True,))

    def expand(self, array: Any) -> tuple[Any, ...]:
        value = operand(array)
        if value.is_traced:
            leaf = Traced(sinks.materialize(value), is_handle=True)
            return (DiskArray(Value(value.shape, value.dtype, value.weak_type, leaf=leaf)),)
        (copy,) = record(self.function, [value])
        force.force([copy])
        return (DiskArray(copy),)


def compute(*arrays: Any) -> tuple[Any, ...]:
    """Compute several arrays together, so that they share the reading of what they have in common.

    Parameters
    ----------
    *arrays : pytrees of DiskArray
        What to compute.

    Returns
    -------
    tuple
        The arguments, now computed.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> a = jz.arange(4)
    >>> b, c = jz.compute(a + 1, a * 2)
    >>> c.to_numpy()
    array([0, 2, 4, 6], dtype=int32)
    """
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, DiskArray)]
    force.force([leaf._concrete("compute") for leaf in leaves])
    return arrays


__all__ = ["Call", "Lifted", "compute", "is_disk", "lift", "materialize", "recorded", "trace_call"]
