"""Rules of primitives that end dims: reductions and contractions.

Each dim that ends gets a fresh label. If that label is cut into tiles, one tile gives a partial result.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jask_zarr._plan.labels import Axis, Index, Labels, axes
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import Access, Arrays, Rule, Tile, bind, fresh, shapes
from jask_zarr._plan.wider import wider_inexact

# --- reductions -------------------------------------------------------------------------------------------------------


def access_reduce(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    rest, reduced, operand = iter(index), [], []
    gone = equation.params["axes"]
    for d, size in enumerate(shapes(equation)[0]):
        axis = fresh(size, labels) if d in gone else next(rest)
        operand.append(axis)
        if d in gone and axis is not None:
            reduced.append(axis.label)
    labels.separate([axis.label for axis in axes(tuple(operand))])
    return Access((tuple(operand),), index, tuple(reduced))


def evaluate_reduce(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    changes = {"out_sharding": None} if "out_sharding" in equation.params else {}
    return bind(equation, operands, **changes)


def evaluate_wider(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    """Sums and products are taken in the wider type, also those that end within a tile."""
    (operand,) = operands
    wide = wider_inexact(operand.dtype)
    if wide is None:
        return evaluate_reduce(equation, slot, access, tile, operands)
    return evaluate_reduce(equation, slot, access, tile, (operand.astype(wide),)).astype(operand.dtype)


def evaluate_extreme(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    """NaN wins. XLA loses it on the CPU, in JAX 0.10 to 0.12, among more than some thousand elements."""
    result, (operand,) = evaluate_reduce(equation, slot, access, tile, operands), operands
    if not jnp.issubdtype(operand.dtype, jnp.floating):
        return result
    missing = jnp.any(jnp.isnan(operand), axis=equation.params["axes"])
    return jnp.where(missing, jnp.asarray(jnp.nan, result.dtype), result)


def reduction(combine: str) -> Rule:
    return Rule(access_reduce, evaluate_extreme if combine in ("max", "min") else evaluate_reduce, combine)


def access_dot(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    (left_contract, right_contract), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_shape, right_shape = shapes(equation)
    contracted = [fresh(left_shape[d], labels) for d in left_contract]
    left: dict[int, Axis | None] = dict(zip(left_contract, contracted, strict=True))
    right: dict[int, Axis | None] = dict(zip(right_contract, contracted, strict=True))
    rest = iter(index)
    for a, b in zip(left_batch, right_batch, strict=True):
        left[a] = right[b] = next(rest)
    for d in range(len(left_shape)):
        if d not in left:
            left[d] = next(rest)
    for d in range(len(right_shape)):
        if d not in right:
            right[d] = next(rest)
    reduced = tuple(axis.label for axis in contracted if axis is not None)
    labels.separate([*(axis.label for axis in axes(index)), *reduced])
    operands = tuple(left[d] for d in range(len(left))), tuple(right[d] for d in range(len(right)))
    return Access(operands, index, reduced)


def evaluate_dot(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    return bind(equation, operands, out_sharding=None)


def flops_of_dot(equation: Equation) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2.0 * math.prod(shapes(equation)[0][d] for d in contracted)
