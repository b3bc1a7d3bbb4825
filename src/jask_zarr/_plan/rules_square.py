"""The rule of sums of squared deviations from the mean, which `online` puts in place of others.

A tile gives its count, its mean, and the sum of squared deviations from that mean. Two tiles combine pairwise as in
Chan, Golub & LeVeque, "Algorithms for computing the sample variance: analysis and recommendations", The American
Statistician 37 (1983): nothing cancels, however far the mean is from zero. A mean of float64 is rounded to the type of
what it is subtracted from; then the sum of deviations, which would be zero, corrects for that, as in their two-pass
algorithm.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import Access, Arrays, Tile
from jask_zarr._plan.rules_exp import finite
from jask_zarr._plan.wider import wider

REDUCE_SUM = core.Primitive("square_reduce_sum")


def moments(equation: Equation, operands: Arrays) -> tuple[jax.Array, ...]:
    """Count, mean, and the sums of deviations from it and of their squares."""
    (x,), axes = operands, tuple(equation.params["axes"])
    wide = wider(x.dtype)
    mean = finite(jnp.mean(x.astype(wide), axis=axes, keepdims=True))
    away = lax.optimization_barrier(x).astype(wide) - mean  # or XLA holds `x` in the wider type for both sums
    squares = jnp.sum(jnp.square(away), axis=axes)
    rest = finite(jnp.sum(away, axis=axes)) if x.dtype == wide else jnp.zeros_like(squares)
    count = jnp.asarray(math.prod(x.shape[d] for d in axes), wide)
    return count, jnp.squeeze(mean, axes), rest, squares


def evaluate(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    return moments(equation, operands)[-1]
