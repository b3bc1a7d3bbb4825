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
    """``exp(x - shift)``, times and divided by what varies along the axes of a sum, and by what does not."""

    x: int
    shift: Thin
    times: tuple[int, ...] = ()
    by: tuple[int, ...] = ()
    outer_times: tuple[Thin, ...] = ()
    outer_by: tuple[Thin, ...] = ()


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
    return builder.program(program.inputs, program.outputs)


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
        free = not any(awaited & self.waits[v] for v in (term.x, *term.times, *term.by, *others))
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
                return self._divided(term, maker.inputs[1], ending)
            case ("mul", [Term() as term, None]) | ("mul", [None, Term() as term]):
                return self._multiplied(term, maker.inputs[1 if terms[0] else 0], ending)
        return None

    def _exponential(self, exponent: int, ending: tuple[int, ...]) -> Term | None:
        maker = self.makers.get(exponent)
        if maker is None or maker.name != "sub":
            return None
        x, shift = maker.inputs[0], self.thin(maker.inputs[1], ending)
        real = jnp.issubdtype(self.program.dtype(x), jnp.floating)
        same = self.program.shape(x) == self.program.shape(exponent)
        return Term(x, shift) if shift is not None and real and same else None

    def _multiplied(self, term: Term, factor: int, ending: tuple[int, ...]) -> Term:
        thin = self.thin(factor, ending)
        if thin is None:
            return replace(term, times=(*term.times, factor))
        return replace(term, outer_times=(*term.outer_times, thin))

    def _divided(self, term: Term, divisor: int, ending: tuple[int, ...]) -> Term:
        thin = self.thin(divisor, ending)
        if thin is None:
            return replace(term, by=(*term.by, divisor))
        return replace(term, outer_by=(*term.outer_by, thin))

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
    thins = (term.shift, *term.outer_times, *term.outer_by)
    operands = [term.x, *relative.outputs, *(thin.value for thin in thins)]
    absolute = _absolute(term, relative.params, builder.avals[equation.outputs[0]].dtype)
    builder.traced(absolute, operands, equation.caller)
    builder.equations.append(replace(builder.equations.pop(), outputs=equation.outputs))


def _relative_sum(builder: Builder, equation: Equation, side: int, term: Term) -> Equation:
    primitive = REDUCE_SUM if equation.name == "reduce_sum" else DOT_GENERAL
    inputs, params = list(equation.inputs), params_of(equation, side)
    inputs[side] = term.x
    if term.times or term.by:
        factor = _factor(term, builder.avals[term.x].shape, params["weights"])
        inputs += builder.traced(factor, [*term.times, *term.by], equation.caller)
    aval = builder.avals[equation.outputs[0]]
    aval = aval.update(dtype=jnp.promote_types(aval.dtype, jnp.float32), weak_type=False)
    variables = {"invars": [core.Var(builder.avals[v]) for v in inputs], "outvars": [core.Var(aval)]}
    source = equation.source.replace(primitive=primitive, **variables)
    return builder.keep(Equation(primitive, params, tuple(inputs), (builder.value(aval),), source, equation.caller))


def _factor(term: Term, shape: Sequence[int], dtype: Any) -> Callable[..., jax.Array]:
    """What the exponential is multiplied by before it is summed."""

    def factor(*arrays: jax.Array) -> jax.Array:
        return jnp.broadcast_to(_scaled(jnp.ones((1,) * len(shape), dtype), arrays, len(term.times)), shape)

    return factor


def _absolute(term: Term, params: Params, dtype: Any) -> Callable[..., jax.Array]:
    """From the relative sum to the one that was asked for."""
    thins = (term.shift, *term.outer_times, *term.outer_by)

    def absolute(x: jax.Array, total: jax.Array, *arrays: jax.Array) -> jax.Array:
        maximum = finite(jnp.max(x, axis=params["axes"], keepdims=True))
        shift, *outer = (thin.of(array, maximum.shape) for thin, array in zip(thins, arrays, strict=True))
        scales = [aligned(params, array) for array in (jnp.exp(maximum - shift), *outer)]
        return _scaled(total, scales, 1 + len(term.outer_times)).astype(dtype)

    return absolute


def _scaled(array: jax.Array, scales: Sequence[jax.Array], times: int) -> jax.Array:
    """An array multiplied by the first few, and divided by the others."""
    for number, scale in enumerate(scales):
        scale = scale.astype(array.dtype)
        array = array * scale if number < times else array / scale
    return array
