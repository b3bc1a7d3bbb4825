"""Recorded expressions, and how a graph of them becomes one jaxpr.

1. An operation on arrays that are too large to compute at once is recorded: an `Expr` is one
   call of a `Function` on `Value` operands.
2. A `Value` is a leaf (stored, in memory, or a tracer while JAX lowers a function) or one result
   of an `Expr`. Once forced it is a leaf for everybody who refers to it.
3. To force values, the graph below them is collected; equal calls become one. Its structure
   (which functions, wired how, on leaves of which types and chunks) is the key of a `Program`:
   one flat jaxpr and its plan, made once for each structure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jask_zarr import _compat
from jask_zarr._tracing.function import Function
from jask_zarr._tracing.sources import Source


@dataclass(frozen=True, eq=False, slots=True)
class Stored:
    """A leaf whose values are in a store."""

    source: Source
    borrowed: bool = False
    """The store was replaced by this value: the next update of the store must copy it first."""

    traced = False

    @property
    def kind(self) -> tuple[Any, ...]:
        return ("stored", *self.source.kind)


@dataclass(frozen=True, eq=False, slots=True)
class Resident:
    """A leaf whose values are in memory."""

    array: Any
    weak_type: bool = False
    lease: Any = None
    """Holds the share of the memory budget that the values take."""

    traced = False

    @property
    def kind(self) -> tuple[Any, ...]:
        return ("memory", tuple(self.array.shape), np.dtype(self.array.dtype), self.weak_type)


@dataclass(eq=False, slots=True)
class Traced:
    """A leaf that is known when the compiled function runs."""

    tracer: Any
    """An array; or, if `is_handle`, the number (or the numbers, if stacked) of arrays."""
    is_handle: bool
    parked: Any = None
    """The handle under which a large array in memory is put aside."""
    uses: list[int] = field(default_factory=lambda: [0])

    traced = True

    @property
    def kind(self) -> tuple[Any, ...]:
        return ("traced", id(self))


Leaf = Stored | Resident | Traced


class Value:
    """An array that is known or recorded: a leaf, or result `index` of `expr`."""

    __slots__ = ("__weakref__", "dtype", "expr", "index", "leaf", "pieces", "shape", "weak_type")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        weak_type: bool = False,
        *,
        leaf: Any = None,
        expr: "Expr | None" = None,
        index: int = 0,
    ) -> None:
        self.shape, self.dtype, self.weak_type = tuple(shape), np.dtype(dtype), weak_type
        self.leaf: Any = leaf
        """A `Leaf`; None while it is pending."""
        self.expr, self.index = expr, index
        self.pieces: tuple[Value, ...] = ()

    @property
    def is_pending(self) -> bool:
        return self.expr is not None

    @property
    def is_traced(self) -> bool:
        """Does it depend on a tracer?"""
        expr = self.expr
        return self.leaf.traced if expr is None else expr.is_traced

    @property
    def depth(self) -> int:
        """How many calls deep the recorded expression is, at most."""
        expr = self.expr
        return 0 if expr is None else expr.depth

    @property
    def is_costly(self) -> bool:
        """Is there a matmul or the like between the value and what is known?"""
        expr = self.expr
        return expr is not None and expr.is_costly

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def settle(self, leaf: Leaf) -> None:
        """The value is known now, and what it was computed from is let go."""
        self.leaf = leaf
        self.expr = None


class Expr:
    """One recorded call."""

    __slots__ = ("__weakref__", "depth", "function", "is_costly", "is_traced", "operands")

    def __init__(self, function: Function, operands: Sequence[Value]) -> None:
        self.function = function
        self.operands = tuple(operands)
        self.depth = 1 + max((value.depth for value in self.operands), default=0)
        self.is_traced = any(value.is_traced for value in self.operands)
        self.is_costly = function.contracts or any(v.is_costly for v in self.operands)

    def results(self) -> list[Value]:
        avals = self.function.out_avals
        return [Value(a.shape, a.dtype, a.weak_type, expr=self, index=k) for k, a in enumerate(avals)]


def stored(source: Source) -> Value:
    return Value(source.array.shape, source.array.dtype, leaf=Stored(source))


def resident(array: Any, weak_type: bool = False) -> Value:
    return Value(array.shape, array.dtype, weak_type, leaf=Resident(array, weak_type))


def constants(function: Function) -> list[Value]:
    return [resident(c if hasattr(c, "shape") else np.asarray(c)) for c in function.consts]


def record(function: Function, operands: Sequence[Value]) -> list[Value]:
    """Record a call; nothing is computed."""
    return Expr(function, [*constants(function), *operands]).results()


Ref = tuple[int, int]
"""Leaf k is ``(-1, k)``; result i of step j is ``(j, i)``."""


@dataclass(frozen=True, eq=False)
class Graph:
    """What values are computed from: leaves, calls in order, and where the values are."""

    leaves: tuple[Value, ...]
    steps: tuple[tuple[Function, tuple[Ref, ...]], ...]
    exprs: tuple[Expr, ...]
    roots: tuple[Ref, ...]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for graphs that run the same program."""
        steps = tuple((id(function), refs) for function, refs in self.steps)
        return (steps, tuple(leaf_kind(value) for value in self.leaves), self.roots)

    def evaluate(self, leaves: Sequence[Any], call: Any) -> list[Any]:
        """Interpret the graph: `call(function, operands)` gives the results of one step."""
        done: list[Any] = []

        def read(ref: Ref) -> Any:
            step, k = ref
            return leaves[k] if step < 0 else done[step][k]

        for function, refs in self.steps:
            done.append(call(function, [read(ref) for ref in refs]))
        return [read(ref) for ref in self.roots]


def leaf_kind(value: Value) -> tuple[Any, ...]:
    """What the plan depends on: shape, dtype and chunks, but not which array it is."""
    leaf = value.leaf
    return leaf.kind if not isinstance(leaf, Traced) else ("traced", value.shape, value.dtype)


def _leaf_identity(leaf: Leaf) -> int:
    if isinstance(leaf, Stored):
        return id(leaf.source)
    return id(leaf.array if isinstance(leaf, Resident) else leaf)


class _Collector:
    def __init__(self) -> None:
        self.leaves: list[Value] = []
        self.leaf_refs: dict[int, Ref] = {}
        self.steps: list[tuple[Function, tuple[Ref, ...]]] = []
        self.exprs: list[Expr] = []
        self.numbers: dict[Any, int] = {}
        self.known: dict[int, int] = {}

    def ref(self, value: Value) -> Ref:
        if value.expr is not None:
            return (self.known[id(value.expr)], value.index)
        identity = _leaf_identity(value.leaf)
        if identity not in self.leaf_refs:
            self.leaf_refs[identity] = (-1, len(self.leaves))
            self.leaves.append(value)
        return self.leaf_refs[identity]

    def visit(self, root: Value) -> None:
        """Add the calls below a value, operands first (without recursion: chains are long)."""
        stack = [root.expr] if root.expr is not None else []
        while stack:
            expr = stack[-1]
            todo = [] if id(expr) in self.known else self._unknown(expr)
            if todo:
                stack.extend(todo)
                continue
            stack.pop()
            self._add(expr)

    def _unknown(self, expr: Expr) -> list[Expr]:
        pending = (value.expr for value in expr.operands)
        return [e for e in pending if e is not None and id(e) not in self.known]

    def _add(self, expr: Expr) -> None:
        if id(expr) in self.known:
            return
        refs = tuple(self.ref(value) for value in expr.operands)
        call = (id(expr.function), refs)
        if call not in self.numbers:
            self.numbers[call] = len(self.steps)
            self.steps.append((expr.function, refs))
            self.exprs.append(expr)
        self.known[id(expr)] = self.numbers[call]


def collect(roots: Sequence[Value]) -> Graph:
    """The graph below some values."""
    collector = _Collector()
    for root in roots:
        collector.visit(root)
    refs = tuple(collector.ref(root) for root in roots)
    return Graph(tuple(collector.leaves), tuple(collector.steps), tuple(collector.exprs), refs)


def assemble(graph: Graph) -> tuple[Any, list[Any], list[bool]]:
    """One flat jaxpr for a graph, its constants (the first inputs), and which leaves it needs."""

    def call(function: Function, operands: Sequence[Any]) -> list[Any]:
        return _compat.as_function(function.jaxpr)(*operands)

    with jax.enable_x64(True):  # the graph states its dtypes, whatever the setting is now
        avals = [jax.ShapeDtypeStruct(v.shape, v.dtype, weak_type=v.weak_type) for v in graph.leaves]
        jaxpr = jax.make_jaxpr(lambda *leaves: graph.evaluate(leaves, call))(*avals)
    jaxpr, consts = _compat.hoist_constants(jaxpr)
    jaxpr, used = _compat.dce(jaxpr, [True] * len(graph.roots))
    consts = [const for const, flag in zip(consts, used, strict=False) if flag]
    return jaxpr, consts, used[len(used) - len(graph.leaves) :]
