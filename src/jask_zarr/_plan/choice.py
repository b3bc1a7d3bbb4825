"""The plan of a jaxpr: of the ways to write its sums and to order its rows, the one that reads least.

Row numbers are sorted where that pays, scans go by blocks where their axis is split, and sums that would wait for a
maximum or a mean are freed of it. If tiles are larger than wanted because of such sums, all are freed, and the plan is
taken that has the smaller ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jask_zarr._plan import tiles
from jask_zarr._plan.online import online
from jask_zarr._plan.order import in_order
from jask_zarr._plan.passes import Planner
from jask_zarr._plan.plan import InputSpec, OutputSpec, Plan
from jask_zarr._plan.program import Program, flatten
from jask_zarr._plan.scans import in_blocks
from jask_zarr.errors import MemoryBudgetError


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
    ordered = in_order(program, chunks, budget, tile_bytes)
    ways = dict.fromkeys((ordered, program, in_blocks(ordered, chunks)))
    as_written = Planner(program, chunks, inputs, outputs, budget, workers, tile_bytes, frees=False)
    planners = [replace(as_written, program=way, kept={}, frees=True) for way in ways]
    try:
        plan = _first_good(planners)
    except MemoryBudgetError:
        return as_written.plan()
    if not any(p.tiling.waits for p in plan.passes):
        return plan
    return _smaller(plan, replace(planners[0], program=_all_online(plan.program), kept={}))


def _all_online(program: Program) -> Program:
    """The program with no sum that would wait for a maximum or a mean if it were split."""
    return online(program, {v for equation in program.equations for v in equation.outputs})


def _smaller(plan: Plan, planner: Planner) -> Plan:
    """A plan; another one if that has smaller tiles where they are larger than wanted, and reads no more."""
    if planner.program is plan.program:
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


def _first_good(planners: Sequence[Planner]) -> Plan:
    """The first plan that fits and does not read far more than another: sorting may make other passes narrow."""
    plans, problems = [], []
    for planner in planners:
        try:
            plans.append(planner.plan())
        except MemoryBudgetError as problem:
            problems.append(problem)
    if not plans:
        raise problems[0]
    least = min(map(_traffic, plans))
    return next(plan for plan in plans if _traffic(plan) <= 2 * least)
