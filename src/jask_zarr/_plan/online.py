"""Sums that do not wait for what is subtracted from their terms.

Softmax, logsumexp and attention subtract a maximum before they take exponentials; variances and layer norms subtract a
mean before they take squares. Over an axis that is split into tiles the sum would wait for it: one more walk over the
data. But whatever `d` and `c` are, if constant along the axis,

    sum(exp(x - d) * f / c)  ==  sum(exp(x - m) * f) * exp(m - d) / c          where m = max(x)
    sum((x - d)**2 / c)      ==  (sum((x - m)**2) + n * (m - d)**2) / c        where m = sum(x) / n
    sum((x - d) * f / c)     ==  (sum(x * f) - d * sum(f)) / c
    sum(f / c)               ==  sum(f) / c

and the sums on the right need no maximum or mean but those of the tiles (see `rules_exp` and `rules_square`). The last
two are of derivatives; they are taken in float64, where what cancels leaves digits enough for shorter types.

1. A sum or a contraction is looked at if one of its operands is a product with one such term.
2. It is replaced if `d` waits for a split maximum or sum of the same `x`, or `c` for any; and if neither `x` nor `f`
   waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import jax.numpy as jnp

from jask_zarr._plan.program import Builder, Equation, Program
from jask_zarr._plan.relative import replace_sum
from jask_zarr._plan.terms import Term, Terms


def online(program: Program, split: Collection[int]) -> Program:
    """The program whose sums do not wait for the maxima and sums in `split`; itself if none did."""
    awaited = [e for e in program.equations if e.name in ("reduce_max", "reduce_sum") and e.outputs[0] in split]
    found = dict(_Search(program, awaited).found()) if awaited else {}
    if not found:
        return program
    builder = Builder.with_values_of(program)
    for equation in program.equations:
        if equation.outputs[0] in found:
            replace_sum(builder, equation, *found[equation.outputs[0]])
        else:
            builder.keep(equation)
    return builder.rewritten(program)


class _Search:
    """Finds the sums that wait for some reductions."""

    def __init__(self, program: Program, awaited: Sequence[Equation]) -> None:
        self.program, self.awaited = program, awaited
        self.waits = _waits(program, {e.outputs[0] for e in awaited})
        self.terms = Terms(program, self.waits)

    def found(self) -> Iterator[tuple[int, tuple[int, Term]]]:
        """Of each such sum the operand with the term, and what it is."""
        for equation in self.program.equations:
            for side, ending in _sums(equation):
                term = self.terms.term(equation.inputs[side], ending)
                if term is not None and self.gains(equation, side, term):
                    yield equation.outputs[0], (side, term)
                    break

    def gains(self, equation: Equation, side: int, term: Term) -> bool:
        """Whether the sum waits for less without what is constant, and is not larger than what is summed."""
        if term.power is not None and not self.is_real_sum(equation):
            return False
        if term.power == 1 and self.program.dtype(term.x).itemsize > 4:
            return False  # what cancels would need a wider type
        others = [v for n, v in enumerate(equation.inputs) if n != side]
        awaited = self.awaited_by(term)
        free = not any(awaited & self.waits[v] for v in (term.x, *(v for v, _ in term.inner), *others))
        size = math.prod(self.program.shape(equation.outputs[0]))
        return bool(awaited) and free and 0 < size <= math.prod(self.program.shape(term.x))

    def is_real_sum(self, equation: Equation) -> bool:
        return equation.name == "reduce_sum" and jnp.issubdtype(self.program.dtype(equation.outputs[0]), jnp.floating)

    def awaited_by(self, term: Term) -> frozenset[int]:
        """What the constants of a term wait for: of what is subtracted, reductions of the same `x`."""
        if term.power == 0:
            return frozenset().union(*(self.waits[thin.value] for thin, _ in term.outer))
        source = self.terms.source
        same = (e.outputs[0] for e in self.awaited if e.name == term.awaits and source(e.inputs[0]) == source(term.x))
        return self.waits[term.shift.value].intersection(same)


def _sums(equation: Equation) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The operands of a sum, and the dims of each that end."""
    if equation.name == "reduce_sum":
        yield 0, tuple(map(int, equation.params["axes"]))
    elif equation.name == "dot_general":
        for side, ending in enumerate(equation.params["dimension_numbers"][0]):
            yield side, tuple(map(int, ending))


def _waits(program: Program, awaited: set[int]) -> dict[int, frozenset[int]]:
    """For each value which of the awaited ones must be known before."""
    none: frozenset[int] = frozenset()
    waits = dict.fromkeys((*program.inputs, *program.constants), none)
    for equation in program.equations:
        before = none.union(*(waits[v] for v in equation.inputs))
        waits.update((v, before | ({v} & awaited)) for v in equation.outputs)
    return waits
