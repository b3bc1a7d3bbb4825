"""Rules of sums of exponentials that are relative to their maximum, which `online` puts in place of others.

``sum(exp(x - max(x)) * f)`` over some dims, and the same as a contraction. A tile gives the maximum that it has seen,
and its sum relative to that: two tiles combine by rescaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jask_zarr._plan.labels import Index, Labels
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import Access, Arrays, Tile
from jask_zarr._plan.rules_reduce import access_dot as access_contraction
from jask_zarr._plan.rules_reduce import access_reduce
from jask_zarr._plan.wider import wider

REDUCE_SUM = core.Primitive("exp_reduce_sum")
"""Operands: `x`, and `f` if there is one."""
DOT_GENERAL = core.Primitive("exp_dot_general")
"""Operands: those of the contraction, of which one is `x`, and `f` if there is one."""

Params = Mapping[str, Any]


def params_of(equation: Equation, side: int) -> dict[str, Any]:
    """What the rules need to know: where `x` is, and how its dims lie in it and in the result."""
    operands, params = [v.aval for v in equation.source.invars], dict(equation.params)
    contract, batch, beside = params.get("axes"), (), 0
    if contract is None:
        contract, batch = (pair[side] for pair in params["dimension_numbers"])
        beside = operands[1 - side].ndim - len(contract) - len(batch)
    own = {"side": side, "axes": tuple(contract), "batch": tuple(batch), "beside": beside}
    terms, weights = math.prod(operands[side].shape[d] for d in contract), operands[side].dtype
    unit = 1.0 if jnp.finfo(weights).bits < 32 else 0.5 ** terms.bit_length()
    return {**params, **own, "weights": weights, "unit": unit}


def aligned(params: Params, thin: jax.Array) -> jax.Array:
    """An array of 1 element along the dims that end, with the dims of the result."""
    batch, ending = params["batch"], params["axes"]
    free = [d for d in range(thin.ndim) if d not in (*batch, *ending)]
    sizes = [[thin.shape[d] for d in dims] for dims in (batch, free)]
    stretched = [1] * params["beside"]
    dims = [*sizes[0], *stretched, *sizes[1]] if params["side"] else [*sizes[0], *sizes[1], *stretched]
    return thin.transpose(*batch, *free, *ending).reshape(dims)


def finite(maximum: jax.Array) -> jax.Array:
    """What is subtracted: an infinite maximum would give NaN."""
    return jnp.where(jnp.isfinite(maximum), maximum, jnp.zeros_like(maximum))


def access_sum(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    access = access_reduce(equation, slot, index, labels)
    return Access(access.operands * len(equation.inputs), access.computed, access.reduced)


def access_dot(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    access = access_contraction(equation, slot, index, labels)
    factors = (access.operands[equation.params["side"]],) * (len(equation.inputs) - 2)
    return Access((*access.operands, *factors), access.computed, access.reduced)


def relative_sum(equation: Equation, operands: Arrays) -> tuple[jax.Array, jax.Array]:
    """The maximum, with the dims of the result, and the sum relative to it, in a unit that keeps it as small as `f`."""
    params = equation.params
    side, ending, dtype = params["side"], params["axes"], params["weights"]
    count = 1 if equation.primitive is REDUCE_SUM else 2
    terms, factors = list(operands[:count]), operands[count:]
    maximum = jnp.max(terms[side], axis=ending, keepdims=True)
    terms[side] = jnp.exp(terms[side] - finite(maximum)).astype(dtype) * params["unit"]
    for factor in factors:
        terms[side] *= factor.astype(dtype)
    return aligned(params, maximum), _summed(equation, terms)


def _summed(equation: Equation, terms: Arrays) -> jax.Array:
    params = equation.params
    if equation.primitive is REDUCE_SUM:
        return jnp.sum(terms[0].astype(wider(terms[0].dtype)), axis=params["axes"])
    left, right = terms
    dtype = equation.source.outvars[0].aval.dtype
    numbers, precision = params["dimension_numbers"], params["precision"]
    return lax.dot_general(left, right, numbers, precision=precision, preferred_element_type=dtype)


def evaluate(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    return relative_sum(equation, operands)[1].astype(equation.source.outvars[0].aval.dtype)
