"""What chains of contractions cost as they are written, and in the other order.

``(a @ b) @ c`` and ``a @ (b @ c)`` are one value at two prices. The planner computes what is
written, because the other order rounds differently; both prices are for those who read the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jask_zarr._plan.program import Equation, Program

Labels = tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """A contraction of a contraction, and what it would cost to contract the last two arrays first.

    Attributes
    ----------
    operands : tuple of int
        The three values: the two that are contracted first, and the third.
    flops, other_flops : int
        Multiplications and additions, as written and in the other order.
    other_first : tuple of int
        The two values that the other order contracts first.
    """

    operands: tuple[int, int, int]
    flops: int
    other_flops: int
    other_first: tuple[int, int]


def chains(program: Program) -> list[Chain]:
    """All contractions of a contraction whose order can be changed."""
    by_output = {equation.outputs[0]: equation for equation in program.equations if equation.name == "dot_general"}
    return [
        chain
        for outer in by_output.values()
        for side in (0, 1)
        if (inner := by_output.get(outer.inputs[side])) is not None
        for chain in _chain(program, inner, outer, side)
    ]


def _chain(program: Program, inner: Equation, outer: Equation, side: int) -> Iterator[Chain]:
    sizes: list[int] = []
    numbers, outer_numbers = inner.params["dimension_numbers"], outer.params["dimension_numbers"]
    last = outer.inputs[1 - side]
    first = _fresh(program, inner.inputs[0], sizes)
    second = _joined(_fresh(program, inner.inputs[1], sizes), numbers, first, 0)
    between = _contract(numbers, first, second)
    third = _joined(_fresh(program, last, sizes), outer_numbers, between, side)
    ended = {between[axis] for axis in outer_numbers[0][side]}
    written = _flops(sizes, first, second) + _flops(sizes, between, third)
    left, right = inner.inputs
    for kept, moved, value in ((first, second, right), (second, first, left)):
        if ended and ended <= {*moved} - {*kept}:
            early = {*moved, *third} - ended
            other = _flops(sizes, moved, third) + _flops(sizes, kept, tuple(early))
            yield Chain((left, right, last), written, other, (value, last))


def _fresh(program: Program, value: int, sizes: list[int]) -> Labels:
    """New labels for the dims of a value."""
    shape = program.shape(value)
    sizes.extend(shape)
    return tuple(range(len(sizes) - len(shape), len(sizes)))


def _joined(labels: Labels, dimension_numbers: Any, other: Labels, other_side: int) -> Labels:
    """The labels with those of the other operand where the two are contracted or batched."""
    renamed = list(labels)
    for axes in dimension_numbers:
        for theirs, ours in zip(axes[other_side], axes[1 - other_side], strict=True):
            renamed[ours] = other[theirs]
    return tuple(renamed)


def _contract(dimension_numbers: Any, left: Labels, right: Labels) -> Labels:
    """The labels of a contraction's result."""
    (contract_left, contract_right), (batch_left, batch_right) = dimension_numbers
    free_left = [label for axis, label in enumerate(left) if axis not in (*contract_left, *batch_left)]
    free_right = [label for axis, label in enumerate(right) if axis not in (*contract_right, *batch_right)]
    return (*(left[axis] for axis in batch_left), *free_left, *free_right)


def _flops(sizes: Sequence[int], left: Sequence[int], right: Sequence[int]) -> int:
    return 2 * math.prod(sizes[label] for label in {*left, *right})
