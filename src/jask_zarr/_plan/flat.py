"""Look-ups by an array of row numbers, made look-ups by a vector of them: rows follow each other along one dim."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
from jax import lax


def is_many_dimensional(equation: Any) -> bool:
    """Whether a gather has not one dim of row numbers; they are neighbours in the result."""
    if equation.primitive.name != "gather" or equation.params["dimension_numbers"].operand_batching_dims:
        return False
    batch = _batch_dims(equation)
    neighbours = all(b - a == 1 for a, b in pairwise(batch))
    return len(batch) != 1 and neighbours and 0 not in equation.outvars[0].aval.shape


def _batch_dims(equation: Any) -> list[int]:
    offsets = equation.params["dimension_numbers"].offset_dims
    return [d for d in range(len(equation.outvars[0].aval.shape)) if d not in offsets]


def flat_gather(equation: Any) -> Callable[..., Any]:
    """The same gather as a function that looks rows up by a vector of numbers."""
    batch, numbers = _batch_dims(equation), equation.params["dimension_numbers"]
    shape = equation.outvars[0].aval.shape
    first, more = (batch[0], len(batch) - 1) if batch else (0, -1)
    offsets = tuple(d - more if d >= first else d for d in numbers.offset_dims)
    params = {**equation.params, "dimension_numbers": numbers._replace(offset_dims=offsets)}

    def gather(table: jax.Array, rows: jax.Array) -> jax.Array:
        count = math.prod(rows.shape[:-1])
        found = equation.primitive.bind(table, lax.reshape(rows, (count, rows.shape[-1])), **params)
        return lax.reshape(found, shape)

    return gather
