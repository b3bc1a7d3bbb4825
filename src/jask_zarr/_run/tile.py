"""One tile of a pass: where it begins along each label, and how long it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jask_zarr._plan.labels import Axis, Group, Index
from jask_zarr._plan.plan import Loop, Pass

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
    groups: dict[int, range] = field(default_factory=dict)
    """Along loops that go by groups: all that the walk of this group covers. What lies beyond it is arbitrary."""

    def begin(self, label: int) -> int:
        """Where the walk along a loop began."""
        return self.groups[label].start if label in self.groups else 0

    def is_first(self, label: int) -> bool:
        """Whether the walk along a loop begins here."""
        return self.starts[label] == self.begin(label)

    def walked(self, loop: Loop) -> int:
        """How many tiles the walk along a loop has, to which this one belongs."""
        return loop.count if loop.group is None else max(1, -(-len(self.groups[loop.label]) // loop.tile))

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
            positions = begin + np.arange(axis.length(self.sizes[axis.label]))
            group = self.groups.get(axis.label)
            return positions if group is None else np.minimum(positions, max(group.start, group.stop - 1))
        at = self._positions(axis.of_rows, origins, values)
        return begin + np.clip(_numbers(values(axis.rows.value), at), 0, axis.rows.limit)

    def group(self, group: Group, origins: Mapping[int, int], values: Values) -> range:
        """Which of sorted row numbers lie in the tile."""
        rows, begin = np.asarray(values(group.value))[:, 0], self._begin(group.axis, origins)
        return range(_first(rows, begin), _first(rows, begin + group.axis.length(self.sizes[group.axis.label])))

    def _begin(self, axis: Axis, origins: Mapping[int, int]) -> int:
        start, size = self.starts.get(axis.label, 0), self.sizes[axis.label]
        begin = axis.offset if axis.rows is not None else axis.begin(start, size)
        for origin in axis.origins:
            begin += origin.sign * min(max(origins[origin.value], 0), origin.limit)
        return begin


def _numbers(rows: Any, at: np.ndarray) -> np.ndarray:
    """Row numbers, of an array (n, 1) in memory or on disk."""
    at = np.clip(at, 0, rows.shape[0] - 1)
    first, stop = int(at.min()), int(at.max()) + 1
    part = rows.read_box((first, 0), (stop, 1)) if hasattr(rows, "read_box") else np.asarray(rows)[first:stop]
    return part[at - first, 0].astype(np.int64)


def tiles_of(p: Pass, origins: Mapping[int, int], values: Values) -> Iterator[Tile]:
    """All tiles of a pass, the innermost loop fastest."""

    def walk(tile: Tile, loops: Sequence[Loop]) -> Iterator[Tile]:
        if not loops:
            yield tile
            return
        loop, *inner = loops
        covered = range(loop.size) if loop.group is None else tile.group(loop.group, origins, values)
        for start, size in _cut(covered, loop):
            groups = tile.groups if loop.group is None else {**tile.groups, loop.label: covered}
            outer = Tile({**tile.starts, loop.label: start}, {**tile.sizes, loop.label: size}, groups)
            yield from walk(outer, inner)

    return walk(Tile({}, p.sweep.sizes), p.loops)


def _cut(covered: range, loop: Loop) -> Iterator[tuple[int, int]]:
    """Starts and lengths of the tiles that cover a range; one tile if it is empty."""
    start = covered.start
    while start == covered.start or start < covered.stop:
        left = covered.stop - start
        length = next((n for n in loop.lengths if n >= left), loop.tile)
        yield start, length
        start += length


def _first(rows: np.ndarray, least: int) -> int:
    """How many of sorted numbers are less."""
    return int(np.searchsorted(rows, rows.dtype.type(least))) if least <= np.iinfo(rows.dtype).max else rows.size
