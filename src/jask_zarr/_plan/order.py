"""Additions of many rows to a table larger than memory, put in the order of the rows.

1. The row numbers are sorted; the updates are looked up in that order. What is added to a tile of the table is then in
   one place, and the tile takes no other.
2. Updates that were computed from rows of the same numbers are computed in that order: a tile reads its own rows.
3. Other updates are kept first. Rows of what is kept are read one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jask_zarr._plan.program import Builder, Equation, Program
from jask_zarr._plan.rule import ELEMENTWISE, shapes
from jask_zarr._plan.rules import rule_for
from jask_zarr._plan.rules_rows import row_gather_dim, row_scatter_dim

Shape = tuple[int, ...]


def in_order(program: Program, on_disk: Collection[int], budget: int, tile_bytes: int) -> Program:
    """The program with those additions in order that would go through their updates again and again."""
    chosen = [e for e in program.equations if _adds_rows(e) and _is_worth_sorting(program, e, budget, tile_bytes)]
    if not chosen:
        return program
    builder = Builder.with_values_of(program)
    orders: dict[int, int] = {}
    apart: dict[int, str] = {}
    for equation in program.equations:
        if equation in chosen:
            equation = _Sorter(builder, equation, on_disk).sorted(orders, apart)
        builder.keep(equation)
    return builder.rewritten(program, orders=orders, apart=apart)


def _adds_rows(equation: Equation) -> bool:
    """Whether rows are added by numbers that follow each other along neighbouring dims of the updates."""
    if equation.name != "scatter-add" or row_scatter_dim(equation) is None:
        return False
    numbers, (table, rows, updates) = equation.params["dimension_numbers"], shapes(equation)
    batch = _batch_dims(equation)
    neighbours = batch == [*range(batch[0], batch[-1] + 1)] if batch else False
    return neighbours and not numbers.operand_batching_dims and math.prod(rows) > 1 and 0 not in (*table, *updates)


def _batch_dims(equation: Equation) -> list[int]:
    window = equation.params["dimension_numbers"].update_window_dims
    return [d for d in range(len(shapes(equation)[2])) if d not in window]


def _is_worth_sorting(program: Program, equation: Equation, budget: int, tile_bytes: int) -> bool:
    """Whether the table is cut, there are more updates than one tile has, and their numbers can be sorted in memory."""
    table, numbers, updates = equation.inputs
    is_cut = 4 * program.nbytes(table) > budget
    are_many = program.nbytes(updates) > min(tile_bytes, budget // 8)
    needed = 8 * max(program.nbytes(numbers), 4 * math.prod(program.shape(numbers)))
    return is_cut and are_many and needed <= budget


class _Sorter:
    """Puts one addition in order."""

    def __init__(self, builder: Builder, equation: Equation, on_disk: Collection[int]) -> None:
        self.builder, self.equation, self.on_disk = builder, equation, on_disk
        self.made_by = {value: e for e in builder.equations for value in e.outputs}
        self.known: dict[int, int | None] = {}
        batch, self.count = _batch_dims(equation), math.prod(shapes(equation)[1])
        self.first, self.last = batch[0], batch[-1]

    def sorted(self, orders: dict[int, int], apart: dict[int, str]) -> Equation:
        """The equation of sorted numbers, and of updates in their order."""
        table, numbers, updates = self.equation.inputs
        (self.numbers,) = self.emit(lambda rows: lax.reshape(rows, (self.count, 1)), [numbers])
        rows, order = self.emit(_sorting(self.equation), [self.numbers])
        flat = self.flat(updates)
        if flat is None:
            (flat,) = self.emit(self.copied, [updates])
            apart[flat] = "its rows are taken in another order"
        orders[order] = self.numbers
        (taken,) = self.emit(_taking(self.first, self.builder.avals[flat].shape), [flat, order])
        return self.scatter(table, rows, taken)

    def emit(self, function: Callable[..., Any], operands: Sequence[int]) -> list[int]:
        return self.builder.traced(function, operands, self.equation.caller)

    def scatter(self, *operands: int) -> Equation:
        numbers = self.equation.params["dimension_numbers"]
        window = tuple(map(self.moved, numbers.update_window_dims))
        mode, numbers = lax.GatherScatterMode.FILL_OR_DROP, numbers._replace(update_window_dims=window)
        params = {**self.equation.params, "mode": mode, "dimension_numbers": numbers}
        source = self.equation.source.replace(invars=[core.Var(self.builder.avals[v]) for v in operands], params=params)
        return replace(self.equation, params=params, inputs=operands, source=source, in_order=True)

    # --- the updates, with the dims of the numbers merged into one ---

    def moved(self, dim: int) -> int:
        return dim - (self.last - self.first) * (dim > self.last)

    def merged(self, shape: Shape) -> Shape:
        return (*shape[: self.first], self.count, *shape[self.last + 1 :])

    def copied(self, updates: jax.Array) -> jax.Array:
        flat = self.merged(updates.shape)
        return jnp.copy(updates) if flat == updates.shape else lax.reshape(updates, flat)

    def flat(self, value: int) -> int | None:
        """A value whose rows cost no more in another order than in this; None if they do."""
        if value not in self.known:
            self.known[value] = self.followed(value)
        return self.known[value]

    def followed(self, value: int) -> int | None:
        equation, shape = self.made_by.get(value), self.builder.avals[value].shape
        if equation is None:
            return None if value in self.on_disk else self.reshaped(value, shape)
        if shape == self.merged(shape) and self.looks_up(equation):
            return value
        if equation.name == "reshape":
            (operand,) = equation.inputs
            looked_up = operand in self.made_by and self.looks_up(self.made_by[operand])
            return operand if looked_up and self.builder.avals[operand].shape == self.merged(shape) else None
        if equation.name == "broadcast_in_dim":
            return self.broadcast(equation, shape)
        return self.elementwise(equation, shape) if rule_for(equation) is ELEMENTWISE else None

    def reshaped(self, value: int, shape: Shape) -> int:
        return value if shape == self.merged(shape) else self.emit(self.copied, [value])[0]

    def looks_up(self, equation: Equation) -> bool:
        """Whether rows are looked up by the numbers of the addition."""
        if equation.name != "gather" or equation.inputs[1] != self.numbers:
            return False
        offsets = equation.params["dimension_numbers"].offset_dims
        return row_gather_dim(equation) is not None and self.first not in offsets

    def broadcast(self, equation: Equation, shape: Shape) -> int | None:
        """What is the same for all numbers."""
        dims = equation.params["broadcast_dimensions"]
        if any(self.first <= d <= self.last for d in dims) or len(equation.inputs) > 1:
            return None
        target = self.merged(shape)
        return self.emit(lambda x: lax.broadcast_in_dim(x, target, [*map(self.moved, dims)]), equation.inputs)[0]

    def elementwise(self, equation: Equation, shape: Shape) -> int | None:
        operands = []
        for value, own in zip(equation.inputs, shapes(equation), strict=True):
            flat = value if not own else self.flat(value) if own == shape else None
            if flat is None:
                return None
            operands.append(flat)
        found = self.emit(lambda *xs: equation.primitive.bind(*xs, **equation.params), operands)
        return found[0] if len(found) == 1 else None


def _sorting(equation: Equation) -> Callable[[jax.Array], Any]:
    """A function of row numbers: sorted, and where each of them was; equal ones stay in order."""
    (dim,) = equation.params["dimension_numbers"].scatter_dims_to_operand_dims
    last = shapes(equation)[0][dim] - 1

    def sort(rows: jax.Array) -> Any:
        if equation.params["mode"] == lax.GatherScatterMode.CLIP:
            rows = jnp.clip(rows, 0, min(last, jnp.iinfo(rows.dtype).max))
        return lax.sort((rows, lax.broadcasted_iota(jnp.int32, rows.shape, 0)), dimension=0, num_keys=1)

    return sort


def _taking(place: int, shape: Shape) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A function of updates and their order."""
    window = tuple(d for d in range(len(shape)) if d != place)
    numbers = lax.GatherDimensionNumbers(window, (place,), (place,))
    sizes = tuple(1 if d == place else n for d, n in enumerate(shape))
    return lambda updates, order: lax.gather(updates, order, numbers, sizes, mode="clip")
