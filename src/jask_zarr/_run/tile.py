"""One tile of a pass: where it begins along each label, and how long it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jask_zarr._plan.labels import Axis, Index
from jask_zarr._plan.plan import Pass

Values = Callable[[int], Any]
"""Gives the array of a value."""


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Positions along a dim that do not follow each other."""

    positions: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed) and np.array_equal(self.positions, other.positions)


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

    def places(self, index: Index, origins: Mapping[int, int], values: Values) -> tuple[int | Listed, ...]:
        """Where along each dim the tile's box of a value begins, or which positions it has."""
        return tuple(
            start if axis is None or axis.rows is None else Listed(self._positions(axis, origins, values))
            for start, axis in zip(self.start(index, origins), index, strict=True)
        )

    def _positions(self, axis: Axis, origins: Mapping[int, int], values: Values) -> np.ndarray:
        begin = self._begin(axis, origins)
        if axis.rows is None:
            return begin + np.arange(axis.length(self.sizes[axis.label]))
        at = self._positions(axis.of_rows, origins, values)
        return begin + np.clip(_numbers(values(axis.rows.value), at), 0, axis.rows.limit)

    def _begin(self, axis: Axis, origins: Mapping[int, int]) -> int:
        begin = axis.offset if axis.rows is not None else axis.begin(self.starts.get(axis.label, 0))
        for origin in axis.origins:
            begin += origin.sign * min(max(origins[origin.value], 0), origin.limit)
        return begin


def _numbers(rows: Any, at: np.ndarray) -> np.ndarray:
    """Row numbers, of an array (n, 1) in memory or on disk."""
    at = np.clip(at, 0, rows.shape[0] - 1)
    first, stop = int(at.min()), int(at.max()) + 1
    part = rows.read_box((first, 0), (stop, 1)) if hasattr(rows, "read_box") else np.asarray(rows)[first:stop]
    return part[at - first, 0].astype(np.int64)


def tiles_of(p: Pass) -> Iterator[Tile]:
    """All tiles of a pass, the innermost loop fastest."""
    for numbers in itertools.product(*(range(loop.count) for loop in p.loops)):
        starts = {loop.label: n * loop.tile for n, loop in zip(numbers, p.loops, strict=True)}
        sizes = {loop.label: min(loop.tile, loop.size - starts[loop.label]) for loop in p.loops}
        yield Tile(starts, {**p.sweep.sizes, **sizes})
