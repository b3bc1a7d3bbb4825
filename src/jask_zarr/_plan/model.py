"""What the choice of tiles needs to know of a sweep: buffers alive together, penalties of cuts, work."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr._plan.labels import Axis, Index
from jask_zarr._plan.program import Program
from jask_zarr._plan.sweep import Step, Sweep, Version
from jask_zarr._plan.tiles import Footprint, Stream, footprint, total

SMALL = 64
"""What is this many times smaller than what a pass reads does not count."""


def reduces(step: Step) -> bool:
    return step.rule.combine is not None and bool(step.access.reduced)


def penalties(swept: Sweep, reads: Sequence[Stream]) -> dict[int, int]:
    """Labels that a value in the middle reduces: to cut one costs to keep that value, and to walk the data again.

    A value that is small beside the data costs nothing if nothing is read after it: a sum that has to be divided.
    """
    again = _read_again(swept, {stream.version for stream in reads})
    walk, walked = sum(stream.nbytes for stream in reads), set[int]()
    moved: Counter[int] = Counter()
    for step in _in_the_middle(swept):
        reduced, nbytes = frozenset(step.access.reduced), 2 * swept.program.nbytes(step.result[0])
        walks = reduced & again.get(step.result, frozenset())
        walked |= walks
        moved.update(dict.fromkeys(walks if SMALL * nbytes <= walk else reduced, nbytes))
    return {label: moved[label] + (walk if label in walked else 0) for label in moved}


def _in_the_middle(swept: Sweep) -> list[Step]:
    used = {v for step in swept.steps for v in step.operands}
    return [step for step in swept.steps if reduces(step) and step.result in used]


def _read_again(swept: Sweep, reads: Collection[Version]) -> dict[Version, frozenset[int]]:
    """The labels that, if cut, let something be read after a version is known."""
    none: frozenset[int] = frozenset()
    kept = {step.result: frozenset(step.access.reduced) for step in _in_the_middle(swept)}
    streams = dict.fromkeys(reads, frozenset(swept.sizes))
    for step in swept.steps:
        below = none.union(*(streams.get(v, none) for v in step.operands))
        streams[step.result] = below - kept.get(step.result, none)
    again: dict[Version, frozenset[int]] = {}
    for step in reversed(swept.steps):
        beside = again.get(step.result, none).union(*(streams.get(v, none) for v in step.operands))
        again.update((v, beside | again.get(v, none)) for v in step.operands)
    return again


def work(step: Step) -> float:
    """Floating-point operations of one whole equation, roughly."""
    source = step.equation.source
    if jnp.issubdtype(source.outvars[step.slot].aval.dtype, jax.dtypes.extended):
        return 0.0  # random keys: a few, and nothing but a key holds them
    return step.rule.flops(step.equation) * math.prod(source.outvars[step.slot].aval.shape)


def span_bytes(program: Program, value: int, index: Index, swept: Sweep) -> int:
    """Bytes that one walk along an index covers: a slice reads less than the whole array."""
    result = program.nbytes(value) // max(1, math.prod(program.shape(value)))
    for n, axis in zip(program.shape(value), index, strict=True):
        result *= n if axis is None or axis.rows else axis.length(swept.sizes[axis.label])
    return result


def _workspace(program: Program, step: Step) -> tuple[Footprint, ...]:
    copied = ((step.equation.inputs[n], step.access.operands[n]) for n in step.rule.copied(step.equation))
    copies = tuple(footprint(program.shape(v), program.dtype(v), index) for v, index in copied)
    if not step.rule.workspace:
        return copies
    bytes_of_one = footprint(program.shape(step.result[0]), np.uint8, step.access.computed)
    return (*copies, replace(bytes_of_one, constant=bytes_of_one.constant * step.rule.workspace))


def moments(swept: Sweep) -> tuple[tuple[Footprint, ...], ...]:
    """The buffers that XLA needs at each moment beside reads and results; fused steps have none of their own."""
    uses: dict[Version, int] = {}
    unfused: set[Version] = set()
    for step in swept.steps:
        for version in step.operands:
            uses[version] = uses.get(version, 0) + 1
            if not step.rule.fuses:
                unfused.add(version)
    program, targets = swept.program, set(swept.targets)
    last: dict[Version, int] = {}
    born: dict[Version, int] = {}
    roots: dict[Version, frozenset[Version]] = {}
    for now, step in enumerate(swept.steps):
        own = not step.rule.fuses or uses.get(step.result, 0) > 1 or step.result in unfused
        below = frozenset().union(*(roots.get(v, frozenset()) for v in step.operands))
        for version in below:
            last[version] = now
        if own and step.result not in targets:
            born[step.result] = last[step.result] = now
            roots[step.result] = frozenset({step.result})
        else:
            roots[step.result] = below
    own = {v: footprint(program.shape(v[0]), program.dtype(v[0]), swept.indices[v]) for v in born}
    dies: dict[int, list[Footprint]] = {}
    for version, now in last.items():
        dies.setdefault(now, []).append(own[version])
    live: Counter[tuple[Axis, ...]] = Counter()
    moments: set[frozenset[tuple[tuple[Axis, ...], int]]] = set()
    for now, step in enumerate(swept.steps):
        if step.result in own:
            live[own[step.result].axes] += own[step.result].constant
        moments.add(frozenset((live + _bytes_along(_workspace(program, step))).items()))
        live -= _bytes_along(dies.get(now, ()))
    return _largest(map(dict, moments))


def _bytes_along(footprints: Iterable[Footprint]) -> Counter[tuple[Axis, ...]]:
    return Counter({f.axes: f.constant for f in total(footprints)})


def _largest(moments: Iterable[dict[tuple[Axis, ...], int]]) -> tuple[tuple[Footprint, ...], ...]:
    """Those that no other exceeds whatever the tiles."""
    largest: list[dict[tuple[Axis, ...], int]] = []
    for moment in sorted(moments, key=lambda moment: (-sum(moment.values()), sorted(moment.items()))):
        if not any(all(n <= other.get(axes, 0) for axes, n in moment.items()) for other in largest):
            largest.append(moment)
    return tuple(tuple(Footprint(n, axes) for axes, n in sorted(moment.items())) for moment in largest)
