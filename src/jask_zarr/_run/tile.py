"""One tile of a pass: where it begins along each label, and how long it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jask_zarr._plan.labels import Axis, Index
from jask_zarr._plan.plan import Pass


@dataclass(frozen=True, slots=True)
class Tile:
    """Starts along the loops of a pass, and the sizes of all labels (a label without a loop is whole)."""

    starts: dict[int, int]
    sizes: dict[int, int]

    def start(self, index: Index, origins: Mapping[int, int]) -> tuple[int, ...]:
        """Where the tile's box of a value begins."""
        return tuple(0 if axis is None else self._begin(axis, origins) for axis in index)

    def extent(self, shape: Sequence[int], index: Index) -> tuple[int, ...]:
        """The shape of the tile's box of a value."""
        return tuple(n if a is None else a.length(self.sizes[a.label]) for n, a in zip(shape, index, strict=True))

    def _begin(self, axis: Axis, origins: Mapping[int, int]) -> int:
        begin = axis.begin(self.starts.get(axis.label, 0))
        for origin in axis.origins:
            begin += origin.sign * min(max(origins[origin.value], 0), origin.limit)
        return begin


def tiles_of(p: Pass) -> Iterator[Tile]:
    """All tiles of a pass, the innermost loop fastest."""
    for numbers in itertools.product(*(range(loop.count) for loop in p.loops)):
        starts = {loop.label: n * loop.tile for n, loop in zip(numbers, p.loops, strict=True)}
        sizes = {loop.label: min(loop.tile, loop.size - starts[loop.label]) for loop in p.loops}
        yield Tile(starts, {**p.sweep.sizes, **sizes})
