"""From groups of targets, whose tiles are chosen, to the plan that is run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jask_zarr._plan.labels import Index
from jask_zarr._plan.model import reduces
from jask_zarr._plan.plan import CHOOSE, Destination, InputSpec, Kept, Loop, OutputSpec, Pass, Plan, Result
from jask_zarr._plan.program import Program, itemsize
from jask_zarr._plan.sweep import Step, Sweep, Version
from jask_zarr._plan.tiles import Model, Tiling

CHUNK_BYTES = 4 << 20


@dataclass
class Group:
    """Targets that one pass computes."""

    targets: list[int]
    in_memory: list[int]
    """Targets whose results are in memory as a whole."""
    sweep: Sweep
    model: Model
    tiling: Tiling


def assembled(
    program: Program,
    groups: Sequence[Group],
    inputs: tuple[InputSpec, ...],
    outputs: tuple[OutputSpec, ...],
    kept: dict[int, Kept],
    budget: int,
) -> Plan:
    """The plan whose passes are these groups."""
    wanted = list(zip(program.outputs, outputs, strict=True))
    chosen = {v[0]: choose_chunks(group, v) for group in groups for v in group.sweep.targets}
    chunks = tuple(chosen.get(v) if s.chunks == CHOOSE else s.chunks and tuple(s.chunks) for v, s in wanted)
    passes = [_pass(group, wanted, kept) for group in groups]
    return Plan(program, inputs, outputs, _with_frees(passes, kept), kept, chunks, budget)


def choose_chunks(group: Group, version: Version) -> tuple[int, ...]:
    """Chunks for a result of a group, of which its tiles consist."""
    program, index, sizes = group.sweep.program, group.sweep.indices[version], group.tiling.sizes
    shape, dtype = program.shape(version[0]), program.dtype(version[0])
    chunks = []
    for n, axis in zip(shape, index, strict=True):
        if axis is None:
            chunks.append(max(n, 1))
        else:
            granule = group.model.granules[axis.label]
            chunks.append(granule if granule > 1 and sizes[axis.label] % granule == 0 else sizes[axis.label])
    return _moderate(chunks, shape, index, sizes, itemsize(dtype))


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


def _pass(group: Group, wanted: Sequence[tuple[int, OutputSpec]], kept: Mapping[int, Kept]) -> Pass:
    swept, streams = group.sweep, {stream.version for stream in group.model.reads}
    loops = tuple(_loops(group))
    memory = tuple(v for v in swept.reads if v not in streams)
    cut = frozenset(loop.label for loop in loops)
    steps = {step.result: step for step in swept.steps}
    results = tuple(_result(swept, v, steps.get(v), cut, wanted, kept) for v in dict.fromkeys(swept.targets))
    return Pass(swept, loops, group.model.reads, memory, tuple(sorted(swept.origins)), results, group.tiling)


def _loops(group: Group) -> Iterator[Loop]:
    swept, sizes, order = group.sweep, group.tiling.sizes, group.tiling.order
    told = (label for label, by in swept.groups.items() if label not in order and by.axis.label in order)
    for label in (*order, *told):
        by = swept.groups.get(label)
        groups = 1 if by is None else group.model.count(by.axis.label, sizes)
        yield Loop(label, swept.sizes[label], sizes[label], by, groups)


def _result(
    swept: Sweep,
    version: Version,
    step: Step | None,
    cut: frozenset[int],
    wanted: Sequence[tuple[int, OutputSpec]],
    kept: Mapping[int, Kept],
) -> Result:
    value = version[0]
    combine = step.rule.combine if step is not None and reduces(step) else None
    places = [Destination("output", n, s.chunks is not None) for n, (v, s) in enumerate(wanted) if v == value]
    if value in kept:
        places.append(Destination("kept", value, kept[value].on_disk))
    shape, dtype = swept.program.shape(value), swept.program.dtype(value)
    return Result(version, swept.indices[version], shape, dtype, combine, cut - swept.depends[version], tuple(places))


def _with_frees(passes: Sequence[Pass], kept: Mapping[int, Kept]) -> tuple[Pass, ...]:
    """The passes, each with the kept values that none after it needs."""
    last: dict[int, int] = {}
    for number, p in enumerate(passes):
        for value in (*(v[0] for v in p.sweep.reads), *p.origins, *(v[0] for v in p.sweep.targets)):
            if value in kept:
                last[value] = number
    freed = [tuple(v for v, n in last.items() if n == number) for number in range(len(passes))]
    return tuple(replace(p, frees=frees) for p, frees in zip(passes, freed, strict=True))
