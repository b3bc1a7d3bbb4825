"""Rules of look-ups and of additions of rows by number.

Rows that are looked up are read: a tile of the result reads the rows that it needs, whatever tiles the table has. Other
look-ups (``take_along_axis``) go through the table tile by tile: each gives the rows found in it and zeros elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jask_zarr._plan.labels import Axis, Group, Index, Labels, axes
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import (
    Access,
    Arrays,
    Tile,
    access_whole,
    along,
    bind,
    evaluate_source,
    fixed,
    fresh,
    out_shape,
    shapes,
    whole,
)

# --- look-ups ---------------------------------------------------------------------------------------------------------


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


def reads_rows(equation: Equation) -> bool:
    """Whether the result is the rows of a table in the order of one vector of numbers."""
    numbers, table = equation.params["dimension_numbers"], shapes(equation)[0]
    if numbers.operand_batching_dims or 0 in (*table, *out_shape(equation)):
        return False
    is_vector = len(out_shape(equation)) - len(numbers.offset_dims) == 1
    return is_vector and all(table[dim] > 1 for dim in numbers.start_index_map)


def access_gather(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    dim = row_gather_dim(equation)
    if dim is None:
        return access_whole(equation, slot, index, labels)
    if reads_rows(equation):
        return _access_rows(equation, index, labels, dim)
    numbers, shape = equation.params["dimension_numbers"], shapes(equation)[0]
    row = fresh(shape[dim], labels)
    batch = [axis for d, axis in enumerate(index) if d not in numbers.offset_dims]
    operand = _table_index(
        shape,
        dim,
        row,
        numbers.operand_batching_dims,
        [batch[d] for d in numbers.start_indices_batching_dims],
        [index[d] for d in numbers.offset_dims],
    )
    reduced = () if row is None else (row.label,)
    labels.separate([*(axis.label for axis in axes(index)), *reduced])
    return Access((operand, (*batch, None)), index, reduced)


def _access_rows(equation: Equation, index: Index, labels: Labels, dim: int) -> Access:
    shape, place = shapes(equation)[0], _row_place(equation)
    axis = index[place] or fixed(out_shape(equation)[place], labels)
    assert axis is not None, "a look-up of no rows does not come here"
    window = [index[d] for d in equation.params["dimension_numbers"].offset_dims]
    operand = _table_index(shape, dim, axis.looked_up(equation.inputs[1], shape[dim] - 1), (), (), window)
    labels.separate(axis.label for axis in axes(operand))
    return Access((operand, (axis, None)), index)


def _row_place(equation: Equation) -> int:
    """The dim of the result along which rows follow each other."""
    offsets = equation.params["dimension_numbers"].offset_dims
    return next(d for d in range(len(out_shape(equation))) if d not in offsets)


def _table_index(
    shape: Sequence[int],
    dim: int,
    row: Axis | None,
    batch_dims: Sequence[int],
    batch: Sequence[Axis | None],
    window: Sequence[Axis | None],
) -> Index:
    """The index of a table: looked up along `dim`, shared along the batch dims, in full along the others."""
    placed = {dim: row, **dict(zip(batch_dims, batch, strict=True))}
    rest = iter(window)
    return tuple(placed[d] if d in placed else next(rest) for d in range(len(shape)))


def evaluate_gather(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    table, rows = operands
    dim = row_gather_dim(equation)
    if dim is None:
        return evaluate_source(equation, slot, access, tile, operands)
    if reads_rows(equation):
        return _placed(equation, dim, table, rows)
    single = {dim, *equation.params["dimension_numbers"].operand_batching_dims}
    sizes = tuple(1 if d in single else n for d, n in enumerate(table.shape))
    axis = access.operands[0][dim]
    if axis is None or tile.spans(axis.label):
        return bind(equation, operands, slice_sizes=sizes)
    return _gather_rows_of_tile(equation, tile, axis, table, rows, sizes, dim)


def _placed(equation: Equation, dim: int, table: jax.Array, rows: jax.Array) -> jax.Array:
    """What was read are the rows; those beyond the table may have to be filled."""
    place = _row_place(equation)
    found = jnp.moveaxis(table, dim, place)
    if equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return found
    outside = (rows < 0) | (rows.astype(jnp.int64) >= shapes(equation)[0][dim])
    return jnp.where(along(outside[:, 0], place, found.ndim), _fill_value(equation, found.dtype), found)


def passes_rows_on(equation: Equation) -> bool:
    """Whether the rows that are read are the result."""
    if row_gather_dim(equation) is None or not reads_rows(equation):
        return False
    in_place = row_gather_dim(equation) == _row_place(equation)
    return in_place and equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP


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
        equation,
        (table, jnp.clip(local, 0, table.shape[dim] - 1)),
        slice_sizes=sizes,
        mode=lax.GatherScatterMode.CLIP,
        indices_are_sorted=False,
        unique_indices=False,
        fill_value=None,
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
        value = (
            jnp.nan
            if jnp.issubdtype(dtype, jnp.inexact)
            else (
                jnp.iinfo(dtype).min
                if jnp.issubdtype(dtype, jnp.signedinteger)
                else jnp.iinfo(dtype).max
                if jnp.issubdtype(dtype, jnp.unsignedinteger)
                else True
            )
        )
    return jnp.asarray(value, dtype)


# --- additions --------------------------------------------------------------------------------------------------------


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
    index = _in_order(index, dim)
    numbers, updates = equation.params["dimension_numbers"], shapes(equation)[2]
    window_dims, shared = (
        numbers.update_window_dims,
        dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)),
    )
    window = iter([a for d, a in enumerate(index) if d != dim and d not in numbers.operand_batching_dims])
    batch: list[Axis | None] = []
    reduced: list[int] = []
    for d, n in enumerate(n for d, n in enumerate(updates) if d not in window_dims):
        batch.append(index[shared[d]] if d in shared else fresh(n, labels))
        if d not in shared and batch[-1] is not None:
            reduced.append(batch[-1].label)
    rest = iter(batch)
    update = tuple(next(window) if d in window_dims else next(rest) for d in range(len(updates)))
    labels.separate([*(axis.label for axis in axes(index)), *reduced])
    rows = index[dim]
    if equation.in_order and rows is not None:
        labels.groups |= {label: Group(rows, equation.inputs[1]) for label in reduced}
    return Access((index, (*batch, None), update), index, tuple(reduced))


def _in_order(index: Index, dim: int) -> Index:
    """Rows are added to tiles of rows that follow each other, or to all."""
    axis = index[dim]
    return index if axis is None or axis.rows is None else (*index[:dim], None, *index[dim + 1 :])


def evaluate_scatter_add(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    base, rows, updates = operands
    dim = row_scatter_dim(equation)
    if dim is None:
        return evaluate_source(equation, slot, access, tile, operands)
    for label in access.reduced:
        base = jnp.where(tile.is_first(label), base, jnp.zeros((), base.dtype))
    axis = access.operands[1][0]
    if equation.in_order and axis is not None:
        beyond = tile.positions(axis) >= shapes(equation)[1][0]
        rows = jnp.where(beyond[:, None], -1, rows.astype(jnp.int64))
    return _scatter_rows(equation, tile, access.computed[dim], dim, base, rows, updates)


def access_scatter(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    """Rows that are set, multiplied or compared: the operand streams, the updates are whole along their rows."""
    dim = row_scatter_dim(equation)
    numbers = equation.params["dimension_numbers"]
    if dim is None or numbers.operand_batching_dims:
        return access_whole(equation, slot, index, labels)
    index = _in_order(index, dim)
    window = iter([axis for d, axis in enumerate(index) if d != dim])
    rank = len(shapes(equation)[2])
    update = tuple(next(window) if d in numbers.update_window_dims else None for d in range(rank))
    return Access((index, whole(shapes(equation)[1]), update), index)


def evaluate_scatter(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    base, rows, updates = operands
    dim = row_scatter_dim(equation)
    axis = None if dim is None else access.computed[dim]
    if dim is None or axis is None:
        return evaluate_source(equation, slot, access, tile, operands)
    return _scatter_rows(equation, tile, axis, dim, base, rows, updates)


def _scatter_rows(
    equation: Equation,
    tile: Tile,
    axis: Axis | None,
    dim: int,
    base: jax.Array,
    rows: jax.Array,
    updates: jax.Array,
) -> jax.Array:
    """Scatter to the rows that lie in this tile; the others are out of range, and dropped."""
    rows = rows.astype(jnp.int64)
    if equation.params["mode"] == lax.GatherScatterMode.CLIP:  # XLA drops what was promised to be in bounds, too
        rows = jnp.clip(rows, 0, shapes(equation)[0][dim] - 1)
    local = rows if axis is None else rows - tile.start(axis)
    local = jnp.where(local < 0, base.shape[dim], local)
    return bind(
        equation,
        (base, local, updates),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
        indices_are_sorted=False,
        unique_indices=False,
    )
