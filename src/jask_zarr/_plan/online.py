"""Sums of exponentials in the pass that finds their maximum.

Softmax, logsumexp and attention subtract a maximum before they take exponentials. Over an axis that is split into tiles
the sum would wait for it: one more walk over the data. But whatever `d` and `c` are, if constant along the axis,

    sum(exp(x - d) * f / c)  ==  sum(exp(x - m) * f) * exp(m - d) / c    where m = max(x)

and the sum on the right needs no maximum but those of the tiles ("online softmax"; see `rules_exp`).

1. A sum or a contraction is looked at if one of its operands is a product with one such exponential.
2. It is replaced if `d` waits for a split maximum of the same `x`, and neither `x` nor `f` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jask_zarr._plan.program import Builder, Equation, Program
from jask_zarr._plan.rules_exp import DOT_GENERAL, REDUCE_SUM, Params, aligned, finite, params_of


@dataclass(frozen=True, slots=True)
class Thin:
    """A value that is constant along the axes of a sum: its dims among those of the operand, as for a broadcast."""

    value: int
    dims: tuple[int, ...]

    def of(self, array: jax.Array, shape: Sequence[int]) -> jax.Array:
        """The array of the value, with 1 element along these axes."""
        return lax.broadcast_in_dim(array, shape, self.dims)


@dataclass(frozen=True, slots=True)
class Term:
    """``exp(x - shift)``, multiplied or divided by factors: the outer ones wait for a maximum, and are constant."""

    x: int
    shift: Thin
    inner: tuple[tuple[int, bool], ...] = ()
    """Values, and whether they divide."""
    outer: tuple[tuple[Thin, bool], ...] = ()


def online(program: Program, split: Collection[int]) -> Program:
    """The program whose sums of exponentials do not wait for the maxima in `split`; itself if none did."""
    maxima = [e for e in program.equations if e.name == "reduce_max" and e.outputs[0] in split]
    found = dict(_Search(program, maxima).found()) if maxima else {}
    if not found:
        return program
    builder = Builder.with_values_of(program)
    for equation in program.equations:
        if equation.outputs[0] in found:
            _replace(builder, equation, *found[equation.outputs[0]])
        else:
            builder.keep(equation)
    return builder.rewritten(program)


class _Search:
    """Finds the sums that wait for some maxima."""

    def __init__(self, program: Program, maxima: Sequence[Equation]) -> None:
        self.program, self.maxima = program, maxima
        self.makers = {v: e for e in program.equations for v in e.outputs}
        self.waits = _waits(program, {e.outputs[0] for e in maxima})
        self.terms: dict[tuple[int, tuple[int, ...]], Term | None] = {}

    def found(self) -> Iterator[tuple[int, tuple[int, Term]]]:
        """Of each such sum the operand with the exponential, and what it is."""
        for equation in self.program.equations:
            for side, ending in _sums(equation):
                term = self.term(equation.inputs[side], ending)
                if term is not None and self.gains(equation, side, term):
                    yield equation.outputs[0], (side, term)
                    break

    def gains(self, equation: Equation, side: int, term: Term) -> bool:
        """Whether nothing but the shift waits for the maximum, and the sum is not larger than what is summed."""
        others = [v for n, v in enumerate(equation.inputs) if n != side]
        same = (e.outputs[0] for e in self.maxima if self.untransposed(e.inputs[0]) == self.untransposed(term.x))
        awaited = self.waits[term.shift.value].intersection(same)
        free = not any(awaited & self.waits[v] for v in (term.x, *(v for v, _ in term.inner), *others))
        size = math.prod(self.program.shape(equation.outputs[0]))
        return bool(awaited) and free and size <= math.prod(self.program.shape(term.x))

    def untransposed(self, value: int) -> int:
        while value in self.makers and self.makers[value].name == "transpose":
            (value,) = self.makers[value].inputs
        return value

    def term(self, value: int, ending: tuple[int, ...]) -> Term | None:
        """How a value is one exponential times other things; None if it is not, or is several."""
        key = value, ending
        if key not in self.terms:
            self.terms[key] = self._term(value, ending)
        return self.terms[key]

    def _term(self, value: int, ending: tuple[int, ...]) -> Term | None:
        maker = self.makers.get(value)
        if maker is None or not jnp.issubdtype(self.program.dtype(value), jnp.inexact):
            return None
        if maker.name == "exp":
            return self._exponential(maker.inputs[0], ending)
        shape = self.program.shape(value)
        terms = [self.term(v, ending) if self.program.shape(v) == shape else None for v in maker.inputs]
        match maker.name, terms:
            case "convert_element_type", [term]:
                return term
            case "div", [Term() as term, None]:
                return self._scaled(term, maker.inputs[1], True, ending)
            case ("mul", [Term() as term, None]) | ("mul", [None, Term() as term]):
                return self._scaled(term, maker.inputs[1 if terms[0] else 0], False, ending)
        return None

    def _exponential(self, exponent: int, ending: tuple[int, ...]) -> Term | None:
        maker = self.makers.get(exponent)
        if maker is None or maker.name != "sub" or not self.waits[maker.inputs[1]]:
            return None
        x, shift = maker.inputs[0], self.thin(maker.inputs[1], ending)
        real = jnp.issubdtype(self.program.dtype(x), jnp.floating)
        same = self.program.shape(x) == self.program.shape(exponent)
        return Term(x, shift) if shift is not None and real and same else None

    def _scaled(self, term: Term, factor: int, divides: bool, ending: tuple[int, ...]) -> Term:
        """The term with one more factor. What waits for a maximum must not be summed: its parts are looked at."""
        if not self.waits[factor]:
            return replace(term, inner=(*term.inner, (factor, divides)))
        thin, maker = self.thin(factor, ending), self.makers[factor]
        if thin is not None:
            return replace(term, outer=(*term.outer, (thin, divides)))
        if maker.name not in ("mul", "div"):
            return replace(term, inner=(*term.inner, (factor, divides)))
        left, right = maker.inputs
        return self._scaled(self._scaled(term, left, divides, ending), right, divides ^ (maker.name == "div"), ending)

    def thin(self, value: int, ending: tuple[int, ...]) -> Thin | None:
        """A value without what has been repeated along some axes; None if it may differ along them."""
        shape, maker = self.program.shape(value), self.makers.get(value)
        if not shape or all(shape[d] == 1 for d in ending):
            return Thin(value, tuple(range(len(shape))))
        if maker is None or maker.name != "broadcast_in_dim":
            return None
        dims, operand = maker.params["broadcast_dimensions"], maker.inputs[0]
        repeated = all(n == 1 or d not in ending for d, n in zip(dims, self.program.shape(operand), strict=True))
        return Thin(operand, tuple(map(int, dims))) if repeated else None


def _sums(equation: Equation) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The operands of a sum, and the dims of each that end."""
    if equation.name == "reduce_sum":
        yield 0, tuple(map(int, equation.params["axes"]))
    elif equation.name == "dot_general":
        for side, ending in enumerate(equation.params["dimension_numbers"][0]):
            yield side, tuple(map(int, ending))


def _waits(program: Program, maxima: set[int]) -> dict[int, frozenset[int]]:
    """For each value the maxima that must be known before."""
    none: frozenset[int] = frozenset()
    waits = dict.fromkeys((*program.inputs, *program.constants), none)
    for equation in program.equations:
        before = none.union(*(waits[v] for v in equation.inputs))
        waits.update((v, before | ({v} & maxima)) for v in equation.outputs)
    return waits


def _replace(builder: Builder, equation: Equation, side: int, term: Term) -> None:
    """The equations that compute the same result from a relative sum."""
    relative = _relative_sum(builder, equation, side, term)
    operands = [term.x, *relative.outputs, term.shift.value, *(thin.value for thin, _ in term.outer)]
    absolute = _absolute(term, relative.params, builder.avals[equation.outputs[0]].dtype)
    builder.traced(absolute, operands, equation.caller)
    builder.equations.append(replace(builder.equations.pop(), outputs=equation.outputs))


def _relative_sum(builder: Builder, equation: Equation, side: int, term: Term) -> Equation:
    primitive = REDUCE_SUM if equation.name == "reduce_sum" else DOT_GENERAL
    inputs, params = list(equation.inputs), params_of(equation, side)
    inputs[side] = term.x
    if term.inner:
        factor = _factor(term, builder.avals[term.x].shape, params["weights"])
        inputs += builder.traced(factor, [v for v, _ in term.inner], equation.caller)
    aval = builder.avals[equation.outputs[0]]
    aval = aval.update(dtype=jnp.promote_types(aval.dtype, jnp.float32), weak_type=False)
    variables = {"invars": [core.Var(builder.avals[v]) for v in inputs], "outvars": [core.Var(aval)]}
    source = equation.source.replace(primitive=primitive, **variables)
    return builder.keep(Equation(primitive, params, tuple(inputs), (builder.value(aval),), source, equation.caller))


def _factor(term: Term, shape: Sequence[int], dtype: Any) -> Callable[..., jax.Array]:
    """What the exponential is multiplied by before it is summed."""
    divides = [divides for _, divides in term.inner]

    def factor(*arrays: jax.Array) -> jax.Array:
        return jnp.broadcast_to(_scaled(jnp.ones((1,) * len(shape), dtype), arrays, divides), shape)

    return factor


def _absolute(term: Term, params: Params, dtype: Any) -> Callable[..., jax.Array]:
    """From the relative sum to the one that was asked for."""
    thins, divides = [term.shift, *(thin for thin, _ in term.outer)], [divides for _, divides in term.outer]

    def absolute(x: jax.Array, total: jax.Array, *arrays: jax.Array) -> jax.Array:
        maximum = finite(jnp.max(x, axis=params["axes"], keepdims=True))
        shift, *outer = (thin.of(array, maximum.shape) for thin, array in zip(thins, arrays, strict=True))
        scales = [aligned(params, array) for array in (jnp.exp(maximum - shift), *outer)]
        return (_scaled(total, scales, [False, *divides]) / params["unit"]).astype(dtype)

    return absolute


def _scaled(array: jax.Array, scales: Sequence[jax.Array], divides: Sequence[bool]) -> jax.Array:
    for scale, divide in zip(scales, divides, strict=True):
        scale = scale.astype(array.dtype)
        array = array / scale if divide else array * scale
    return array
