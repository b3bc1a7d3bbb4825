"""`jit`: ordinary JAX code, planned as a whole and run out of core, outside XLA.

1. The function is traced once for given shapes and dtypes, at full shape; nothing is computed.
2. All its outputs are planned jointly: what they share is read and computed once.
3. An output that matches a donated input takes its place: it is written into the same store, chunk by chunk, and all
   stores are replaced together at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from jask_zarr import _compat, _config
from jask_zarr._tracing import force
from jask_zarr._tracing.arguments import Arguments, Hole, Statics
from jask_zarr._tracing.expr import Stored, Value, record, stored
from jask_zarr._tracing.hitype import DiskArray
from jask_zarr._tracing.lift import Call, is_disk, lift, operand, trace_call
from jask_zarr._tracing.sources import where

MEMORY_SHARE = 16
"""Outputs larger than one part in so many of the memory budget are `DiskArray`s."""


def jit(
    fn: Callable[..., Any],
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    out_on_disk: bool | None = None,
) -> Callable[..., Any]:
    """Run ordinary JAX code on arrays that are larger than memory.

    `fn` is plain JAX (`jax.numpy`, `jax.grad`, optax, ...): replace ``jax.jit`` by ``jask_zarr.jit``. It is traced
    once for given shapes and dtypes, and planned as a whole: a loss, its gradients and an optimizer's update share
    their passes over the data.

    Parameters
    ----------
    fn : callable
        Any JAX function without side effects; pytrees in and out.
    donate_argnums : int or sequence of int
        Arguments that the function's outputs replace. An output with the shape and dtype of a donated array (matched
        in order, as in `jax.jit`) is written into that array's own store. All stores change together, after everything
        was computed. A donated array in a store must not be used afterwards (`StaleArrayError`).
    static_argnums, static_argnames : optional
        Arguments that are structure, not data, as in `jax.jit`.
    out_on_disk : bool, optional
        Whether outputs that replace no donated input are `DiskArray`s (True) or arrays in memory (False). By default
        an output is a `DiskArray` if it has the shape and dtype of an input that is one, or is larger than a sixteenth
        of the memory budget. Outputs of rank 0 are always in memory.

    Returns
    -------
    callable
        The function, out of core. Under JAX's transformations it is the same as ``lift(fn)``.

    Raises
    ------
    MemoryBudgetError
        If something that must be whole in memory does not fit the budget.
    StaleArrayError
        If an argument's store was replaced since the array was made.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np, jask_zarr as jz
    >>> x = jz.DiskArray.from_numpy(np.ones((128, 3), "float32"), chunks=(16, 3))
    >>> loss = lambda w, x: jnp.mean((x @ w - 1.0) ** 2)
    >>> value, gradient = jz.jit(jax.value_and_grad(loss))(jnp.zeros(3), x)
    >>> float(value), gradient.tolist()
    (1.0, [-2.0, -2.0, -2.0])
    """
    donated = {donate_argnums} if isinstance(donate_argnums, int) else set(donate_argnums)
    statics = Statics.of(fn, static_argnums, static_argnames)
    lifted = lift(fn, static_argnums=static_argnums, static_argnames=static_argnames)
    calls: dict[Any, Call] = {}

    @wraps(fn)
    def planned(*args: Any, **kwargs: Any) -> Any:
        split = Arguments.of(args, kwargs, statics)
        if any(isinstance(array, _compat.Tracer) for array in split.arrays):
            return lifted(*args, **kwargs)
        call = _traced(fn, split, calls)
        flags = _donated_arrays(split, donated)
        outputs = _run(call, split.arrays, flags, out_on_disk)
        return jax.tree.unflatten(call.out_tree, outputs)

    return planned


def planned_outputs(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Value], list[Any]]:
    """What a call of ``jit(fn)`` would compute, and where to; for those who want to read the plan."""
    split = Arguments.of(args, kwargs, Statics.of(fn, (), ()))
    call = _traced(fn, split, {})
    outputs = _placed(call, split.arrays, [False] * len(split.arrays), None)
    return [o.value for o in outputs], [force.CHOOSE if o.on_disk else None for o in outputs]


def _traced(fn: Callable[..., Any], split: Arguments, calls: dict[Any, Call]) -> Call:
    if split.key not in calls:
        avals = [_compat.typeof(array) for array in split.arrays]
        calls[split.key] = trace_call(lambda *arrays: split.apply(fn, arrays), avals)
    return calls[split.key]


def _donated_arrays(split: Arguments, donated: set[int]) -> list[bool]:
    """Which of the flat arrays belong to a donated argument."""
    args, _ = jax.tree.unflatten(split.tree, range(len(split.rest)))
    leaves = {leaf for n in donated for leaf in jax.tree.leaves(args[n : n + 1])}
    return [n in leaves for n, leaf in enumerate(split.rest) if isinstance(leaf, Hole)]


@dataclass(frozen=True)
class _Output:
    """Where one output goes."""

    value: Value
    source: Any = None
    """The store of the donated array that it replaces."""
    on_disk: bool = False
    unchanged: bool = False
    """It is the donated array itself."""


def _run(call: Call, arrays: Sequence[Any], donated: Sequence[bool], out_on_disk: bool | None) -> list[Any]:
    _refuse_one_store_twice([x for x, flag in zip(arrays, donated, strict=True) if flag])
    outputs = _placed(call, arrays, donated, out_on_disk)
    pairs = [(o.source, o.value) for o in outputs if o.source is not None and not o.unchanged]
    kept = [o.value for o in outputs if o.on_disk and o.source is None]
    wanted = [o.value for o in outputs if not o.on_disk]
    fresh, results = force.replace(pairs, kept, wanted)
    sources, found = iter(fresh), iter(results)
    return [_output(o, sources, found) for o in outputs]


def _refuse_one_store_twice(donated: Sequence[Any]) -> None:
    seen: set[int] = set()
    for source in filter(None, map(_store, donated)):
        if id(source.origin) in seen:
            raise ValueError(
                f"two of the donated arguments are {where(source.array)}, which can receive only one new value: donate "
                "it once, or give one of them a store of its own first, with .save(path)"
            )
        seen.add(id(source.origin))


def _output(output: _Output, sources: Any, found: Any) -> Any:
    if not output.on_disk:
        return jnp.asarray(next(found))
    if output.source is None:
        return DiskArray(output.value)
    return DiskArray(stored(output.source if output.unchanged else next(sources)))


def _placed(call: Call, arrays: Sequence[Any], donated: Sequence[bool], out_on_disk: bool | None) -> list[_Output]:
    """Match outputs with donated inputs of the same shape and dtype, in order; place the others.

    An output that is an input as it stands is a copy, unless it takes the place of that very input.
    """
    operands = [operand(x) for x in (*call.closed, *arrays)]
    free = [x for x, flag in zip(arrays, donated, strict=True) if flag and hasattr(x, "shape")]
    disk_shapes = {(tuple(x.shape), np.dtype(x.dtype)) for x in arrays if is_disk(x)}
    outputs = []
    for value, same in zip(record(call.function, operands), _passed_through(call, operands), strict=True):
        place = next((x for x in free if (tuple(x.shape), np.dtype(x.dtype)) == (value.shape, value.dtype)), None)
        if place is None:
            outputs.append(_Output(value, None, _on_disk(value, disk_shapes, out_on_disk)))
        else:
            free = [x for x in free if x is not place]
            source = _store(place)
            unchanged = same is not None and isinstance(same.leaf, Stored) and same.leaf.source is source
            outputs.append(_Output(value, source, is_disk(place), unchanged))
    return outputs


def _passed_through(call: Call, operands: Sequence[Value]) -> list[Value | None]:
    """For each output, the input that it is, if it is one as it stands."""
    jaxpr = call.function.jaxpr.jaxpr
    inputs = dict(zip(jaxpr.invars[len(call.function.consts) :], operands, strict=True))
    return [None if isinstance(atom, Literal) else inputs.get(atom) for atom in jaxpr.outvars]


def _store(array: Any) -> Any:
    """The source that a donated array's successor is written to; scratch and memory are not updated but replaced."""
    leaf = array._value.leaf if isinstance(array, DiskArray) else None
    return leaf.source if isinstance(leaf, Stored) and not leaf.source.is_scratch else None


def _on_disk(value: Value, disk_shapes: set[Any], out_on_disk: bool | None) -> bool:
    if not value.shape:
        return False
    if out_on_disk is not None:
        return out_on_disk
    return (value.shape, value.dtype) in disk_shapes or value.nbytes > _config.memory_budget() // MEMORY_SHARE
