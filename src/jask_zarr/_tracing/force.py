"""Forcing recorded values: one joint program for all that is asked for together.

1. `evaluate` runs one program: values in, each to memory or to a writer.
2. `force` makes values known. What fits the resident share of the budget stays in memory, the
   rest goes to scratch.
3. `replace` computes what stores will hold next, and, in the same passes, whatever live array
   was recorded from what they hold now; then it commits.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from jask_zarr import _compat, _config, _disk
from jask_zarr._plan import CHOOSE, InputSpec, OutputSpec, make_plan
from jask_zarr._run import run
from jask_zarr._tracing.expr import Graph, Resident, Stored, Value, assemble, collect
from jask_zarr._tracing.sources import Source, renewed

RESIDENT_SHARE = 4
"""One part in so many of the memory budget may hold forced results; plans get the rest."""

UNPLANNED = 16_000_000
"""Bytes of a large budget that are left to what no plan sees: XLA's packed operands, compiled code."""

MAX_REPEATED = 16
"""Calls on top of one another that are rather repeated than stored; a matmul is never repeated."""

lock = threading.RLock()
"""Held while values are forced: two threads that need one value compute it once."""

_live: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Everything that holds a value (in ``_value``) somebody may still ask for."""

_live_lock = threading.RLock()


@dataclass(frozen=True, eq=False)
class Program:
    """A graph's jaxpr and its plan."""

    graph: Graph
    consts: tuple[Any, ...]
    used: tuple[bool, ...]
    plan: Any


_programs: "OrderedDict[Any, Program]" = OrderedDict()
_MAX_PROGRAMS = 1024


def program_for(graph: Graph, targets: tuple[Any, ...]) -> Program:
    """The program of a graph, made once for each structure."""
    whole = _config.memory_budget()
    budget = whole * (RESIDENT_SHARE - 1) // RESIDENT_SHARE - (UNPLANNED if whole >= 4 * UNPLANNED else 0)
    key = (graph.key, targets, budget)
    if key in _programs:
        _programs.move_to_end(key)
        return _programs[key]
    program = _programs[key] = _planned(graph, targets, budget)
    while len(_programs) > _MAX_PROGRAMS:
        _programs.popitem(last=False)
    return program


def _planned(graph: Graph, targets: tuple[Any, ...], budget: int) -> Program:
    jaxpr, consts, used = assemble(graph)
    leaves = [value for value, flag in zip(graph.leaves, used, strict=True) if flag]
    fixed = (InputSpec(np.shape(c), np.asarray(c).dtype, None) for c in consts)
    inputs = (*fixed, *(_input_spec(value) for value in leaves))
    plan = make_plan(jaxpr, inputs, tuple(OutputSpec(chunks) for chunks in targets), budget)
    return Program(_skeleton(graph), tuple(consts), tuple(used), plan)


def _skeleton(graph: Graph) -> Graph:
    """The structure alone: keeps the functions (whose ids are in the key), and no data."""
    return Graph((), graph.steps, (), graph.roots)


def _input_spec(value: Value) -> InputSpec:
    chunks = tuple(value.leaf.source.array.chunks) if isinstance(value.leaf, Stored) else None
    return InputSpec(value.shape, value.dtype, chunks)


def _input(value: Value) -> Any:
    leaf = value.leaf
    return leaf.source.array if isinstance(leaf, Stored) else leaf.array


def check(value: Value) -> None:
    """Refuse a value whose store was replaced."""
    if isinstance(value.leaf, Stored):
        value.leaf.source.check()


def plan_for(values: Sequence[Value], targets: Sequence[Any]) -> Any:
    """The plan that would compute some values, for those who want to read it."""
    with lock, _compat.evaluating():
        return program_for(collect(values), tuple(targets)).plan


def evaluate(values: Sequence[Value], targets: Sequence[Any], open_writers: Any) -> list[Any]:
    """Compute values together.

    `targets` has, for each value, None (to memory), the chunks of its writer, or `CHOOSE`;
    ``open_writers(plan)`` gives the writers.
    """
    with lock, _compat.evaluating():
        graph = collect(values)
        for leaf in graph.leaves:
            check(leaf)
        program = program_for(graph, tuple(targets))
        inputs = [_input(v) for v, flag in zip(graph.leaves, program.used, strict=True) if flag]
        with _disk.one_version([v.leaf.source.array for v in graph.leaves if isinstance(v.leaf, Stored)]):
            return run(program.plan, [*program.consts, *inputs], open_writers(program.plan))


class _Lease:
    """A part of the resident share, given back when the values go."""

    used = 0

    def __init__(self, nbytes: int) -> None:
        _Lease.used += nbytes
        weakref.finalize(self, _Lease._release, nbytes).atexit = False

    @staticmethod
    def _release(nbytes: int) -> None:
        _Lease.used -= nbytes


def _targets(values: Iterable[Value]) -> list[Any]:
    """Memory while it lasts, else scratch."""
    room = _config.memory_budget() // RESIDENT_SHARE - _Lease.used
    targets: list[Any] = []
    for value in values:
        fits = value.nbytes <= room
        room -= value.nbytes if fits else 0
        targets.append(None if fits else CHOOSE)
    return targets


def _spill(value: Value, chunks: tuple[int, ...]) -> Any:
    return _disk.SpillFile.create(value.shape, value.dtype, chunks)


def _settle(value: Value, result: Any, writer: Any) -> None:
    if writer is None:
        value.settle(Resident(np.asarray(result), value.weak_type, _Lease(value.nbytes)))
    else:
        value.settle(Stored(Source(writer, is_scratch=True)))


class _Asked:
    """A value that a thread waits for."""

    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: Value) -> None:
        self._value = value
        watch(self)


@contextmanager
def _turn(values: Iterable[Value]) -> Iterator[None]:
    """Wait for the lock; an update that has it, of a store they read, makes the values known before it commits."""
    asked = [_Asked(value) for value in values]
    with lock:
        yield
    asked.clear()


def force(values: Iterable[Value]) -> None:
    """Make values known, each computed once and all together."""
    asked = [value for value in values if value.is_pending]
    with _turn(asked):
        pending = list({id(v): v for v in asked if v.is_pending}.values())
        if pending:
            to_memory([], pending)


def to_memory(values: Sequence[Value], kept: Sequence[Value] = ()) -> list[np.ndarray]:
    """The values as arrays in memory; in the same passes the `kept` ones are forced."""
    with _turn(values):
        kept = [*kept, *worth_keeping([*values, *kept])]
        targets = [*[None] * len(values), *_targets(kept)]
        writers: list[Any] = []

        def open_writers(plan: Any) -> list[Any]:
            every = zip([*values, *kept], targets, plan.output_chunks, strict=True)
            writers.extend(None if t is None else _spill(v, chunks) for v, t, chunks in every)
            return writers

        results = evaluate([*values, *kept], targets, open_writers)
        for value, result, writer in zip(kept, results[len(values) :], writers[len(values) :], strict=True):
            _settle(value, result, writer)
        return [np.asarray(result) for result in results[: len(values)]]


def read(value: Value) -> np.ndarray:
    """The whole of a value that is in a store."""
    copy = Value(value.shape, value.dtype, value.weak_type, leaf=Stored(value.leaf.source, borrowed=True))
    with _turn([copy]):  # no update replaces chunks between two that are read
        if not isinstance(copy.leaf, Stored):
            return np.array(copy.leaf.array)
        check(copy)
        array = copy.leaf.source.array
        with _disk.one_version([array]):
            return array.read_box((0,) * len(copy.shape), copy.shape)


def worth_keeping(roots: Sequence[Value]) -> list[Value]:
    """Results of costly calls below `roots` that somebody still holds.

    They are forced along with the roots, so that a backward pass does not compute a matmul
    again. What is elementwise on top of them is cheaper to compute again than to store, unless
    it is a long chain, as a loop makes it.
    """
    asked = {id(root) for root in roots}
    exprs = collect(roots).exprs
    held = _held({id(expr) for expr in exprs})
    kept: list[Value] = []
    cost: dict[int, int] = {}
    for expr in exprs:
        below = (cost.get(id(value.expr), 0) for value in expr.operands if value.expr is not None)
        cost[id(expr)] = max(below, default=0) + (MAX_REPEATED if expr.function.contracts else 1)
        if cost[id(expr)] >= MAX_REPEATED and id(expr) in held:
            kept.extend(value for value in held[id(expr)] if id(value) not in asked)
            cost[id(expr)] = 0
    return kept


def _held(exprs: set[int]) -> dict[int, list[Value]]:
    held: dict[int, list[Value]] = {}
    for value in live_values():
        if value.expr is not None and id(value.expr) in exprs and value.shape:
            held.setdefault(id(value.expr), []).append(value)
    return held


def watch(holder: Any) -> None:
    """Count the ``_value`` of an object among those that somebody may still ask for."""
    with _live_lock:
        _live.add(holder)


def live_values(holders: type = object) -> list[Value]:
    """The values that somebody may still ask for, each once."""
    with _live_lock:
        return list({id(h._value): h._value for h in _live if isinstance(h, holders)}.values())


def _dependents(sources: set[int], without: set[int], holders: type = object) -> list[Value]:
    """Live values that are computed from one of the sources."""
    known: dict[int, bool] = {}

    def reads(value: Value) -> bool:
        if value.expr is None:
            return isinstance(value.leaf, Stored) and id(value.leaf.source.origin) in sources
        return known[id(value.expr)]

    found = []
    for value in live_values(holders):
        if value.is_traced or id(value) in without:
            continue
        if value.expr is None:
            if reads(value) and value.leaf.borrowed:
                found.append(value)
            continue
        for expr in collect([value]).exprs:
            known.setdefault(id(expr), any(reads(operand) for operand in expr.operands))
        if reads(value):
            found.append(value)
    return found


def _answer(values: Sequence[Value]) -> None:
    """Compute what other threads wait for: each by itself, as they would, for which there is a plan."""
    for value in values:
        to_memory((), [value])


def replace(
    pairs: Sequence[tuple[Source, Value]], kept: Sequence[Value] = (), wanted: Sequence[Value] = ()
) -> tuple[list[Source], list[np.ndarray]]:
    """Let stores hold new values; give their new sources, and the `wanted` values in memory.

    All is computed from what the stores hold now, in joint passes, then committed together. The
    `kept` values are forced in the same passes, and so are live arrays that were recorded from
    what the stores hold now.
    """
    with lock:
        for source, _ in pairs:
            source.check()
        news = [value for _, value in pairs]
        origins, known = {id(s.origin) for s, _ in pairs}, {id(v) for v in (*news, *kept)}
        _answer(_dependents(origins, known, _Asked))
        dependents = _dependents(origins, known)
        forced = [*(v for v in kept if v.is_pending), *dependents]
        forced += worth_keeping([*news, *wanted, *forced])
        staged: list[Any] = []
        try:
            results = _write(pairs, wanted, forced, staged)
            _answer(_dependents(origins, known))  # recorded meanwhile, by other threads
            _disk.commit(staged)
        except BaseException:
            for update in staged:
                update.discard()
            raise
        fresh = [renewed(source) for source, _ in pairs]
        for source, value in zip(fresh, news, strict=True):
            if value.is_pending:
                value.settle(Stored(source, borrowed=True))
        return fresh, results


def _write(
    pairs: Sequence[tuple[Source, Value]], wanted: Sequence[Value], kept: Sequence[Value], staged: list[Any]
) -> list[np.ndarray]:
    staged.extend(_disk.stage(source.array) for source, _ in pairs)
    before = len(pairs) + len(wanted)
    targets = [*(tuple(s.array.write_chunks) for s, _ in pairs), *[None] * len(wanted), *_targets(kept)]
    writers: list[Any] = [*staged, *[None] * len(wanted)]

    def open_writers(plan: Any) -> list[Any]:
        chosen = zip(kept, targets[before:], plan.output_chunks[before:], strict=True)
        writers.extend(None if t is None else _spill(v, chunks) for v, t, chunks in chosen)
        return writers

    results = evaluate([*(v for _, v in pairs), *wanted, *kept], targets, open_writers)
    for value, result, writer in zip(kept, results[before:], writers[before:], strict=True):
        _settle(value, result, writer)
    return [np.asarray(result) for result in results[len(pairs) : before]]


def write(value: Value, array: Any) -> None:
    """Compute a value into a stored array that nobody reads yet."""
    evaluate([value], [tuple(array.write_chunks)], lambda plan: [array])
