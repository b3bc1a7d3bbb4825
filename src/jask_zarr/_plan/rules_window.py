"""Rules of primitives that slide a window: convolutions and reductions over windows.

Along a dim with windows, one element of the result needs a few neighbours of the operand: a tile is read with a halo.
What lies beyond the operand's ends is padding, which the rule puts there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jask_zarr._plan.labels import Axis, Index, Labels, axes
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import Access, Arrays, Tile, along, bind, fresh, shapes


def halo(axis: Axis | None, window: int, stride: int, low: int, dilation: int, base: int) -> Axis | None:
    """The operand axis of windows that begin at ``stride * i - low``; None if the dim must be whole."""
    if axis is None or base != 1 or axis.divisor != 1 or axis.origins or axis.rows or axis.backwards:
        return None
    reach = (window - 1) * dilation + 1
    return axis._replace(
        offset=axis.offset * stride - low, scale=axis.scale * stride, extra=axis.extra * stride + reach - stride
    )


def padded(tile: Tile, operand: jax.Array, axis: Axis | None, dim: int, size: int, value: Any) -> jax.Array:
    """The operand's tile with `value` where it reaches beyond the operand."""
    if axis is None:
        return operand
    at = tile.positions(axis)
    inside = along((at >= 0) & (at < size), dim, operand.ndim)
    return jnp.where(inside, operand, jnp.asarray(value, operand.dtype))


# --- reduce_window ----------------------------------------------------------------------------------------------------

IDENTITIES = {
    "reduce_window_sum": lambda dtype: 0,
    "reduce_window_max": lambda dtype: _extreme(dtype, -1),
    "reduce_window_min": lambda dtype: _extreme(dtype, 1),
}


def _extreme(dtype: Any, sign: int) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return sign * jnp.inf
    if dtype == jnp.bool_:
        return sign > 0
    return jnp.iinfo(dtype).max if sign > 0 else jnp.iinfo(dtype).min


def access_reduce_window(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    p = equation.params
    dims = zip(
        index,
        p["window_dimensions"],
        p["window_strides"],
        p["padding"],
        p["window_dilation"],
        p["base_dilation"],
        strict=True,
    )
    operand = tuple(halo(axis, w, s, low, d, b) for axis, w, s, (low, _), d, b in dims)
    computed = tuple(None if o is None else axis for o, axis in zip(operand, index, strict=True))
    return Access((operand,), computed)


def evaluate_reduce_window(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    (operand,) = operands
    identity = IDENTITIES[equation.name](operand.dtype)
    padding = list(equation.params["padding"])
    for d, axis in enumerate(access.operands[0]):
        if axis is not None:
            operand = padded(tile, operand, axis, d, shapes(equation)[0][d], identity)
            padding[d] = (0, 0)
    return bind(equation, (operand,), padding=tuple(padding))


def windowed_dims(equation: Equation) -> list[int]:
    """Dims along which windows overlap more than one element."""
    p = equation.params
    pairs = zip(p["window_dimensions"], p["window_strides"], p["padding"], strict=True)
    return [d for d, (w, s, pad) in enumerate(pairs) if (w, s, tuple(pad)) != (1, 1, (0, 0))]


# --- convolution ------------------------------------------------------------------------------------------------------


def _plain_convolution(equation: Equation) -> bool:
    return equation.params["feature_group_count"] == equation.params["batch_group_count"] == 1


def access_conv(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    """Batch and result features stream; summed features get a label; space streams with a halo."""
    p, (left_shape, right_shape) = equation.params, shapes(equation)
    numbers = p["dimension_numbers"]
    (batch, feature, *space), (out_feature, in_feature, *window) = numbers.lhs_spec, numbers.rhs_spec
    out_batch, result_feature, *out_space = numbers.out_spec
    plain = _plain_convolution(equation)
    summed = fresh(left_shape[feature], labels) if plain else None
    left: dict[int, Axis | None] = {
        batch: index[out_batch] if plain or p["batch_group_count"] == 1 else None,
        feature: summed,
    }
    right: dict[int, Axis | None] = {out_feature: index[result_feature] if plain else None, in_feature: summed}
    computed = list(index)
    computed[out_batch] = left[batch]
    computed[result_feature] = right[out_feature]
    for n, (d, w, o) in enumerate(zip(space, window, out_space, strict=True)):
        left[d] = halo(
            index[o],
            right_shape[w],
            p["window_strides"][n],
            p["padding"][n][0],
            p["rhs_dilation"][n],
            p["lhs_dilation"][n],
        )
        right[w] = None
        computed[o] = None if left[d] is None else index[o]
    reduced = () if summed is None else (summed.label,)
    labels.separate([*(axis.label for axis in axes(index)), *reduced])
    operands = tuple(left[d] for d in range(len(left))), tuple(right[d] for d in range(len(right)))
    return Access(operands, tuple(computed), reduced)


def evaluate_conv(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    left, right = operands
    padding = list(equation.params["padding"])
    for n, d in enumerate(equation.params["dimension_numbers"].lhs_spec[2:]):
        axis = access.operands[0][d]
        if axis is not None:
            left = padded(tile, left, axis, d, shapes(equation)[0][d], 0)
            padding[n] = (0, 0)
    changes = {"out_sharding": None} if "out_sharding" in equation.params else {}
    return bind(equation, (left, right), padding=tuple(padding), **changes)
