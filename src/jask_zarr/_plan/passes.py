"""From a program to passes.

1. The *targets* are the program's outputs and the values *kept* between passes.
2. Targets that depend on the same kept values form a level; targets of a level that read the same arrays form a group.
3. A group is swept, its tiles are chosen. If that cuts a label that some value in the middle reduces (a softmax over a
   split axis), or computes a contraction again and again, that value is kept too, and planning begins anew; sums are
   first freed from the maxima and means that they would wait for (`online`).
4. What does not fit jointly, or would read more jointly, becomes one pass a target.
5. If tiles are larger than wanted, all sums are freed, and the plan is taken that has the smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from jask_zarr import _compat
from jask_zarr._plan import tiles
from jask_zarr._plan.labels import Axis, Index, axes
from jask_zarr._plan.model import moments, penalties, reduces, span_bytes, work
from jask_zarr._plan.online import online
from jask_zarr._plan.order import in_order
from jask_zarr._plan.plan import CHOOSE, Destination, InputSpec, Kept, Loop, OutputSpec, Pass, Plan, Result
from jask_zarr._plan.program import Program, flatten, itemsize
from jask_zarr._plan.sweep import Step, Sweep, Version, sweep
from jask_zarr._plan.tiles import (
    Footprint,
    Model,
    Partial,
    Stream,
    Tiling,
    choose_tiles,
    footprint,
    total,
)
from jask_zarr.errors import MemoryBudgetError

CHUNK_BYTES = 4 << 20
FLOPS_PER_SECOND = 3e10
BYTES_PER_SECOND = 1e9


def make_plan(
    closed_jaxpr: Any, inputs: tuple[InputSpec, ...], outputs: tuple[OutputSpec, ...], budget: int, workers: int = 3
) -> Plan:
    """Plan how to compute a jaxpr without constants within `budget` bytes.

    Plans are cached by the identity of the jaxpr and the value of everything else.
    """
    return _cached_plan(closed_jaxpr, tuple(inputs), tuple(outputs), budget, workers, tiles.TILE_BYTES)


@lru_cache(maxsize=1024)
def _cached_plan(
    closed_jaxpr: Any,
    inputs: tuple[InputSpec, ...],
    outputs: tuple[OutputSpec, ...],
    budget: int,
    workers: int,
    tile_bytes: int,
) -> Plan:
    program = flatten(closed_jaxpr)
    chunks = {v: s.chunks for v, s in zip(program.inputs, inputs, strict=True) if s.chunks is not None}
    ways = dict.fromkeys((in_order(program, chunks, budget, tile_bytes), program))
    as_written = _Planner(program, chunks, inputs, outputs, budget, workers, tile_bytes, frees=False)
    planners = [replace(as_written, program=way, kept={}, frees=True) for way in ways]
    try:
        plan = _first_good(planners)
    except MemoryBudgetError:
        return as_written.plan()
    return _smaller(plan, replace(planners[0], program=_all_online(plan.program), kept={}))


def _all_online(program: Program) -> Program:
    """The program with no sum that would wait for a maximum or a mean if it were split."""
    return online(program, {v for equation in program.equations for v in equation.outputs})


def _smaller(plan: Plan, planner: _Planner) -> Plan:
    """A plan; another one if that has smaller tiles where they are larger than wanted, and reads no more."""
    if planner.program is plan.program or all(p.tiling.tile_bytes <= p.tiling.wanted for p in plan.passes):
        return plan
    try:
        other = planner.plan()
    except MemoryBudgetError:
        return plan
    return other if _largest(other) < _largest(plan) and _traffic(other) <= _traffic(plan) else plan


def _largest(plan: Plan) -> int:
    return max((p.tiling.tile_bytes for p in plan.passes), default=0)


def _traffic(plan: Plan) -> int:
    return sum(p.tiling.traffic for p in plan.passes)


def _first_good(planners: Sequence[_Planner]) -> Plan:
    """The first plan that fits and does not read far more than the next: sorting may make other passes narrow."""
    plans, problems = [], []
    for planner in planners:
        try:
            plans.append(planner.plan())
        except MemoryBudgetError as problem:
            problems.append(problem)
    if not plans:
        raise problems[0]
    reads = [*map(_traffic, plans)]
    return plans[-1] if reads[0] > 2 * reads[-1] else plans[0]


@dataclass
class _Group:
    targets: list[int]
    in_memory: list[int]
    """Targets whose results are in memory as a whole."""
    sweep: Sweep
    model: Model
    tiling: Tiling


@dataclass
class _Planner:
    program: Program
    chunks: dict[int, tuple[int, ...]]
    """Of the values that are on disk."""
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    budget: int
    workers: int
    tile_bytes: int
    frees: bool = True
    """Whether sums are freed from what they would wait for."""
    kept: dict[int, Kept] = field(default_factory=dict)

    def plan(self) -> Plan:
        self.writes = self._write_grids()
        while True:
            groups = list(self._groups())
            more = {v: reason for g in groups for v, reason in self._to_keep(g) if v not in self.kept}
            if not more:
                return self._finish([*map(self._checked, groups)])
            known = self.program
            if self.frees:
                self.program = online(self.program, {*self.kept, *more})
            if self.program is known:
                for value, reason in more.items():
                    self._keep(value, reason)

    def _write_grids(self) -> dict[int, list[tuple[int, ...]]]:
        grids: dict[int, list[tuple[int, ...]]] = {}
        for value, spec in zip(self.program.outputs, self.outputs, strict=True):
            if spec.chunks is not None and spec.chunks != CHOOSE:
                grids.setdefault(value, []).append(tuple(spec.chunks))
        return grids

    def _keep(self, value: int, reason: str) -> None:
        nbytes = self.program.nbytes(value)
        self.kept[value] = Kept(value, nbytes > self.budget // 8, (), reason)

    # -- groups --

    def _groups(self) -> Iterator[_Group]:
        for level in self._levels():
            for targets in self._connected(level):
                for group in self._tiled(targets):
                    self._place_kept(group)
                    yield group

    def _place_kept(self, group: _Group) -> None:
        """Give kept values their chunks, so that the passes that read them are planned on the same grid."""
        for version in group.sweep.targets:
            if version[0] in self.kept:
                old = self.kept[version[0]]
                self.kept[version[0]] = Kept(old.value, old.on_disk, self._choose_chunks(group, version), old.reason)

    def _levels(self) -> list[list[int]]:
        """Targets by the number of passes that must come before."""
        targets = list(dict.fromkeys([*self.program.outputs, *self.kept]))
        needs, self.reads = self._reach()
        levels: dict[int, int] = {}

        def level(value: int) -> int:
            if value not in levels:
                levels[value] = 1 + max((level(v) for v in needs[value]), default=-1)
            return levels[value]

        latest = max((level(v) for v in targets), default=-1)
        for value in sorted(targets, key=lambda v: -levels[v]):
            levels[value] = self._later(value, levels, targets)
        result: list[list[int]] = [[] for _ in range(1 + latest)]
        for value in targets:
            result[levels[value]].append(value)
        return result

    def _later(self, value: int, levels: dict[int, int], targets: Sequence[int]) -> int:
        """The level of a target; an output waits for others that read its arrays later, if none has to read now."""
        own = levels[value]
        together = [v for v in targets if self.reads[v] & self.reads[value]]
        if any(v in self.kept and levels[v] == own for v in (value, *together)):
            return own
        return min((levels[v] for v in together if levels[v] > own), default=own)

    def _reach(self) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
        """For each value: the kept values it needs first, and the arrays on disk it reads."""
        none: frozenset[int] = frozenset()
        needs: dict[int, frozenset[int]] = {}
        reads: dict[int, frozenset[int]] = {}
        for value in (*self.program.inputs, *self.program.constants):
            needs[value], reads[value] = none, frozenset({value}) & self.chunks.keys()
        for equation in self.program.equations:
            needed = none.union(*(frozenset({v}) if v in self.kept else needs[v] for v in equation.inputs))
            read = none.union(*(self._read(v, reads) for v in equation.inputs))
            for value in equation.outputs:
                needs[value], reads[value] = needed, read
        return needs, reads

    def _read(self, value: int, reads: dict[int, frozenset[int]]) -> frozenset[int]:
        if value in self.kept:
            return frozenset({value}) if self.kept[value].on_disk else frozenset()
        return reads[value]

    def _connected(self, targets: Sequence[int]) -> list[list[int]]:
        """Targets that read a common array; those that read none are one group."""
        groups: list[tuple[set[int], list[int]]] = []
        for target in targets:
            reads = set(self.reads[target])
            joined = [target]
            rest = []
            for other_reads, others in groups:
                if other_reads & reads or not (other_reads or reads):
                    reads |= other_reads
                    joined = others + joined
                else:
                    rest.append((other_reads, others))
            groups = [*rest, (reads, joined)]
        return [joined for _, joined in groups]

    def _tiled(self, targets: list[int]) -> list[_Group]:
        joint = self._group(targets)
        compulsory = sum({s.version[0]: s.nbytes for s in joint.model.reads}.values())
        if len(targets) == 1 or (joint.tiling.fits and joint.tiling.traffic <= compulsory):
            return [joint]
        if joint.tiling.fits and self._least_alone(joint) >= joint.tiling.traffic:
            return [joint]
        alone = [self._group([t]) for t in targets]
        if not joint.tiling.fits or sum(g.tiling.traffic for g in alone) < joint.tiling.traffic:
            return alone
        return [joint]

    def _least_alone(self, joint: _Group) -> int:
        """Bytes that passes of one target each would read at least."""
        nbytes = {s.version[0]: s.nbytes for s in joint.model.reads}
        return sum(nbytes.get(v, 0) for target in joint.targets for v in self.reads[target])

    def _group(self, targets: list[int]) -> _Group:
        cuts = {*self.program.inputs, *self.program.constants, *self.kept} - (set(targets) - set(self.program.inputs))
        swept = sweep(self.program, targets, cuts)
        model = self._model(swept, targets)
        in_memory = [v for v in dict.fromkeys(targets) if self._in_memory(v)]
        return _Group(targets, in_memory, swept, model, choose_tiles(model, self.budget, self.tile_bytes))

    def _checked(self, group: _Group) -> _Group:
        if not group.tiling.fits:
            raise MemoryBudgetError(_does_not_fit(group, self.program, self.budget))
        return group

    # -- the model of one group --

    def on_disk(self, value: int) -> bool:
        return value in self.chunks or (value in self.kept and self.kept[value].on_disk)

    def _grid(self, value: int) -> tuple[int, ...]:
        return self.chunks[value] if value in self.chunks else self.kept[value].chunks

    def _stream(self, swept: Sweep, version: Version, chunks: tuple[int, ...]) -> Stream:
        value, index = version[0], swept.indices[version]
        shape, dtype = self.program.shape(value), self.program.dtype(value)
        nbytes = min(self.program.nbytes(value), span_bytes(self.program, value, index, swept))
        chunk_bytes = math.prod(min(c, n) for c, n in zip(chunks, shape, strict=True)) * itemsize(dtype)
        in_order = any(self._is_in_order(axis) for axis in axes(index))
        alone = value in self.kept and any(axis.rows for axis in axes(index))
        return Stream(
            version, index, shape, chunks, chunk_bytes, nbytes, footprint(shape, dtype, index), in_order, alone
        )

    def _is_in_order(self, axis: Axis) -> bool:
        """Whether rows are looked up by the numbers that others are ordered by, in that order."""
        rows = axis.rows
        by = None if rows is None else rows.rows
        return rows is not None and by is not None and self.program.orders.get(by.value) == rows.value

    def _model(self, swept: Sweep, targets: list[int]) -> Model:
        reads = tuple(self._stream(swept, v, self._grid(v[0])) for v in swept.reads if self.on_disk(v[0]))
        writes = tuple(
            self._stream(swept, version, chunks)
            for version in dict.fromkeys(swept.targets)
            for chunks in self.writes.get(version[0], ())
        )
        steps = {step.result: step for step in swept.steps}
        partials = tuple(
            self._partial(swept, steps[v]) for v in dict.fromkeys(swept.targets) if v in steps and reduces(steps[v])
        )
        read = swept.as_read()
        computes = read is None or not all(self.on_disk(v[0]) for v in read)
        results = total(self._footprint(swept, v) for v in dict.fromkeys(swept.targets) if computes)
        fixed = sum(self.program.nbytes(v) for v, k in self.kept.items() if not k.on_disk)
        fixed += sum(
            self.program.nbytes(v) for v in dict.fromkeys(targets) if self._in_memory(v) and v not in self.kept
        )
        # Rows are looked up in several chunks at a time, if they are not near each other.
        by_rows = (s for s in reads if any(a.rows for a in axes(s.index)) and not s.alone)
        fixed += max((2 * (1 if s.in_order else self.workers) * s.chunk_bytes for s in by_rows), default=0)
        return Model(
            swept.sizes,
            swept.multiples,
            reads,
            writes,
            partials,
            moments(swept) if computes else (),
            results,
            penalties(swept, reads),
            tuple((*self._once(s), swept.computed_along(s)) for s in swept.steps if not s.rule.fuses),
            fixed,
            self.workers,
            {label: group.axis.label for label, group in swept.groups.items()},
        )

    def _in_memory(self, target: int) -> bool:
        return any(v == target and s.chunks is None for v, s in zip(self.program.outputs, self.outputs, strict=True))

    def _footprint(self, swept: Sweep, version: Version) -> Footprint:
        value = version[0]
        return footprint(self.program.shape(value), self.program.dtype(value), swept.indices[version])

    def _partial(self, swept: Sweep, step: Step) -> Partial:
        kept = frozenset(axis.label for axis in axes(step.index))
        f = self._footprint(swept, step.result)
        return Partial(kept, frozenset(step.access.reduced), f, self.program.nbytes(step.result[0]))

    # -- what must be kept --

    def _to_keep(self, group: _Group) -> Iterator[tuple[int, str]]:
        swept, cut = group.sweep, set(group.model.cut(group.tiling.sizes))
        used = {v for step in swept.steps for v in step.operands}
        for value in swept.origins:
            if value not in self.program.inputs and value not in self.program.constants:
                yield value, "a slice starts at it"
        for value in swept.rows:
            if value not in self.program.inputs and value not in self.program.constants:
                yield value, "rows are looked up by it"
        for by in swept.groups.values():
            yield by.value, "the rows that belong to a tile are found by it"
        for step in swept.steps:
            value = step.result[0]
            if value in group.targets and value in self.kept:
                continue
            if value in self.program.apart:
                yield value, "its rows are taken in another order"
            if reduces(step) and cut & set(step.access.reduced) and step.result in used:
                yield value, f"{step.equation.name} over an axis that is split into tiles"
            elif not step.rule.fuses and self._repeats(group, step, cut):
                yield value, f"{step.equation.name} would be computed again for every tile"

    def _repeats(self, group: _Group, step: Step, cut: set[int]) -> bool:
        """Whether keeping a result costs less time than computing it again."""
        missing = cut - group.sweep.computed_along(step)
        times = math.prod(group.model.count(label, group.tiling.sizes) for label in missing)
        if times == 1 or step.result in group.sweep.targets:
            return False
        once, keep = self._once(step)
        return (times - 1) * once > keep

    def _once(self, step: Step) -> tuple[int, int]:
        """The time of computing a result, and that of keeping it, as bytes moved in the same time."""
        value = step.result[0]
        once = work(step) / FLOPS_PER_SECOND * BYTES_PER_SECOND
        return int(once), 2 * self.program.nbytes(value) + sum(self.program.nbytes(v) for v in self.reads[value])

    # -- the plan --

    def _finish(self, groups: list[_Group]) -> Plan:
        output_chunks: list[tuple[int, ...] | None] = [
            None if s.chunks is None or s.chunks == CHOOSE else tuple(s.chunks) for s in self.outputs
        ]
        passes = []
        for group in groups:
            chosen = {v[0]: self._choose_chunks(group, v) for v in group.sweep.targets}
            for number, (value, spec) in enumerate(zip(self.program.outputs, self.outputs, strict=True)):
                if value in chosen and spec.chunks == CHOOSE:
                    output_chunks[number] = chosen[value]
            passes.append(self._pass(group))
        return Plan(
            self.program,
            self.inputs,
            self.outputs,
            _with_frees(passes, self.kept),
            self.kept,
            tuple(output_chunks),
            self.budget,
        )

    def _choose_chunks(self, group: _Group, version: Version) -> tuple[int, ...]:
        shape, dtype = self.program.shape(version[0]), self.program.dtype(version[0])
        sizes, granules = group.tiling.sizes, group.model.granules
        chunks = []
        for n, axis in zip(shape, group.sweep.indices[version], strict=True):
            if axis is None:
                chunks.append(max(n, 1))
            else:
                granule = granules[axis.label]
                chunks.append(granule if granule > 1 and sizes[axis.label] % granule == 0 else sizes[axis.label])
        return _moderate(chunks, shape, group.sweep.indices[version], sizes, itemsize(dtype))

    def _pass(self, group: _Group) -> Pass:
        swept, tiling = group.sweep, group.tiling
        loops = tuple(self._loops(group))
        memory = tuple(v for v in swept.reads if not self.on_disk(v[0]))
        steps = {step.result: step for step in swept.steps}
        cut = {loop.label for loop in loops}
        results = tuple(self._result(group, steps.get(v), v, cut) for v in dict.fromkeys(swept.targets))
        return Pass(swept, loops, group.model.reads, memory, tuple(sorted(swept.origins)), results, tiling)

    def _loops(self, group: _Group) -> Iterator[Loop]:
        swept, sizes, order = group.sweep, group.tiling.sizes, group.tiling.order
        told = (label for label, by in swept.groups.items() if label not in order and by.axis.label in order)
        for label in (*order, *told):
            by = swept.groups.get(label)
            groups = 1 if by is None else group.model.count(by.axis.label, sizes)
            yield Loop(label, swept.sizes[label], sizes[label], by, groups)

    def _result(self, group: _Group, step: Step | None, version: Version, cut: set[int]) -> Result:
        value = version[0]
        combine = step.rule.combine if step is not None and reduces(step) else None
        destinations = [
            Destination("output", n, spec.chunks is not None)
            for n, (v, spec) in enumerate(zip(self.program.outputs, self.outputs, strict=True))
            if v == value
        ]
        if value in self.kept:
            destinations.append(Destination("kept", value, self.kept[value].on_disk))
        depends = group.sweep.depends[version]
        shape, dtype = self.program.shape(value), self.program.dtype(value)
        return Result(
            version, group.sweep.indices[version], shape, dtype, combine, frozenset(cut - depends), tuple(destinations)
        )


def _moderate(
    chunks: list[int], shape: Sequence[int], index: Index, sizes: dict[int, int], itemsize: int
) -> tuple[int, ...]:
    """Bring chunks near `CHUNK_BYTES` while tiles stay whole multiples of them."""

    def nbytes() -> int:
        return math.prod(chunks) * itemsize

    for d in reversed(range(len(chunks))):
        axis = index[d]
        while axis is not None and nbytes() < CHUNK_BYTES // 4 and chunks[d] * 2 <= sizes[axis.label]:
            if sizes[axis.label] % (chunks[d] * 2):
                break
            chunks[d] *= 2
    for d in range(len(chunks)):
        axis = index[d]
        while nbytes() > 2 * CHUNK_BYTES and chunks[d] > 1:
            if axis is not None and chunks[d] % 2:
                break
            chunks[d] = -(-chunks[d] // 2)
    return tuple(chunks)


def _with_frees(passes: list[Pass], kept: dict[int, Kept]) -> tuple[Pass, ...]:
    last: dict[int, int] = {}
    for number, p in enumerate(passes):
        for value in (*(v[0] for v in p.sweep.reads), *p.origins, *(v[0] for v in p.sweep.targets)):
            if value in kept:
                last[value] = number
    return tuple(
        Pass(
            p.sweep,
            p.loops,
            p.streams,
            p.memory,
            p.origins,
            p.results,
            p.tiling,
            tuple(v for v, n in last.items() if n == number),
        )
        for number, p in enumerate(passes)
    )


def _does_not_fit(group: _Group, program: Program, budget: int) -> str:
    _, what, remedy = max(_needs(group, program), key=lambda need: need[0])
    return (
        f"{what}. With all that is in memory beside it, {group.tiling.resident:,} bytes are needed, but {budget:,} "
        f"bytes of the memory budget are left for it. Raise the budget with set_memory_budget, or {remedy}."
    )


def _needs(group: _Group, program: Program) -> Iterator[tuple[int, str, str]]:
    """What takes memory: bytes, description, remedy."""
    swept, sizes = group.sweep, group.tiling.sizes
    for stream in group.model.reads:
        what = (
            f"one chunk of shape {stream.chunks} of an array of shape {stream.shape} takes {stream.chunk_bytes:,} bytes"
        )
        yield stream.chunk_bytes, what, "store the array in smaller chunks (a.save(path, chunks=...))"
    for value in group.in_memory:
        nbytes = program.nbytes(value)
        what = f"the result {program.avals[value].str_short()} in memory takes {nbytes:,} bytes"
        yield nbytes, what, "let the result be on disk"
    for version, index in swept.indices.items():
        value = version[0]
        nbytes = footprint(program.shape(value), program.dtype(value), index).bytes(sizes)
        whole = [str(d) for d, axis in enumerate(index) if axis is None and program.shape(value)[d] > 1]
        along = f", whole along dim {', '.join(whole)}" if whole else ""
        tile = f"the smallest tile of {program.avals[value].str_short()}{_needed_by(swept, version)}"
        yield nbytes, f"{tile} takes {nbytes:,} bytes{along}", "store the array in smaller chunks"


def _needed_by(swept: Sweep, version: Version) -> str:
    for step in swept.steps:
        if version in (step.result, *step.operands) and not step.rule.fuses:
            return f" needed by `{step.equation.name}`{_compat.source_line(step.equation.caller)}"
    return ""
