"""A plan, as data: what the planner gives and the runner takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from jask_zarr._plan.labels import Group, Index
from jask_zarr._plan.program import Program
from jask_zarr._plan.sweep import Sweep, Version
from jask_zarr._plan.tiles import Stream, Tiling

CHOOSE: Literal["choose"] = "choose"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input: its chunks if it is on disk, None if it is in memory."""

    shape: tuple[int, ...]
    dtype: Any
    chunks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output: in memory (None), on disk on a grid of write units, or on disk with chunks that the plan chooses."""

    chunks: tuple[int, ...] | Literal["choose"] | None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a result goes: an output of the program, or a value kept for later passes."""

    kind: Literal["output", "kept"]
    number: int
    on_disk: bool


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a pass yields for one version."""

    version: Version
    index: Index
    shape: tuple[int, ...]
    dtype: Any
    combine: str | None
    active: frozenset[int]
    """Cut labels that the result does not depend on: it is taken only from the first tile along them."""
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """One level of the walk over tiles."""

    label: int
    size: int
    tile: int
    group: Group | None = None
    """What its tiles go by; then they begin anew in each tile of another loop."""
    groups: int = 1
    """How many tiles that loop has."""

    @property
    def count(self) -> int:
        """Tiles of one walk; by a group, of an average one."""
        return -(-self.size // (self.tile * self.groups))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that its tiles may have."""
        if self.group is None:
            return tuple(sorted({self.tile, self.size % self.tile or self.tile}))
        usual = 5 * self.size // (4 * self.groups) + 8  # somewhat more than the average
        return tuple(sorted({min(self.tile, usual * 4**n // 4) for n in range(self.size.bit_length())}))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Pass:
    """One walk over tiles: what is read, computed and yielded."""

    sweep: Sweep
    loops: tuple[Loop, ...]
    streams: tuple[Stream, ...]
    """Reads from disk, a box for each tile."""
    memory: tuple[Version, ...]
    """Values in memory, passed whole."""
    origins: tuple[int, ...]
    """Values whose content shifts where reads begin."""
    results: tuple[Result, ...]
    tiling: Tiling
    frees: tuple[int, ...] = ()
    """Kept values that no later pass needs."""

    @property
    def tiles(self) -> int:
        return math.prod(loop.count for loop in self.loops)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A value kept between passes."""

    value: int
    on_disk: bool
    chunks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All passes of a program, in order."""

    program: Program
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    passes: tuple[Pass, ...]
    kept: dict[int, Kept]
    output_chunks: tuple[tuple[int, ...] | None, ...]
    budget: int
