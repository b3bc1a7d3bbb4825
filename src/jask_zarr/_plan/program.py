"""From a jaxpr to a flat program.

1. Calls (``jit``, ``custom_jvp``, ``custom_vjp``, ``checkpoint``, hijax primitives) are inlined; short loops and
   branches over large arrays become equations.
2. Contractions of transposes contract what is transposed.
3. Equal equations are computed once, so that a backward pass that repeats the forward pass shares it.
4. Equations that no output needs are dropped.

A value is an integer; its aval stands in ``Program.avals``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jask_zarr import _compat
from jask_zarr._plan.flat import flat_gather, is_many_dimensional
from jask_zarr._plan.fold import fold_transposes

LARGE = 1 << 18
"""Elements from which an array is worth streaming through a loop or a branch."""
MAX_UNROLLED = 4096
"""Equations that an unrolled loop may have."""

MAX_JOINED = 16
"""Copies of an array that are each an operand of their own."""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One primitive applied to values."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    source: Any
    """The jaxpr equation, for its avals."""
    caller: Any
    """The outermost equation that led here, for the user's line."""
    in_order: bool = False
    """Whether rows are added in the order of their numbers: what goes to a tile of the table is in one place."""

    @property
    def name(self) -> str:
        return self.primitive.name


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A flat list of equations over numbered values."""

    avals: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    equations: tuple[Equation, ...]
    constants: dict[int, np.ndarray]
    orders: dict[int, int] = field(default_factory=dict)
    """Of values that put row numbers in order: which numbers."""
    apart: dict[int, str] = field(default_factory=dict)
    """Values that are computed before what needs them, and why."""

    def shape(self, value: int) -> tuple[int, ...]:
        return self.avals[value].shape

    def dtype(self, value: int) -> np.dtype:
        return self.avals[value].dtype

    def nbytes(self, value: int) -> int:
        return math.prod(self.shape(value)) * itemsize(self.dtype(value))


@cache
def itemsize(dtype: Any) -> int:
    """Bytes of one element; extended dtypes (PRNG keys) count their base array."""
    return np.dtype(dtype).itemsize if not jnp.issubdtype(dtype, jax.dtypes.extended) else 16


def flatten(closed_jaxpr: Any) -> Program:
    """Inline, share and prune: the program that the planner works on."""
    builder = Builder()
    inputs = tuple(builder.value(v.aval) for v in closed_jaxpr.jaxpr.invars)
    outputs = builder.inline(closed_jaxpr, inputs)
    equations = _live(builder.equations, outputs)
    return Program(tuple(builder.avals), inputs, tuple(outputs), equations, builder.constants)


class Builder:
    """Equations, in the making."""

    def __init__(self) -> None:
        self.avals: list[Any] = []
        self.equations: list[Equation] = []
        self.constants: dict[int, np.ndarray] = {}
        self.known: dict[Any, tuple[int, ...]] = {}
        self.transposed: dict[int, tuple[int, Any, tuple[int, ...]]] = {}

    @classmethod
    def with_values_of(cls, program: Program) -> Builder:
        """A builder that knows all values of a program, and has none of its equations yet."""
        builder = cls()
        builder.avals, builder.constants = list(program.avals), dict(program.constants)
        return builder

    def rewritten(self, program: Program, **changes: Any) -> Program:
        """The program with what has been built, less the equations that no output needs."""
        equations = _live(self.equations, program.outputs)
        return replace(program, avals=tuple(self.avals), equations=equations, constants=self.constants, **changes)

    def keep(self, equation: Equation) -> Equation:
        """Take an equation over as it is."""
        self.equations.append(equation)
        key = _key(equation, equation.inputs)
        if key is not None and not equation.source.effects and not equation.in_order:
            self.known[key] = equation.outputs
        return equation

    def value(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, aval: Any, array: Any) -> int:
        if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            array = np.asarray(array, dtype=aval.dtype)
        key = (
            ("constant", aval.shape, aval.dtype, array.tobytes())
            if aval.shape == () and isinstance(array, np.ndarray)
            else None
        )
        if key is not None and key in self.known:
            return self.known[key][0]
        value = self.value(aval)
        self.constants[value] = array
        if key is not None:
            self.known[key] = (value,)
        return value

    def inline(self, closed_jaxpr: Any, inputs: Sequence[int], caller: Any = None) -> list[int]:
        jaxpr = closed_jaxpr.jaxpr
        names: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, array in zip(jaxpr.constvars, closed_jaxpr.consts, strict=True):
            names[variable] = self.constant(variable.aval, array)

        def read(atom: Any) -> int:
            return self.constant(atom.aval, atom.val) if isinstance(atom, core.Literal) else names[atom]

        for equation in jaxpr.eqns:
            operands = tuple(read(atom) for atom in equation.invars)
            inner, outermost = called_jaxpr(equation), caller or equation
            if inner is not None:
                outputs = self.inline(inner, operands, outermost)
            elif self.unrolls(equation, operands):
                outputs = self.unroll(equation, operands, outermost)
            elif self.selects(equation, operands):
                outputs = self.select(equation, operands, outermost)
            elif equation.primitive.name == "tile" and self._is_large(operands):
                outputs = self.traced(_repeated(equation.params["reps"]), operands, outermost)
            elif is_many_dimensional(equation):
                outputs = self.traced(flat_gather(equation), operands, outermost)
            else:
                outputs = self.apply(equation, operands, outermost)
            names.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _is_large(self, operands: Sequence[int]) -> bool:
        return any(math.prod(self.avals[v].shape) > LARGE for v in operands)

    def unrolls(self, equation: core.JaxprEqn, operands: Sequence[int]) -> bool:
        """A short loop over large arrays is unrolled, so that they stream through it."""
        if equation.primitive.name != "scan" or not self._is_large(operands):
            return False
        length = equation.params["length"] * len(equation.params["jaxpr"].jaxpr.eqns)
        return length <= MAX_UNROLLED

    def unroll(self, equation: core.JaxprEqn, operands: Sequence[int], caller: Any) -> list[int]:
        consts, carried = _compat.scan_sizes(equation.params)
        length, body = equation.params["length"], equation.params["jaxpr"]
        carry = list(operands[consts : consts + carried])
        rows: list[list[int]] = []
        for n in reversed(range(length)) if equation.params["reverse"] else range(length):
            xs = [self.traced(_row(n), [v], caller)[0] for v in operands[consts + carried :]]
            results = self.inline(body, [*operands[:consts], *carry, *xs], caller)
            carry = results[:carried]
            rows.append(results[carried:])
        rows = rows[::-1] if equation.params["reverse"] else rows
        stacked = [self.traced(_stacked, list(column), caller)[0] for column in zip(*rows, strict=True)]
        return [*carry, *stacked]

    def selects(self, equation: core.JaxprEqn, operands: Sequence[int]) -> bool:
        """Branches over large arrays are all computed, tile by tile, and one is chosen."""
        effects = getattr(equation, "effects", ())
        return equation.primitive.name == "cond" and not effects and self._is_large(operands)

    def select(self, equation: core.JaxprEqn, operands: Sequence[int], caller: Any) -> list[int]:
        which, *rest = operands
        branches = [self.inline(branch, rest, caller) for branch in equation.params["branches"]]
        return [self.traced(_chosen, [which, *results], caller)[0] for results in zip(*branches, strict=True)]

    def traced(self, function: Any, operands: Sequence[int], caller: Any) -> list[int]:
        """Apply a function of JAX arrays to values."""
        structs = [jax.ShapeDtypeStruct(self.avals[v].shape, self.avals[v].dtype) for v in operands]
        return self.inline(jax.make_jaxpr(function)(*structs), operands, caller)

    def converted(self, value: int, equation: Equation) -> None:
        """Let a value stand for the result of an equation, in its type."""
        have, wanted = self.avals[value], self.avals[equation.outputs[0]].dtype
        convert = jnp.copy if have.dtype == wanted else lambda x: lax.convert_element_type(x, wanted)
        (source,) = jax.make_jaxpr(convert)(jax.ShapeDtypeStruct(have.shape, have.dtype)).jaxpr.eqns
        self.equations.append(
            replace(equation, primitive=source.primitive, params=source.params, inputs=(value,), source=source)
        )

    def apply(self, equation: core.JaxprEqn, operands: tuple[int, ...], caller: Any) -> tuple[int, ...]:
        if equation.primitive.name == "dot_general":
            equation, operands = fold_transposes(equation, operands, self.transposed)
        key = _key(equation, operands)
        if key in self.known:
            return self.known[key]
        outputs = tuple(self.value(v.aval) for v in equation.outvars)
        self.keep(Equation(equation.primitive, equation.params, operands, outputs, equation, caller))
        if equation.primitive.name == "transpose":
            (operand,) = operands
            self.transposed[outputs[0]] = operand, self.avals[operand], equation.params["permutation"]
        return outputs


def _row(n: int) -> Any:
    return lambda x: lax.index_in_dim(x, n, 0, keepdims=False)


def _stacked(*rows: Any) -> Any:
    return jnp.stack(rows)


def _repeated(times: Sequence[int]) -> Any:
    """Copies side by side; of many, each with all of the operand."""

    def function(x: Any) -> Any:
        for d, n in enumerate(times):
            if n > MAX_JOINED:
                copies = jnp.broadcast_to(jnp.expand_dims(x, d), (*x.shape[:d], n, *x.shape[d:]))
                x = copies.reshape(*x.shape[:d], -1, *x.shape[d + 1 :])
            elif n != 1:
                x = lax.concatenate([x] * n, d) if n else x[(slice(None),) * d + (slice(0),)]
        return x

    return function


def _chosen(which: Any, *cases: Any) -> Any:
    if len(cases) == 1:
        return cases[0]
    return lax.select_n(which != 0 if len(cases) == 2 else which, *cases)


def called_jaxpr(equation: core.JaxprEqn) -> Any:
    """The jaxpr behind a call equation, or None if the equation is not a call."""
    name = equation.primitive.name
    if name == "call_hi_primitive":
        return _hi_primitive_jaxpr(equation.params["_prim"])
    if name not in CALLS:
        return None
    jaxpr = equation.params[CALLS[name]]
    return jaxpr if hasattr(jaxpr, "consts") else _compat.closed(jaxpr)


def _hi_primitive_jaxpr(primitive: Any) -> Any:
    if hasattr(primitive, "closed_jaxpr"):
        return primitive.closed_jaxpr
    return jax.make_jaxpr(primitive.expand)(*primitive.in_avals)


def _key(equation: core.JaxprEqn | Equation, operands: tuple[int, ...]) -> Any:
    try:
        params = tuple(sorted(equation.params.items()))
        hash(params)
    except TypeError:
        return None
    return (equation.primitive, params, operands)


def _live(equations: list[Equation], outputs: Sequence[int]) -> tuple[Equation, ...]:
    needed, kept = set(outputs), []
    for equation in reversed(equations):
        if needed.intersection(equation.outputs):
            needed.update(equation.inputs)
            kept.append(equation)
    return tuple(reversed(kept))
