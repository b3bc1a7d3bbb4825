"""The equations that take the place of a sum: one relative to a maximum or a mean, and what follows from it.

The relative sum is an equation of its own kind: a tile gives it relative to its own maximum or mean. What follows is a
function of JAX arrays that are no larger than the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jask_zarr._plan import rules_exp, rules_square
from jask_zarr._plan.program import Builder, Equation
from jask_zarr._plan.rules_exp import Params, aligned, finite
from jask_zarr._plan.terms import Term

Absolute = Callable[..., jax.Array]
"""From what is summed, or sums of it, the shift and the outer factors to the sum that was asked for."""


def replace_sum(builder: Builder, equation: Equation, side: int, term: Term) -> None:
    """Add the equations that compute the same result from a relative sum."""
    with jax.enable_x64(True):
        way = {None: _exponentials, 2: _squares}.get(term.power, _products)
        sums, absolute = way(builder, equation, side, term)
        operands = [*sums, term.shift.value, *(thin.value for thin, _ in term.outer)]
        signed = absolute if term.sign > 0 else lambda *arrays: -absolute(*arrays)
        (result,) = builder.traced(signed, operands, equation.caller)
        builder.converted(result, equation)


def _relative(
    builder: Builder, equation: Equation, primitive: core.Primitive, params: Params, inputs: Sequence[int], dtype: Any
) -> int:
    aval = builder.avals[equation.outputs[0]].update(dtype=dtype, weak_type=False)
    variables = {"invars": [core.Var(builder.avals[v]) for v in inputs], "outvars": [core.Var(aval)]}
    source = equation.source.replace(primitive=primitive, **variables)
    result = builder.value(aval)
    builder.keep(Equation(primitive, {**params}, tuple(inputs), (result,), source, equation.caller))
    return result


def _scaled(array: jax.Array, scales: Sequence[jax.Array], divides: Sequence[bool]) -> jax.Array:
    for scale, divide in zip(scales, divides, strict=True):
        scale = scale.astype(array.dtype)
        array = array / scale if divide else array * scale
    return array


def _thins(term: Term, arrays: Sequence[jax.Array], shape: Sequence[int]) -> list[jax.Array]:
    """The shift and the outer factors, with 1 element along the axes that end."""
    thins = [term.shift, *(thin for thin, _ in term.outer)]
    return [thin.of(array, shape) for thin, array in zip(thins, arrays, strict=True)]


# --- exponentials -----------------------------------------------------------------------------------------------------


def _exponentials(builder: Builder, equation: Equation, side: int, term: Term) -> tuple[list[int], Absolute]:
    primitive = rules_exp.REDUCE_SUM if equation.name == "reduce_sum" else rules_exp.DOT_GENERAL
    inputs, params = list(equation.inputs), rules_exp.params_of(equation, side)
    inputs[side] = term.x
    if term.inner:
        factor = _factor(term, builder.avals[term.x].shape, params["weights"])
        inputs += builder.traced(factor, [v for v, _ in term.inner], equation.caller)
    dtype = jnp.promote_types(builder.avals[equation.outputs[0]].dtype, jnp.float32)
    relative = _relative(builder, equation, primitive, params, inputs, dtype)
    return [term.x, relative], _absolute_exponentials(term, params)


def _factor(term: Term, shape: Sequence[int], dtype: Any) -> Callable[..., jax.Array]:
    """What the exponential is multiplied by before it is summed."""
    divides = [divides for _, divides in term.inner]

    def factor(*arrays: jax.Array) -> jax.Array:
        return jnp.broadcast_to(_scaled(jnp.ones((1,) * len(shape), dtype), arrays, divides), shape)

    return factor


def _absolute_exponentials(term: Term, params: Params) -> Absolute:
    divides = [False, *(divides for _, divides in term.outer)]

    def absolute(x: jax.Array, total: jax.Array, *arrays: jax.Array) -> jax.Array:
        maximum = finite(jnp.max(x, axis=params["axes"], keepdims=True))
        shift, *outer = _thins(term, arrays, maximum.shape)
        scales = [aligned(params, array) for array in (jnp.exp(maximum - shift), *outer)]
        return _scaled(total, scales, divides) / params["unit"]

    return absolute


# --- squares ----------------------------------------------------------------------------------------------------------


def _squares(builder: Builder, equation: Equation, side: int, term: Term) -> tuple[list[int], Absolute]:
    axes = tuple(equation.params["axes"])
    relative = _relative(builder, equation, rules_square.REDUCE_SUM, {"axes": axes}, (term.x,), jnp.float64)
    return [term.x, relative], _absolute_squares(term, axes)


def _absolute_squares(term: Term, axes: tuple[int, ...]) -> Absolute:
    divides = [divides for _, divides in term.outer]

    def absolute(x: jax.Array, total: jax.Array, *arrays: jax.Array) -> jax.Array:
        mean = jnp.mean(x.astype(total.dtype), axis=axes, keepdims=True)
        shift, *outer = (thin.astype(total.dtype) for thin in _thins(term, arrays, mean.shape))
        # Infinities of both signs have no mean, yet their squares are infinite, whatever is subtracted.
        excess = jnp.where(jnp.isnan(mean), shift - shift, mean - shift)
        squares = total + _terms(x, axes) * jnp.squeeze(jnp.square(excess), axes)
        return _scaled(squares, [jnp.squeeze(scale, axes) for scale in outer], divides)

    return absolute


# --- differences and products -----------------------------------------------------------------------------------------


def _products(builder: Builder, equation: Equation, side: int, term: Term) -> tuple[list[int], Absolute]:
    axes, dtype = tuple(equation.params["axes"]), builder.avals[equation.outputs[0]].dtype
    factor = _factor(term, builder.avals[term.x].shape, jnp.promote_types(dtype, jnp.float32))
    weights = builder.traced(factor, [v for v, _ in term.inner], equation.caller) if term.inner else []
    return [*([term.x] if term.power else []), *weights], _absolute_products(term, axes)


def _absolute_products(term: Term, axes: tuple[int, ...]) -> Absolute:
    divides, summed = [divides for _, divides in term.outer], (term.power or 0) + bool(term.inner)

    def total(array: jax.Array) -> jax.Array:
        return jnp.sum(array, axis=axes, keepdims=True)

    def absolute(*arrays: jax.Array) -> jax.Array:
        operands = [array.astype(jnp.float64) for array in arrays[:summed]]
        shape = [1 if d in axes else n for d, n in enumerate(operands[0].shape)]
        shift, *outer = (thin.astype(jnp.float64) for thin in _thins(term, arrays[summed:], shape))
        match term.power, operands:
            case 0, [weights]:
                result = total(weights)
            case _, [x]:
                result = total(x) - shift * _terms(x, axes)
            case _, [x, weights]:  # infinities of both signs where one is subtracted
                result = jnp.where(jnp.isfinite(shift), total(x * weights) - shift * total(weights), jnp.nan)
        return jnp.squeeze(_scaled(result, outer, divides), axes)

    return absolute


def _terms(x: jax.Array, axes: Sequence[int]) -> int:
    """How many terms the sum has."""
    return math.prod(x.shape[d] for d in axes)
