"""What to say of a group whose smallest tile does not fit the budget."""

from __future__ import annotations

from collections.abc import Iterator

from jask_zarr import _compat
from jask_zarr._plan.assembly import Group
from jask_zarr._plan.program import Program
from jask_zarr._plan.sweep import Sweep, Version
from jask_zarr._plan.tiles import footprint


def does_not_fit(group: Group, program: Program, budget: int) -> str:
    _, what, remedy = max(_needs(group, program), key=lambda need: need[0])
    return (
        f"{what}. With all that is in memory beside it, {group.tiling.resident:,} bytes are needed, but {budget:,} "
        f"bytes of the memory budget are left for it. Raise the budget with set_memory_budget, or {remedy}."
    )


def _needs(group: Group, program: Program) -> Iterator[tuple[int, str, str]]:
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
