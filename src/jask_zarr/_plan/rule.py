"""What a rule is, and the two that most primitives share: elementwise, and everything whole.

A rule answers two questions.

1. *access*: to compute one result at an index, at which index is each operand needed, and which fresh labels are
   reduced on the way? A dim that the primitive cannot stream is asked for whole; the result is then computed whole
   along it and cut afterwards.
2. *evaluate*: given operand tiles, bind the primitive at tile shapes.

Reductions also name how the partial results of several tiles combine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from jask_zarr._plan.labels import Axis, Index, Labels
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
    def positions(self, axis: Axis) -> jax.Array: ...
    def spans(self, label: int) -> bool: ...
    def is_first(self, label: int) -> jax.Array: ...


Arrays = Sequence[jax.Array]
Evaluate = Callable[[Equation, int, "Access", Tile, Arrays], jax.Array]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    access: Callable[[Equation, int, Index, Labels], Access]
    evaluate: Evaluate
    combine: str | None = None
    """How partial results over split labels combine; None if the rule reduces nothing."""
    fuses: bool = True
    """XLA computes it inside a loop of its consumer: no buffer of its own."""
    workspace: int = 0
    """Bytes that XLA needs besides for each element, while it computes the primitive."""
    copied: Callable[[Equation], Sequence[int]] = lambda equation: ()
    """Operands of which it makes something of the same size on the way."""
    flops: Callable[[Equation], float] = lambda equation: 50.0
    """Floating-point operations for each element of the result, roughly."""
    passes_on: Callable[[Equation], bool] = lambda equation: False
    """Whether the result is the first operand as it is."""


def shapes(equation: Equation) -> list[tuple[int, ...]]:
    return [v.aval.shape for v in equation.source.invars]


def out_shape(equation: Equation, slot: int = 0) -> tuple[int, ...]:
    return equation.source.outvars[slot].aval.shape


def whole(shape: Sequence[Any]) -> Index:
    return (None,) * len(shape)


def fresh(size: int, labels: Labels) -> Axis | None:
    return Axis(labels.fresh(size)) if size > 1 else None


def fixed(size: int, labels: Labels) -> Axis | None:
    """An axis that is never cut: a part of a dim that is always needed as a whole. None if there is nothing in it."""
    if not size:
        return None
    label = labels.fresh(size)
    labels.require_multiple(label, size)
    return Axis(label)


def bind(equation: Equation, operands: Arrays, **changes: Any) -> Any:
    return equation.primitive.bind(*operands, **{**equation.params, **changes})


def along(vector: jax.Array, dim: int, rank: int) -> jax.Array:
    return vector.reshape((1,) * dim + (-1,) + (1,) * (rank - dim - 1))


# --- whole ------------------------------------------------------------------------------------------------------------


def access_whole(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    return Access(tuple(whole(s) for s in shapes(equation)), whole(out_shape(equation, slot)))


def evaluate_source(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
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


def evaluate_bind(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    results = bind(equation, operands)
    return results[slot] if equation.primitive.multiple_results else results


ELEMENTWISE = Rule(access_elementwise, evaluate_bind)

# --- dims that must be whole, others stream ---------------------------------------------------------------------------


def along_whole(dims: Callable[[Equation], Sequence[int]]) -> Callable[[Equation, int, Index, Labels], Access]:
    """Access of primitives that work along some dims and treat all others as a batch."""

    def access(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
        rank = len(index)
        gone = {d % rank for d in dims(equation)}
        kept = tuple(None if d in gone else axis for d, axis in enumerate(index))
        return Access(tuple(kept if len(s) == rank else whole(s) for s in shapes(equation)), kept)

    return access


def batched(dims: Callable[[Equation], Sequence[int]], **more: Any) -> Rule:
    return Rule(along_whole(dims), evaluate_bind, fuses=False, **more)


def flops_of_sort(equation: Equation) -> float:
    """As measured on the CPU: 160 ms for 2.5 million."""
    n = shapes(equation)[0][equation.params["dimension"]]
    return 80.0 * max(1, n).bit_length()


def leading_batch(core: int) -> Callable[[Equation, int, Index, Labels], Access]:
    """Access of primitives that work on the last `core` dims of their first operand: those before are a batch."""

    def access(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
        batch = len(shapes(equation)[0]) - core
        lead = index[:batch]
        operands = tuple((*lead, *whole(s[batch:])) for s in shapes(equation))
        return Access(operands, (*lead, *whole(index[batch:])))

    return access
