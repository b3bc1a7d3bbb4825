"""Terms of sums, with what is constant along the sum told apart: how a value is made of one.

`exp(x - d) * f / c`, `(x - d)**2 / c`, `(x - d) * f / c` and `f / c`, in the forms that JAX's functions, their
derivatives, and people write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from jask_zarr._plan.program import Equation, Program

DEEPEST = 64
"""Equations that a term is followed through."""


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
    """``exp(x - shift)`` or a power of ``x - shift``, multiplied or divided by factors."""

    x: int
    shift: Thin
    power: int | None
    """1 or 2; 0 if there are only factors; None of an exponential."""
    inner: tuple[tuple[int, bool], ...] = ()
    """Values, and whether they divide."""
    outer: tuple[tuple[Thin, bool], ...] = ()
    """Factors of the whole sum."""
    sign: int = 1

    @property
    def awaits(self) -> str:
        """The reduction of `x` that the shift comes from."""
        return "reduce_max" if self.power is None else "reduce_sum"


class Terms:
    """Finds terms among the values of a program."""

    def __init__(self, program: Program, waits: Mapping[int, frozenset[int]]) -> None:
        self.program, self.waits = program, waits
        self.makers = {v: e for e in program.equations for v in e.outputs}
        self.known: dict[tuple[int, tuple[int, ...]], Term | None] = {}
        self.depth = 0

    def term(self, value: int, ending: tuple[int, ...]) -> Term | None:
        """How a value is one term along the axes that end; None if it is not, or is several."""
        key = value, ending
        if key not in self.known and self.depth < DEEPEST:
            self.depth += 1
            self.known[key] = self._term(value, ending) if self.waits[value] else None
            self.depth -= 1
        return self.known.get(key)

    def source(self, value: int) -> int:
        """The value of which it is a transpose, or the same in another type."""
        return self._through(("transpose", "convert_element_type"), value)

    def _through(self, names: Sequence[str], value: int) -> int:
        while value in self.makers and self.makers[value].name in names:
            (value,) = self.makers[value].inputs
        return value

    def _term(self, value: int, ending: tuple[int, ...]) -> Term | None:
        maker = self.makers.get(value)
        if maker is None or not jnp.issubdtype(self.program.dtype(value), jnp.inexact):
            return None
        match maker.name:
            case "exp":
                return self._difference(maker.inputs[0], ending, None)
            case "sub":
                return self._difference(value, ending, 1)
            case "neg":
                term = self.term(maker.inputs[0], ending)
                return term and replace(term, sign=-term.sign)
            case "convert_element_type":
                return self.term(maker.inputs[0], ending)
            case "mul" | "div" | "square" | "integer_pow":
                return self._square(maker, ending) or self._product(maker, value, ending)
        return None

    def _difference(self, value: int, ending: tuple[int, ...], power: int | None) -> Term | None:
        maker = self.makers.get(value)
        if maker is None or maker.name != "sub":
            return None
        left, right = maker.inputs
        term = self._shifted(value, left, right, ending, power)
        other = self._shifted(value, right, left, ending, power) if power and term is None else None
        return term or (other and replace(other, sign=-1))

    def _square(self, maker: Equation, ending: tuple[int, ...]) -> Term | None:
        value = _squared(maker)
        term = None if value is None else self.term(value, ending)
        if term is None or term.power != 1 or term.inner:
            return None
        return replace(term, power=2, outer=term.outer * 2, sign=1)

    def _product(self, maker: Equation, value: int, ending: tuple[int, ...]) -> Term | None:
        """The term of one operand, with the other one as a factor."""
        if len(maker.inputs) != 2:
            return None
        (left, right), shape = maker.inputs, self.program.shape(value)
        ways = [(left, right, maker.name == "div"), *([(right, left, False)] if maker.name == "mul" else [])]
        ways = [way for way in ways if self.program.shape(way[0]) == shape]
        terms = [(term, *way[1:]) for way in ways if (term := self.term(way[0], ending)) is not None]
        main = [way for way in terms if way[0].power != 0] or terms
        if len(main) > 1 and main[0][0].power != 0:
            return None
        for term, factor, divides in main:
            return self._scaled(term, factor, divides, ending)
        return next(filter(None, (self._factors(*way, ending) for way in ways)), None)

    def _factors(self, value: int, factor: int, divides: bool, ending: tuple[int, ...]) -> Term | None:
        """Nothing but factors, one of which must wait and is constant along the sum."""
        thin = self.thin(factor, ending) if self.waits[factor] else None
        return thin and Term(value, thin, 0, ((value, False),), ((thin, divides),))

    def _shifted(self, difference: int, x: int, shift: int, ending: tuple[int, ...], power: int | None) -> Term | None:
        """The term of a difference, if what is subtracted must wait and is constant along the sum."""
        thin = self.thin(shift, ending) if self.waits[shift] else None
        real = jnp.issubdtype(self.program.dtype(x), jnp.floating)
        same = self.program.shape(x) == self.program.shape(difference)
        return Term(x, thin, power) if thin is not None and real and same else None

    def _scaled(self, term: Term, factor: int, divides: bool, ending: tuple[int, ...]) -> Term | None:
        """The term with one more factor. What must wait is not summed: its parts are looked at."""
        thin, maker = self.thin(factor, ending), self.makers.get(factor)
        if thin is not None and (term.power is not None or self.waits[factor]):
            return replace(term, outer=(*term.outer, (thin, divides)))
        if self.waits[factor] and maker is not None and maker.name in ("mul", "div"):
            left, right = maker.inputs
            scaled = self._scaled(term, left, divides, ending)
            return scaled and self._scaled(scaled, right, divides ^ (maker.name == "div"), ending)
        return None if term.power == 2 else replace(term, inner=(*term.inner, (factor, divides)))

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


def _squared(equation: Equation) -> int | None:
    """The value that an equation squares."""
    match equation.name, equation.inputs:
        case "square", (value,):
            return value
        case "integer_pow", (value,):
            return value if equation.params["y"] == 2 else None
        case "mul", (left, right):
            return left if left == right else None
    return None
