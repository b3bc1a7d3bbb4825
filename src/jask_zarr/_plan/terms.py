"""Terms of sums from which something is subtracted that is constant along the sum: how a value is made of one.

`exp(x - d) * f / c` and `(x - d)**2 / c`, in the forms that JAX's functions, their derivatives, and people write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from jask_zarr._plan.program import Equation, Program


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
    """``exp(x - shift)`` or ``(x - shift)**2``, multiplied or divided by factors."""

    awaits: str
    """The reduction of `x` that the shift comes from: reduce_max of exponentials, reduce_sum of squares."""
    x: int
    shift: Thin
    inner: tuple[tuple[int, bool], ...] = ()
    """Values, and whether they divide."""
    outer: tuple[tuple[Thin, bool], ...] = ()
    """Factors of the whole sum."""


class Terms:
    """Finds terms among the values of a program."""

    def __init__(self, program: Program, waits: Mapping[int, frozenset[int]]) -> None:
        self.program, self.waits = program, waits
        self.makers = {v: e for e in program.equations for v in e.outputs}
        self.known: dict[tuple[int, tuple[int, ...]], Term | None] = {}

    def term(self, value: int, ending: tuple[int, ...]) -> Term | None:
        """How a value is one term along the axes that end; None if it is not, or is several."""
        key = value, ending
        if key not in self.known:
            self.known[key] = self._term(value, ending)
        return self.known[key]

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
        if maker.name == "exp":
            return self._exponential(maker.inputs[0], ending)
        return self._square(maker, ending) or self._product(maker, value, ending)

    def _product(self, maker: Equation, value: int, ending: tuple[int, ...]) -> Term | None:
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
        if maker is None or maker.name != "sub":
            return None
        x, shift = maker.inputs
        return self._shifted("reduce_max", exponent, x, shift, ending)

    def _square(self, maker: Equation, ending: tuple[int, ...]) -> Term | None:
        difference = _squared(maker)
        less = difference is not None and self.makers.get(self._through(("convert_element_type",), difference))
        if not less or less.name != "sub":
            return None
        (difference,), (left, right) = less.outputs, less.inputs
        ways = (self._shifted("reduce_sum", difference, x, d, ending) for x, d in ((left, right), (right, left)))
        return next(filter(None, ways), None)

    def _shifted(self, awaits: str, difference: int, x: int, shift: int, ending: tuple[int, ...]) -> Term | None:
        """The term of a difference, if what is subtracted must wait and is constant along the sum."""
        thin = self.thin(shift, ending) if self.waits[shift] else None
        real = jnp.issubdtype(self.program.dtype(x), jnp.floating)
        same = self.program.shape(x) == self.program.shape(difference)
        return Term(awaits, x, thin) if thin is not None and real and same else None

    def _scaled(self, term: Term, factor: int, divides: bool, ending: tuple[int, ...]) -> Term | None:
        """The term with one more factor. What must wait is not summed: its parts are looked at."""
        thin, maker = self.thin(factor, ending), self.makers.get(factor)
        squares = term.awaits == "reduce_sum"
        if thin is not None and (squares or self.waits[factor]):
            return replace(term, outer=(*term.outer, (thin, divides)))
        if self.waits[factor] and maker is not None and maker.name in ("mul", "div"):
            left, right = maker.inputs
            scaled = self._scaled(term, left, divides, ending)
            return scaled and self._scaled(scaled, right, divides ^ (maker.name == "div"), ending)
        return None if squares else replace(term, inner=(*term.inner, (factor, divides)))

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
