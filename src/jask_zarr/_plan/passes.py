"""From a program to passes.

1. The *targets* are the program's outputs and the values *kept* between passes.
2. Targets that depend on the same kept values form a level; targets of a level that read the same arrays form a group.
3. A group is swept, its tiles are chosen. If that cuts a label that some value in the middle reduces (a softmax over a
   split axis), or computes a contraction again and again, that value is kept too, and planning begins anew; sums are
   first freed from the maxima and means that they would wait for (`online`).
4. What does not fit jointly, or would read more or take far more tiles jointly, becomes several passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jask_zarr._plan.assembly import Group, assembled, choose_chunks
from jask_zarr._plan.exact import found_again
from jask_zarr._plan.labels import Axis, axes
from jask_zarr._plan.model import moments, penalties, reduces, span_bytes, work
from jask_zarr._plan.online import online
from jask_zarr._plan.plan import CHOOSE, InputSpec, Kept, OutputSpec, Plan
from jask_zarr._plan.program import Program, itemsize
from jask_zarr._plan.refusal import does_not_fit
from jask_zarr._plan.rules import rule_for
from jask_zarr._plan.sweep import Step, Sweep, Version, sweep
from jask_zarr._plan.tiles import (
    Footprint,
    Model,
    Partial,
    Stream,
    choose_tiles,
    footprint,
    total,
)
from jask_zarr.errors import MemoryBudgetError

AGAIN = 8
"""How many times as many tiles are too many for one walk over an array instead of several."""
FLOPS_PER_SECOND = 3e10
BYTES_PER_SECOND = 1e9


@dataclass
class Planner:
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
                groups = [*map(self._checked, groups)]
                return assembled(self.program, groups, self.inputs, self.outputs, self.kept, self.budget)
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

    def _groups(self) -> Iterator[Group]:
        for level in self._levels():
            for targets in self._connected(level):
                for group in self._tiled(targets):
                    self._place_kept(group)
                    yield group

    def _place_kept(self, group: Group) -> None:
        """Give kept values their chunks, so that the passes that read them are planned on the same grid."""
        for version in group.sweep.targets:
            if version[0] in self.kept:
                old = self.kept[version[0]]
                self.kept[version[0]] = Kept(old.value, old.on_disk, choose_chunks(group, version), old.reason)

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

    def _connected(self, targets: Sequence[int]) -> Iterator[list[int]]:
        """Targets that read a common array; of those that read none, as many as make a tile."""
        reading = [target for target in targets if self.reads[target]]
        yield from (joined for _, joined in _joined((target, self.reads[target]) for target in reading))
        yield from self._batches([target for target in targets if not self.reads[target]])

    def _batches(self, targets: Sequence[int]) -> Iterator[list[int]]:
        sources, batch = self._sources(), list[int]()
        for _, together in _joined((target, sources[target] or {None}) for target in targets):
            if batch and sum(map(self.program.nbytes, (*batch, *together))) > self.tile_bytes:
                yield batch
                batch = []
            batch = [*batch, *together]
        if batch:
            yield batch

    def _sources(self) -> dict[int, frozenset[int]]:
        """For each value the arrays that it is made of, and what costs more than elementwise work on the way."""
        none: frozenset[int] = frozenset()

        def own(value: int) -> frozenset[int]:
            return frozenset({value}) if math.prod(self.program.shape(value)) > 1 else none

        sources = {v: own(v) for v in (*self.program.inputs, *self.program.constants)}
        for equation in self.program.equations:
            read = none.union(*(own(v) if v in self.kept else sources[v] for v in equation.inputs))
            costly = none if rule_for(equation).fuses else frozenset(equation.outputs)
            sources.update(dict.fromkeys(equation.outputs, read | costly))
        return sources

    def _tiled(self, targets: list[int]) -> list[Group]:
        joint = self._group(targets)
        if joint.tiling.fits and len(parts := _without_common_loops(joint)) > 1:
            return [group for part in parts for group in self._tiled(part)]
        compulsory = sum({s.version[0]: s.nbytes for s in joint.model.reads}.values())
        if len(targets) == 1 or (joint.tiling.fits and joint.tiling.effort <= compulsory):
            return [joint]
        if joint.tiling.fits and self._least_alone(joint) >= joint.tiling.effort:
            return [joint]
        alone = [self._group([t]) for t in targets]
        if not joint.tiling.fits or sum(g.tiling.effort for g in alone) < joint.tiling.effort:
            return alone
        return [joint]

    def _least_alone(self, joint: Group) -> int:
        """Bytes that passes of one target each would read at least."""
        nbytes = {s.version[0]: s.nbytes for s in joint.model.reads}
        return sum(nbytes.get(v, 0) for target in joint.targets for v in self.reads[target])

    def _group(self, targets: list[int]) -> Group:
        cuts = {*self.program.inputs, *self.program.constants, *self.kept} - (set(targets) - set(self.program.inputs))
        swept = sweep(self.program, targets, cuts)
        model = self._model(swept, targets)
        in_memory = [v for v in dict.fromkeys(targets) if self._in_memory(v)]
        return Group(targets, in_memory, swept, model, choose_tiles(model, self.budget, self.tile_bytes))

    def _checked(self, group: Group) -> Group:
        if not group.tiling.fits:
            raise MemoryBudgetError(does_not_fit(group, self.program, self.budget))
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
            self.budget // 4,
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

    def _to_keep(self, group: Group) -> Iterator[tuple[int, str]]:
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
                yield value, self.program.apart[value]
            if reduces(step) and cut & set(step.access.reduced) and step.result in used:
                yield value, f"{step.equation.name} over an axis that is split into tiles"
                for operand in found_again(self.program, step.equation):
                    yield operand, "it is compared with its own maximum or minimum"
            elif not step.rule.fuses and self._repeats(group, step, cut):
                yield value, f"{step.equation.name} would be computed again for every tile"

    def _repeats(self, group: Group, step: Step, cut: set[int]) -> bool:
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


def _without_common_loops(joint: Group) -> list[list[int]]:
    """The targets, apart where one walk would go through the tiles of one of them for each tile of another."""
    cut, count = set(joint.model.cut(joint.tiling.sizes)), lambda label: joint.model.count(label, joint.tiling.sizes)
    versions = zip(joint.targets, joint.sweep.targets, strict=True)
    parts = _joined((target, cut & joint.sweep.depends[version]) for target, version in versions)
    apart = sum(math.prod(map(count, loops)) for loops, _ in parts)
    return [targets for _, targets in parts] if math.prod(map(count, cut)) > AGAIN * apart else [joint.targets]


def _joined(belongings: Iterable[tuple[int, Collection[Any]]]) -> list[tuple[set[Any], list[int]]]:
    """Targets with what belongs to each; those that share any of it are together."""
    parts: list[tuple[set[Any], list[int]]] = []
    for target, belonging in belongings:
        shared, together = set(belonging), [target]
        for part in [part for part in parts if part[0] & shared]:
            parts.remove(part)
            shared, together = shared | part[0], part[1] + together
        parts.append((shared, together))
    return parts
