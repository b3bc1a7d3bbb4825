"""Rules of primitives that move elements: shapes, slices, padding, positions.

A slice, a pad or a concatenation shifts a dim along its label. Where a tile then reaches beyond an operand, what is
read there is arbitrary and is masked by the rule that asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import jax
import jax.numpy as jnp
from jax import lax

from jask_zarr._plan.labels import Axis, Index, Labels, Origin
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import Access, Arrays, Tile, access_whole, along, fixed, out_shape, shapes, whole

LARGE = 1 << 16
"""Elements from which a part is read by itself although its place must be known first."""

# --- shapes -----------------------------------------------------------------------------------------------------------


def access_broadcast(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    shape, result = shapes(equation)[0], out_shape(equation)
    dims = equation.params["broadcast_dimensions"]
    operand = tuple(index[d] if size == result[d] else None for size, d in zip(shape, dims, strict=True))
    return Access((operand,), index)


def evaluate_broadcast(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    shape = tile.shape(out_shape(equation), access.computed)
    return lax.broadcast_in_dim(operands[0], shape, equation.params["broadcast_dimensions"])


def access_bitcast(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    """Elementwise, unless elements are split or merged along the last dim."""
    shape = shapes(equation)[0]
    if len(shape) == len(index):
        return Access((index,), index)
    common = min(len(shape), len(index))
    return Access((tuple(index[:common]) + whole(shape[common:]),), tuple(index[:common]) + whole(index[common:]))


def access_transpose(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    operand: list[Axis | None] = [None] * len(index)
    for axis, d in zip(index, equation.params["permutation"], strict=True):
        operand[d] = axis
    return Access((tuple(operand),), index)


def access_squeeze(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    rest = iter(index)
    gone = equation.params["dimensions"]
    return Access((tuple(None if d in gone else next(rest) for d in range(len(shapes(equation)[0]))),), index)


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Match runs of dims with equal products: ``(6, 4) -> (2, 3, 4)`` is ``[0] [0, 1]`` and ``[1] [2]``."""
    left = [d for d, n in enumerate(before) if n != 1]
    right = [d for d, n in enumerate(after) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left or right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := prod(before[d] for d in a)) != (q := prod(after[d] for d in b)):
            if p < q:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        groups.append((a, b))
    return groups


def access_reshape(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    before, after = shapes(equation)[0], out_shape(equation)
    if equation.params.get("dimensions") is not None or 0 in before:
        return access_whole(equation, slot, index, labels)
    operand: list[Axis | None] = [None] * len(before)
    computed: list[Axis | None] = [None] * len(after)
    for a, b in reshape_groups(before, after):
        operand[a[0]], computed[b[0]] = _reshape_axis(before, after, a, b, index[b[0]], labels)
    return Access((tuple(operand),), tuple(computed))


def _reshape_axis(
    before: Sequence[int], after: Sequence[int], a: list[int], b: list[int], axis: Axis | None, labels: Labels
) -> tuple[Axis | None, Axis | None]:
    """The leading dims of a group follow one label; the dims behind them are whole."""
    if axis is None or (len(a) == len(b) == 1):
        return axis, axis
    rest_before, rest_after = prod(before[d] for d in a[1:]), prod(after[d] for d in b[1:])
    common = gcd(rest_before, rest_after)
    if not axis.plain or labels.sizes[axis.label] % (rest_before // common):
        return None, None  # a slice of the result may end in the middle of the operand's rows
    labels.require_multiple(axis.label, rest_before // common)
    return Axis(axis.label, 0, rest_after // common, rest_before // common), axis


def evaluate_reshape(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    return lax.reshape(operands[0], tile.shape(out_shape(equation), access.computed), equation.params.get("dimensions"))


def shift(axis: Axis | None, start: int, stride: int = 1) -> tuple[Axis | None, bool]:
    """The operand axis of ``operand[start + stride * i]``; False if it cannot be followed."""
    if axis is None:
        return None, True
    if stride == 1:
        return axis._replace(offset=axis.offset + start), True
    if axis.divisor != 1 or axis.origins or axis.rows:
        return None, False
    moved = axis._replace(offset=axis.offset * stride + start, scale=axis.scale * stride, extra=axis.extra * stride)
    return moved, True


def access_slice(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    before, after = shapes(equation)[0], out_shape(equation)
    operand, computed = [], []
    for d, axis in enumerate(index):
        if before[d] == after[d]:
            moved, followed = axis, True
        else:
            moved, followed = shift(axis, starts[d], strides[d])
            if moved is None:
                moved, _ = shift(fixed(limits[d] - starts[d], labels), starts[d])
        operand.append(moved)
        computed.append(axis if followed else None)
    return Access((tuple(operand),), tuple(computed))


def evaluate_slice(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    parts = (
        slice(start, limit, stride) if axis is None else slice(None, None, stride)
        for axis, start, limit, stride in zip(access.operands[0], starts, limits, strides, strict=True)
    )
    return operands[0][tuple(parts)]


def access_reverse(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    """Each tile is reversed, and read from the other end."""
    gone = [d for d in equation.params["dimensions"] if not _may_go_backwards(index[d], labels)]
    computed = tuple(None if d in gone else axis for d, axis in enumerate(index))
    operand = list(computed)
    for d in equation.params["dimensions"]:
        axis = computed[d]
        operand[d] = axis and axis.reversed(out_shape(equation)[d])
    return Access((tuple(operand),), computed)


def _may_go_backwards(axis: Axis | None, labels: Labels) -> bool:
    return axis is not None and axis.divisor == 1 and axis.rows is None and labels.group(axis.label) is None


def access_unstack(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    d = equation.params["axis"]
    return Access(((*index[:d], None, *index[d:]),), index)


def access_split(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    d, sizes = equation.params["axis"], equation.params["sizes"]
    axis, _ = shift(index[d] or fixed(sizes[slot], labels), sum(sizes[:slot]))
    return Access(((*index[:d], axis, *index[d + 1 :]),), index)


def evaluate_split(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    d, sizes = equation.params["axis"], equation.params["sizes"]
    if access.operands[0][d] is not None:
        return operands[0]
    return lax.slice_in_dim(operands[0], sum(sizes[:slot]), sum(sizes[: slot + 1]), axis=d)


def access_concatenate(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    d, begin, operands = equation.params["dimension"], 0, []
    for shape in shapes(equation):
        axis, _ = shift(index[d], -begin)
        operands.append((*index[:d], axis, *index[d + 1 :]))
        begin += shape[d]
    return Access(tuple(operands), index)


def evaluate_concatenate(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    d = equation.params["dimension"]
    axis = access.computed[d]
    if axis is None:
        return lax.concatenate(operands, d)
    result, begin = operands[0], shapes(equation)[0][d]
    at = along(tile.positions(axis), d, result.ndim)
    for operand, shape in zip(operands[1:], shapes(equation)[1:], strict=True):
        result = jnp.where(at >= begin, operand, result)
        begin += shape[d]
    return result


def access_stack(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    d = equation.params["axis"]
    operand = (*index[:d], *index[d + 1 :])
    return Access(tuple(operand for _ in shapes(equation)), (*index[:d], None, *index[d + 1 :]))


def access_pad(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    operand, computed = [], []
    for axis, (low, high, interior) in zip(index, equation.params["padding_config"], strict=True):
        if (low, high, interior) == (0, 0, 0):
            operand.append(axis)
            computed.append(axis)
        elif interior:
            operand.append(None)
            computed.append(None)
        else:
            operand.append(shift(axis, -low)[0])
            computed.append(axis)
    return Access((tuple(operand), ()), tuple(computed))


def evaluate_pad(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    result, value = operands
    config = [
        (0, 0, 0) if axis is not None else c
        for axis, c in zip(access.computed, equation.params["padding_config"], strict=True)
    ]
    result = lax.pad(result, value, config)
    for d, (axis, (low, high, _)) in enumerate(zip(access.computed, equation.params["padding_config"], strict=True)):
        if axis is not None and (low, high) != (0, 0):
            at = along(tile.positions(axis), d, result.ndim)
            inside = (at >= low) & (at < low + shapes(equation)[0][d])
            result = jnp.where(inside, result, value)
    return result


def access_iota(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    return Access(tuple(() for _ in shapes(equation)), index)


def evaluate_iota(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    d, dtype = equation.params["dimension"], equation.params["dtype"]
    shape = tile.shape(out_shape(equation), access.computed)
    axis = access.computed[d]
    values = lax.iota(jnp.int64, shape[d]) if axis is None else tile.positions(axis)
    return lax.broadcast_in_dim(values.astype(dtype), shape, (d,))


# --- run-time slices --------------------------------------------------------------------------------------------------


def access_dynamic_slice(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    before, after = shapes(equation)[0], out_shape(equation)
    operand: list[Axis | None] = []
    for d, axis in enumerate(index):
        if axis is None and before[d] != after[d] and prod(before) > LARGE:
            axis = fixed(after[d], labels)
        if axis is not None and before[d] != after[d]:
            origin = Origin(equation.inputs[1 + d], before[d] - after[d])
            axis = axis._replace(origins=(*axis.origins, origin))
        operand.append(axis)
    return Access((tuple(operand), *(() for _ in before)), index)


def evaluate_dynamic_slice(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    result, *starts = operands
    for d, axis in enumerate(access.operands[0]):
        if axis is None and result.shape[d] != out_shape(equation)[d]:
            result = lax.dynamic_slice_in_dim(result, starts[d], out_shape(equation)[d], d)
    return result


def access_dynamic_update_slice(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    before, update = shapes(equation)[:2]
    needed: list[Axis | None] = []
    for d, axis in enumerate(index):
        if axis is not None and before[d] != update[d]:
            origin = Origin(equation.inputs[2 + d], before[d] - update[d], -1)
            axis = axis._replace(origins=(*axis.origins, origin)) if update[d] > 1 else None
        needed.append(axis)
    return Access((index, tuple(needed), *(() for _ in before)), index)


def evaluate_dynamic_update_slice(
    equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays
) -> jax.Array:
    base, update, *starts = operands
    before, patch = shapes(equation)[:2]
    if 0 in patch:
        return base
    inside = jnp.ones((1,) * base.ndim, bool)
    for d, axis in enumerate(access.computed):
        if before[d] == patch[d]:
            continue
        start = jnp.clip(starts[d].astype(jnp.int64), 0, before[d] - patch[d])
        at = lax.iota(jnp.int64, base.shape[d]) if axis is None else tile.positions(axis)
        if access.operands[1][d] is None:
            update = jnp.take(update, at - start, axis=d, mode="clip")
        inside &= along((at >= start) & (at < start + patch[d]), d, base.ndim)
    return jnp.where(inside, update, base)
