"""A traced JAX function, and the functions that JAX's transformations make of it.

A `Function` is a flat jaxpr without constants. It compares by identity, and each of its
derivatives is traced once and kept: the second step of a loop meets the same objects and
traces nothing. There is no rule for any single operation here, or anywhere in this layer.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat

Mask = tuple[bool, ...]


def kept(method: Callable[..., "Function"]) -> Callable[..., "Function"]:
    """Keep what a method derives, with the function it was derived from."""

    @wraps(method)
    def wrapper(self: "Function", *key: Any) -> "Function":
        entry = (method.__name__, *key)
        if entry not in self.derived:
            self.derived[entry] = method(self, *key)
        return self.derived[entry]

    return wrapper


class Function:
    """A flat, traced function: ``jaxpr`` takes ``(*consts, *args)``."""

    __slots__ = ("__dict__", "__weakref__", "consts", "derived", "jaxpr")

    def __init__(self, jaxpr: Any, consts: Sequence[Any] = ()) -> None:
        self.jaxpr = jaxpr
        self.consts = tuple(consts)
        self.derived: dict[Any, Function] = {}

    def __repr__(self) -> str:
        shapes = ", ".join(aval.str_short() for aval in self.in_avals)
        return f"Function({shapes})"

    @cached_property
    def in_avals(self) -> tuple[Any, ...]:
        return tuple(self.jaxpr.in_avals[len(self.consts) :])

    @cached_property
    def out_avals(self) -> tuple[Any, ...]:
        return tuple(self.jaxpr.out_avals)

    @cached_property
    def used(self) -> Mask:
        """Which arguments the results depend on."""
        _, used = _compat.dce(self.jaxpr, [True] * len(self.out_avals))
        return tuple(used[len(self.consts) :])

    @cached_property
    def contracts(self) -> bool:
        """Is it costly to compute again (a matmul, a convolution, a loop)?"""
        return any(_is_costly(eqn) for eqn in self.jaxpr.jaxpr.eqns)

    def __call__(self, *args: Any) -> list[Any]:
        return _compat.as_function(self.jaxpr)(*self.consts, *args)

    @kept
    def jvp(self, moving: Mask) -> "Function":
        """``(*args, *tangents of moving args)`` to the tangents of the inexact results."""

        def tangents(*values: Any) -> list[Any]:
            args, dots = values[: len(moving)], values[len(moving) :]
            moved = _restricted(self, args, moving)
            _, out = jax.jvp(moved, tuple(_chosen(args, moving)), tuple(dots))
            return _chosen(out, self.inexact)

        return trace(tangents, (*self.in_avals, *_tangents(_chosen(self.in_avals, moving))))

    @kept
    def vjp(self, moving: Mask, given: Mask) -> "Function":
        """``(*args, *given cotangents)`` to the cotangents of the moving args."""

        def cotangents(*values: Any) -> Any:
            args, cts = values[: len(moving)], iter(values[len(moving) :])
            moved = _restricted(self, args, moving)
            _, pull = jax.vjp(moved, *_chosen(args, moving))
            return pull(_filled(self.out_avals, given, cts))

        return trace(cotangents, (*self.in_avals, *_tangents(_chosen(self.out_avals, given))))

    @kept
    def transpose(self, linear: Mask, given: Mask) -> "Function":
        """``(*other args, *given cotangents)`` to the cotangents of the linear args."""
        others = [not flag for flag in linear]
        count = sum(others)

        def cotangents(*values: Any) -> Any:
            rest, cts = iter(values[:count]), iter(values[count:])
            args = [None if flag else next(rest) for flag in linear]
            moved = _restricted(self, args, linear)
            pull = jax.linear_transpose(moved, *_structs(_chosen(self.in_avals, linear)))
            return pull(_filled(self.out_avals, given, cts))

        avals = (*_chosen(self.in_avals, others), *_tangents(_chosen(self.out_avals, given)))
        return trace(cotangents, avals)

    @kept
    def batch(self, size: int, dims: tuple[int | None, ...], axis_name: Any) -> "Function":
        """Mapped over `dims` of the args; every result is mapped over its first dim."""
        mapped = jax.vmap(
            lambda *args: tuple(self(*args)),
            in_axes=dims,
            axis_size=size,
            axis_name=axis_name if isinstance(axis_name, str) else None,
        )
        return trace(mapped, [_batched(a, size, d) for a, d in zip(self.in_avals, dims, strict=True)])

    @cached_property
    def inexact(self) -> Mask:
        """Which results have tangents."""
        return tuple(is_inexact(aval.dtype) for aval in self.out_avals)


def trace(function: Callable[..., Any], avals: Sequence[Any]) -> Function:
    """Trace a function of flat arguments (results: any sequence of arrays)."""
    jaxpr = jax.make_jaxpr(function)(*_structs(avals))
    return Function(*_compat.hoist_constants(jaxpr))


def is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _is_costly(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in ("dot_general", "conv_general_dilated", "scan", "while", "fft", "sort"):
        return True
    inner = [p for p in eqn.params.values() if hasattr(p, "jaxpr")]
    return any(_is_costly(sub) for jaxpr in inner for sub in jaxpr.jaxpr.eqns)


def _chosen(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, mask, strict=True) if flag]


def _restricted(function: Function, args: Sequence[Any], mask: Mask) -> Callable[..., Any]:
    """The function of the masked arguments alone; the others are fixed."""

    def restricted(*chosen: Any) -> tuple[Any, ...]:
        rest = iter(chosen)
        full = [next(rest) if flag else arg for arg, flag in zip(args, mask, strict=True)]
        return tuple(function(*full))

    return restricted


def _filled(avals: Sequence[Any], given: Mask, cotangents: Iterator[Any]) -> tuple[Any, ...]:
    """All cotangents, the missing ones as zeros."""
    pairs = zip(avals, given, strict=True)
    return tuple(next(cotangents) if flag else _zeros(aval) for aval, flag in pairs)


def _zeros(aval: Any) -> Any:
    dtype = _compat.tangent_dtype(aval.dtype)
    return np.zeros(aval.shape, dtype) if not is_inexact(dtype) else jnp.zeros(aval.shape, dtype)


def _tangents(avals: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(a.shape, _compat.tangent_dtype(a.dtype)) for a in avals]


def _structs(avals: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=bool(getattr(a, "weak_type", False))) for a in avals]


def _batched(aval: Any, size: int, dim: int | None) -> Any:
    if dim is None:
        return aval
    shape = (*aval.shape[:dim], size, *aval.shape[dim:])
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)
