"""The rule table: how each primitive relates the dims of its operands to those of its result.

A rule answers two questions.

1. *access*: to compute one result at an index, at which index is each operand needed, and which fresh labels are
   reduced on the way? A dim that the primitive cannot stream is asked for whole; the result is then computed whole
   along it and cut afterwards.
2. *evaluate*: given operand tiles, bind the primitive at tile shapes.

Reductions also name how the partial results of several tiles combine. A primitive without a rule gets `WHOLE`: every
dim of every operand at once, always right, never streaming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jask_zarr._plan.labels import Axis, Index, Labels, Origin, axes
from jask_zarr._plan.program import Equation


@dataclass(frozen=True, slots=True)
class Access:
    """What one result needs."""

    operands: tuple[Index, ...]
    computed: Index
    """The index at which the primitive computes its result; where it is whole and the demand is not, it is cut."""
    reduced: tuple[int, ...] = ()


class Tile(Protocol):
    """The tile at hand: static sizes, traced starts."""

    def shape(self, shape: Sequence[int], index: Index) -> tuple[int, ...]: ...
    def start(self, axis: Axis) -> jax.Array: ...
    def spans(self, label: int) -> bool: ...
    def label_start(self, label: int) -> jax.Array: ...


Evaluate = Callable[[Equation, int, "Access", Tile, Sequence[jax.Array]], jax.Array]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    access: Callable[[Equation, int, Index, Labels], Access]
    evaluate: Evaluate
    combine: str | None = None
    """How partial results over split labels combine; None if the rule reduces nothing."""
    fuses: bool = True
    """XLA computes it inside a loop of its consumer: no buffer of its own."""


def shapes(equation: Equation) -> list[tuple[int, ...]]:
    return [v.aval.shape for v in equation.source.invars]


def out_shape(equation: Equation, slot: int = 0) -> tuple[int, ...]:
    return equation.source.outvars[slot].aval.shape


def whole(shape: Sequence[int]) -> Index:
    return (None,) * len(shape)


def fresh(size: int, labels: Labels) -> Axis | None:
    return Axis(labels.fresh(size)) if size > 1 else None


def bind(equation: Equation, operands: Sequence[jax.Array], **changes: Any) -> Any:
    return equation.primitive.bind(*operands, **{**equation.params, **changes})


# --- whole ------------------------------------------------------------------------------------------------------------


def access_whole(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    return Access(tuple(whole(s) for s in shapes(equation)), whole(out_shape(equation, slot)))


def evaluate_source(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    """The primitive with its own parameters: right for any operand it would take."""
    primitive = equation.primitive
    with equation.source.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results[slot] if primitive.multiple_results else results


WHOLE = Rule(access_whole, evaluate_source, fuses=False)


# --- elementwise ------------------------------------------------------------------------------------------------------


def access_elementwise(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    result = out_shape(equation, slot)
    return Access(tuple(_stretched(s, result, index) for s in shapes(equation)), index)


def _stretched(shape: Sequence[int], result: Sequence[int], index: Index) -> Index:
    """An operand's index: dims of size 1 are stretched over the result's, scalars have none."""
    if not shape:
        return ()
    return tuple(axis if n == m else None for n, m, axis in zip(shape, result, index, strict=True))


def evaluate_bind(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    results = bind(equation, operands)
    return results[slot] if equation.primitive.multiple_results else results


ELEMENTWISE = Rule(access_elementwise, evaluate_bind)

ELEMENTWISE_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not
optimization_barrier or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round
rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan
tanh xor zeta pvary mulhi threefry2x32
""".split()


# --- shapes -----------------------------------------------------------------------------------------------------------


def access_broadcast(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    shape, result = shapes(equation)[0], out_shape(equation)
    dims = equation.params["broadcast_dimensions"]
    operand = tuple(index[d] if size == result[d] else None for size, d in zip(shape, dims, strict=True))
    return Access((operand,), index)


def evaluate_broadcast(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    shape = tile.shape(out_shape(equation), access.computed)
    return lax.broadcast_in_dim(operands[0], shape, equation.params["broadcast_dimensions"])


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
    if not axis.plain:
        return None, None
    rest_before, rest_after = prod(before[d] for d in a[1:]), prod(after[d] for d in b[1:])
    common = gcd(rest_before, rest_after)
    labels.require_multiple(axis.label, rest_before // common)
    return Axis(axis.label, 0, rest_after // common, rest_before // common), axis


def evaluate_reshape(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    return lax.reshape(operands[0], tile.shape(out_shape(equation), access.computed), equation.params.get("dimensions"))


def shift(axis: Axis | None, start: int, stride: int = 1) -> tuple[Axis | None, bool]:
    """The operand axis of ``operand[start + stride * i]``; False if it cannot be followed."""
    if axis is None:
        return None, True
    if stride == 1:
        return axis._replace(offset=axis.offset + start), True
    if axis.divisor != 1 or axis.origins:
        return None, False
    return axis._replace(offset=axis.offset * stride + start, scale=axis.scale * stride), True


def access_slice(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    starts = equation.params["start_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    before, after = shapes(equation)[0], out_shape(equation)
    operand, computed = [], []
    for d, axis in enumerate(index):
        if before[d] == after[d]:
            moved, followed = axis, True
        else:
            moved, followed = shift(axis, starts[d], strides[d])
        operand.append(moved)
        computed.append(axis if followed else None)
    return Access((tuple(operand),), tuple(computed))


def evaluate_slice(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    cut = [slice(None) if access.operands[0][d] is not None and strides[d] == 1 else
           slice(None, None, strides[d]) if access.operands[0][d] is not None else
           slice(starts[d], limits[d], strides[d]) for d in range(len(starts))]
    return operands[0][tuple(cut)]


def access_split(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    d, sizes = equation.params["axis"], equation.params["sizes"]
    axis, _ = shift(index[d], sum(sizes[:slot]))
    return Access(((*index[:d], axis, *index[d + 1 :]),), index)


def evaluate_split(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    d, sizes = equation.params["axis"], equation.params["sizes"]
    if access.operands[0][d] is not None:
        return operands[0]
    return lax.slice_in_dim(operands[0], sum(sizes[:slot]), sum(sizes[: slot + 1]), axis=d)


def positions(tile: Tile, axis: Axis, length: int) -> jax.Array:
    """Element numbers that a tile covers along a dim."""
    return tile.start(axis) + lax.iota(jnp.int64, length)


def along(vector: jax.Array, dim: int, rank: int) -> jax.Array:
    return vector.reshape((1,) * dim + (-1,) + (1,) * (rank - dim - 1))


def access_concatenate(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    d, begin, operands = equation.params["dimension"], 0, []
    for shape in shapes(equation):
        axis, _ = shift(index[d], -begin)
        operands.append((*index[:d], axis, *index[d + 1 :]))
        begin += shape[d]
    return Access(tuple(operands), index)


def evaluate_concatenate(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    d = equation.params["dimension"]
    axis = access.computed[d]
    if axis is None:
        return lax.concatenate(operands, d)
    result, begin = operands[0], shapes(equation)[0][d]
    at = along(positions(tile, axis, result.shape[d]), d, result.ndim)
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


def evaluate_pad(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    result, value = operands
    config = [(0, 0, 0) if axis is not None else c for axis, c in zip(access.computed, equation.params["padding_config"], strict=True)]
    result = lax.pad(result, value, config)
    for d, (axis, (low, high, _)) in enumerate(zip(access.computed, equation.params["padding_config"], strict=True)):
        if axis is not None and (low, high) != (0, 0):
            at = along(positions(tile, axis, result.shape[d]), d, result.ndim)
            inside = (at >= low) & (at < low + shapes(equation)[0][d])
            result = jnp.where(inside, result, value)
    return result


def access_iota(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    return Access(tuple(() for _ in shapes(equation)), index)


def evaluate_iota(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    d, dtype = equation.params["dimension"], equation.params["dtype"]
    shape = tile.shape(out_shape(equation), access.computed)
    axis = access.computed[d]
    values = lax.iota(jnp.int64, shape[d]) if axis is None else positions(tile, axis, shape[d])
    return lax.broadcast_in_dim(values.astype(dtype), shape, (d,))


# --- run-time slices --------------------------------------------------------------------------------------------------


def access_dynamic_slice(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    before, after = shapes(equation)[0], out_shape(equation)
    operand: list[Axis | None] = []
    for d, axis in enumerate(index):
        if axis is not None and before[d] != after[d]:
            origin = Origin(equation.inputs[1 + d], before[d] - after[d])
            axis = axis._replace(origins=(*axis.origins, origin))
        operand.append(axis)
    return Access((tuple(operand), *(() for _ in before)), index)


def evaluate_dynamic_slice(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
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


def evaluate_dynamic_update_slice(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    base, update, *starts = operands
    before, patch = shapes(equation)[:2]
    inside = jnp.ones((1,) * base.ndim, bool)
    for d, axis in enumerate(access.computed):
        if before[d] == patch[d]:
            continue
        start = jnp.clip(starts[d].astype(jnp.int64), 0, before[d] - patch[d])
        at = lax.iota(jnp.int64, base.shape[d]) if axis is None else positions(tile, axis, base.shape[d])
        if access.operands[1][d] is None:
            update = jnp.take(update, at - start, axis=d, mode="clip")
        inside &= along((at >= start) & (at < start + patch[d]), d, base.ndim)
    return jnp.where(inside, update, base)


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


def evaluate_reduce(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    changes = {"out_sharding": None} if "out_sharding" in equation.params else {}
    return bind(equation, operands, **changes)


def reduction(combine: str) -> Rule:
    return Rule(access_reduce, evaluate_reduce, combine)


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


def evaluate_dot(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    return bind(equation, operands, out_sharding=None)


# --- dims that must be whole, others stream ---------------------------------------------------------------------------


def along_whole(dims: Callable[[Equation], Sequence[int]]) -> Callable[[Equation, int, Index, Labels], Access]:
    """Access of primitives that work along some dims and treat all others as a batch."""

    def access(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
        rank = len(index)
        gone = {d % rank for d in dims(equation)}
        kept = tuple(None if d in gone else axis for d, axis in enumerate(index))
        return Access(tuple(kept if len(s) == rank else whole(s) for s in shapes(equation)), kept)

    return access


def batched(dims: Callable[[Equation], Sequence[int]]) -> Rule:
    return Rule(along_whole(dims), evaluate_bind, fuses=False)


# --- rows by number ---------------------------------------------------------------------------------------------------


def row_gather_dim(equation: Equation) -> int | None:
    """The dim that a gather looks rows up in, or None if it is another kind of gather.

    Other dims are taken in full, or are batch dims that the indices share (``take_along_axis``).
    """
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, indices = shapes(equation)
    looked_up = numbers.start_index_map
    if len(looked_up) != 1 or numbers.collapsed_slice_dims != looked_up or indices[-1] != 1:
        return None
    rest = (d for d in range(len(shape)) if d != looked_up[0] and d not in numbers.operand_batching_dims)
    return looked_up[0] if all(sizes[d] == shape[d] for d in rest) else None


def access_gather(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    dim = row_gather_dim(equation)
    if dim is None:
        return access_whole(equation, slot, index, labels)
    numbers, shape = equation.params["dimension_numbers"], shapes(equation)[0]
    row = fresh(shape[dim], labels)
    batch = [axis for d, axis in enumerate(index) if d not in numbers.offset_dims]
    operand = _table_index(
        shape, dim, row, numbers.operand_batching_dims, [batch[d] for d in numbers.start_indices_batching_dims],
        [index[d] for d in numbers.offset_dims],
    )
    reduced = () if row is None else (row.label,)
    labels.separate([*(axis.label for axis in axes(index)), *reduced])
    return Access((operand, (*batch, None)), index, reduced)


def _table_index(
    shape: Sequence[int], dim: int, row: Axis | None, batch_dims: Sequence[int], batch: Sequence[Axis | None],
    window: Sequence[Axis | None],
) -> Index:
    """The index of a table: looked up along `dim`, shared along the batch dims, in full along the others."""
    placed = {dim: row, **dict(zip(batch_dims, batch, strict=True))}
    rest = iter(window)
    return tuple(placed[d] if d in placed else next(rest) for d in range(len(shape)))


def evaluate_gather(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    table, rows = operands
    dim = row_gather_dim(equation)
    if dim is None:
        return evaluate_source(equation, slot, access, tile, operands)
    single = {dim, *equation.params["dimension_numbers"].operand_batching_dims}
    sizes = tuple(1 if d in single else n for d, n in enumerate(table.shape))
    axis = access.operands[0][dim]
    if axis is None or tile.spans(axis.label):
        return bind(equation, operands, slice_sizes=sizes)
    return _gather_rows_of_tile(equation, tile, axis, table, rows, sizes, dim)


def _gather_rows_of_tile(
    equation: Equation, tile: Tile, axis: Axis, table: jax.Array, rows: jax.Array, sizes: tuple[int, ...], dim: int
) -> jax.Array:
    """Rows found in this tile, zeros elsewhere; the sum over all tiles is the look-up."""
    total = shapes(equation)[0][dim]
    mode = equation.params["mode"]
    rows = rows.astype(jnp.int64)
    fills = mode == lax.GatherScatterMode.FILL_OR_DROP
    if not fills:
        rows = jnp.clip(rows, 0, total - 1)
    local = rows - tile.start(axis)
    found = bind(
        equation, (table, jnp.clip(local, 0, table.shape[dim] - 1)), slice_sizes=sizes,
        mode=lax.GatherScatterMode.CLIP, indices_are_sorted=False, unique_indices=False, fill_value=None,
    )
    offsets = equation.params["dimension_numbers"].offset_dims
    batch_dims = [d for d in range(found.ndim) if d not in offsets]

    def spread(mask: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(mask[..., 0], found.shape, batch_dims)

    found = jnp.where(spread((local >= 0) & (local < table.shape[dim])), found, jnp.zeros((), found.dtype))
    if fills:
        first = tile.start(axis) == 0
        outside = spread((rows < 0) | (rows >= total)) & first
        found = jnp.where(outside, _fill_value(equation, found.dtype), found)
    return found


def _fill_value(equation: Equation, dtype: Any) -> jax.Array:
    value = equation.params["fill_value"]
    if value is None:
        value = jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else (
            jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else
            jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.unsignedinteger) else True)
    return jnp.asarray(value, dtype)


def row_scatter_dim(equation: Equation) -> int | None:
    """The dim that a scatter-add adds rows to, or None if it is another kind of scatter."""
    numbers = equation.params["dimension_numbers"]
    shape, indices, updates = shapes(equation)
    rows = numbers.scatter_dims_to_operand_dims
    if len(rows) != 1 or numbers.inserted_window_dims != rows or indices[-1] != 1:
        return None
    window = [updates[d] for d in numbers.update_window_dims]
    full = [n for d, n in enumerate(shape) if d != rows[0] and d not in numbers.operand_batching_dims]
    return rows[0] if window == full else None


def access_scatter_add(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    dim = row_scatter_dim(equation)
    if dim is None:
        return access_whole(equation, slot, index, labels)
    numbers, updates = equation.params["dimension_numbers"], shapes(equation)[2]
    window_dims, shared = numbers.update_window_dims, dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    window = iter([a for d, a in enumerate(index) if d != dim and d not in numbers.operand_batching_dims])
    batch, reduced = [], []
    for d, n in enumerate(n for d, n in enumerate(updates) if d not in window_dims):
        batch.append(index[shared[d]] if d in shared else fresh(n, labels))
        if d not in shared and batch[-1] is not None:
            reduced.append(batch[-1].label)
    rest = iter(batch)
    update = tuple(next(window) if d in window_dims else next(rest) for d in range(len(updates)))
    labels.separate([*(axis.label for axis in axes(index)), *reduced])
    return Access((index, (*batch, None), update), index, tuple(reduced))


def evaluate_scatter_add(equation: Equation, slot: int, access: Access, tile: Tile, operands: Sequence[jax.Array]) -> jax.Array:
    base, rows, updates = operands
    dim = row_scatter_dim(equation)
    if dim is None:
        return evaluate_source(equation, slot, access, tile, operands)
    for label in access.reduced:
        base = jnp.where(tile.label_start(label) == 0, base, jnp.zeros((), base.dtype))
    axis = access.computed[dim]
    rows = rows.astype(jnp.int64)
    if equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        rows = jnp.clip(rows, 0, shapes(equation)[0][dim] - 1)
    local = rows if axis is None else rows - tile.start(axis)
    local = jnp.where(local < 0, base.shape[dim], local)
    return bind(equation, (base, local, updates), mode=lax.GatherScatterMode.FILL_OR_DROP,
                indices_are_sorted=False, unique_indices=False)


# --- the table --------------------------------------------------------------------------------------------------------

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
LAST_TWO = ("cholesky", "triangular_solve", "lu", "householder_product", "tridiagonal_solve")

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE_NAMES, ELEMENTWISE),
    "broadcast_in_dim": Rule(access_broadcast, evaluate_broadcast),
    "transpose": Rule(access_transpose, evaluate_bind),
    "squeeze": Rule(access_squeeze, evaluate_bind),
    "reshape": Rule(access_reshape, evaluate_reshape),
    "slice": Rule(access_slice, evaluate_slice),
    "split": Rule(access_split, evaluate_split),
    "concatenate": Rule(access_concatenate, evaluate_concatenate),
    "stack": Rule(access_stack, evaluate_bind),
    "pad": Rule(access_pad, evaluate_pad),
    "iota": Rule(access_iota, evaluate_iota),
    "dynamic_slice": Rule(access_dynamic_slice, evaluate_dynamic_slice),
    "dynamic_update_slice": Rule(access_dynamic_update_slice, evaluate_dynamic_update_slice),
    "reduce_sum": reduction("sum"),
    "reduce_prod": reduction("prod"),
    "reduce_max": reduction("max"),
    "reduce_min": reduction("min"),
    "reduce_and": reduction("and"),
    "reduce_or": reduction("or"),
    "reduce_xor": reduction("xor"),
    "argmax": reduction("argmax"),
    "argmin": reduction("argmin"),
    "dot_general": Rule(access_dot, evaluate_dot, "add", fuses=False),
    "gather": Rule(access_gather, evaluate_gather, "add", fuses=False),
    "scatter-add": Rule(access_scatter_add, evaluate_scatter_add, "add", fuses=False),
    **{name: batched(lambda e: (e.params["axis"],)) for name in SCANS},
    **{name: batched(lambda e: (-1, -2)) for name in LAST_TWO},
    "sort": batched(lambda e: (e.params["dimension"],)),
    "rev": batched(lambda e: e.params["dimensions"]),
    "fft": batched(lambda e: range(-len(e.params["fft_lengths"]), 0)),
}


def rule_for(equation: Equation) -> Rule:
    return RULES.get(equation.name, WHOLE)
