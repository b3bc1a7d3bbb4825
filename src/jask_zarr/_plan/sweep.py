"""From wanted results back to what must be read.

1. Every target is wanted at an index of fresh labels, one a dim.
2. Equations are visited backwards. Each use of a result asks its rule at which index the operands are needed.
3. A value wanted twice is computed once if the two indices can be made equal; else it has two *versions*
   (``a @ a`` wants `a` at (i, k) and at (k, j)).
4. Values in `cuts` (inputs, results of earlier passes, constants) are not computed but read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jask_zarr._plan.labels import Axis, Group, Index, Labels, axes, chain
from jask_zarr._plan.program import Equation, Program
from jask_zarr._plan.rule import Access, Rule, fresh
from jask_zarr._plan.rules import rule_for

Version = tuple[int, int]
"""A value, and which of its uses."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One equation, computed for one version of one of its results."""

    equation: Equation
    slot: int
    result: Version
    operands: tuple[Version, ...]
    index: Index
    access: Access

    @property
    def rule(self) -> Rule:
        return rule_for(self.equation)


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The steps of one pass in the order of computing, and what they read."""

    program: Program
    targets: tuple[Version, ...]
    steps: tuple[Step, ...]
    reads: tuple[Version, ...]
    indices: dict[Version, Index]
    sizes: dict[int, int]
    multiples: dict[int, int]
    depends: dict[Version, frozenset[int]]
    """The labels that a version depends on, its own and those reduced on the way."""
    origins: frozenset[int]
    """Values that must be known before the pass begins, because a read starts at them."""
    rows: frozenset[int]
    """Values that must be known before the pass begins, because what is read are the rows of these numbers."""
    groups: dict[int, Group]
    """Of labels whose tiles are found by sorted row numbers."""

    def computed_along(self, step: Step) -> frozenset[int]:
        """The labels that computing a result depends on; what is then cut out of it may depend on others."""
        own = (*(axis.label for axis in axes(step.access.computed)), *step.access.reduced)
        return _with_groups(own, self.groups).union(*(self.depends[v] for v in step.operands))

    def as_read(self) -> tuple[Version, ...] | None:
        """Of a pass that computes nothing: which of its reads each target is."""
        steps = {step.result: step for step in self.steps}
        found = tuple(_followed(target, steps) for target in self.targets)
        return found if set(found) <= set(self.reads) else None


def sweep(program: Program, targets: Sequence[int], cuts: Collection[int]) -> Sweep:
    """Find the steps that compute `targets` from `cuts`."""
    return _Sweeper(program, targets, cuts).finish()


class _Sweeper:
    def __init__(self, program: Program, targets: Sequence[int], cuts: Collection[int]) -> None:
        self.program, self.cuts = program, cuts
        self.labels = Labels()
        self.versions: dict[int, list[Index]] = {}
        self.pending: list[tuple[Equation, int, Version, tuple[Version, ...], Access]] = []
        self.targets = tuple(self.want(value, self.target_index(value)) for value in targets)
        wanted = set(targets)
        for equation in reversed(program.equations):
            for slot, value in enumerate(equation.outputs):
                if value in self.versions and (value in wanted or value not in cuts):
                    self.visit(equation, slot, value)

    def target_index(self, value: int) -> Index:
        return tuple(fresh(n, self.labels) for n in self.program.shape(value))

    def want(self, value: int, index: Index) -> Version:
        known = self.versions.setdefault(value, [])
        for number, other in enumerate(known):
            if self.labels.unify(other, index):
                return value, number
        self.labels.separate(axis.label for axis in axes(index))
        known.append(index)
        return value, len(known) - 1

    def visit(self, equation: Equation, slot: int, value: int) -> None:
        rule = rule_for(equation)
        for number, index in enumerate(self.versions[value]):
            access = rule.access(equation, slot, index, self.labels)
            operands = tuple(self.want(v, i) for v, i in zip(equation.inputs, access.operands, strict=True))
            self.pending.append((equation, slot, (value, number), operands, access))

    def finish(self) -> Sweep:
        same = self.representatives()
        indices = {same[v]: self.labels.canonical(self.versions[v[0]][v[1]]) for v in same}
        steps: dict[Version, Step] = {}
        for equation, slot, result, operands, access in reversed(self.pending):
            result = same[result]
            if result not in steps:
                operands = tuple(same[v] for v in operands)
                steps[result] = Step(equation, slot, result, operands, indices[result], self.canonical_access(access))
        ordered = tuple(steps.values())
        reads = tuple(version for version in indices if version not in steps)
        roots = {axis.label for index in indices.values() for axis in axes(index)}
        roots |= {label for step in ordered for label in step.access.reduced}
        groups = {root: group for root in sorted(roots) if (group := self.labels.group(root)) is not None}
        return Sweep(
            self.program,
            tuple(same[v] for v in self.targets),
            ordered,
            reads,
            indices,
            {root: self.labels.sizes[root] for root in sorted(roots)},
            {root: self.labels.multiples[root] for root in sorted(roots)},
            _depends(ordered, reads, indices, groups),
            frozenset(origin.value for axis in _chained(indices) for origin in axis.origins),
            frozenset(axis.rows.value for axis in _chained(indices) if axis.rows is not None),
            groups,
        )

    def representatives(self) -> dict[Version, Version]:
        """Versions whose labels were joined after they were told apart are one version."""
        first: dict[tuple[int, Index], Version] = {}
        same = {}
        for value, uses in self.versions.items():
            for number, index in enumerate(uses):
                version = value, number
                same[version] = first.setdefault((value, self.labels.canonical(index)), version)
        return same

    def canonical_access(self, access: Access) -> Access:
        canonical = self.labels.canonical
        reduced = tuple(dict.fromkeys(self.labels.find(label) for label in access.reduced))
        return Access(tuple(canonical(i) for i in access.operands), canonical(access.computed), reduced)


def _followed(version: Version, steps: Mapping[Version, Step]) -> Version:
    """What a version is, behind steps that pass it on as it is."""
    step = steps.get(version)
    if step is None or not step.rule.passes_on(step.equation) or step.access.computed != step.index:
        return version
    return _followed(step.operands[0], steps)


def _chained(indices: dict[Version, Index]) -> list[Axis]:
    return [each for index in indices.values() for axis in axes(index) for each in chain(axis)]


def _depends(
    steps: Sequence[Step], reads: Sequence[Version], indices: dict[Version, Index], groups: dict[int, Group]
) -> dict[Version, frozenset[int]]:
    depends = {read: _with_groups((axis.label for axis in axes(indices[read])), groups) for read in reads}
    for step in steps:
        own = _with_groups((*(axis.label for axis in axes(step.index)), *step.access.reduced), groups)
        depends[step.result] = own.union(*(depends[v] for v in step.operands))
    return depends


def _with_groups(labels: Iterable[int], groups: dict[int, Group]) -> frozenset[int]:
    """Labels, and those whose tiles tell theirs."""
    labels = frozenset(labels)
    return labels | {groups[label].axis.label for label in labels & groups.keys()}
