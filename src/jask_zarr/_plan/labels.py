"""Labels: the loop indices that a pass streams over, and how a value's dims follow them.

A dim of a value is read either *whole* (``None``) or along an `Axis`: an affine function of one label. Two dims of one
value never share a label (``a + a.T`` reads `a` twice, at (i, j) and at (j, i)), which is what `Labels.join` guards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """A start index known only at run time (``lax.dynamic_slice``), clamped to ``[0, limit]``."""

    value: int
    limit: int
    sign: int = 1


class Rows(NamedTuple):
    """Row numbers known only at run time, shape (n, 1), clamped to ``[0, limit]``; where a tile reads them."""

    value: int
    limit: int
    offset: int
    origins: tuple[Origin, ...]
    rows: Rows | None
    backwards: bool


class Axis(NamedTuple):
    """Tile ``[start, stop)`` of a label covers ``(stop - start) * scale // divisor + extra`` elements of a dim.

    They begin at ``start * scale // divisor + offset``, plus the run-time origins. `extra` is the halo of a window.
    With `rows` they do not follow each other: these positions are of row numbers, and offset and origins come on top.
    Tiles that go `backwards` end at ``offset - start * scale // divisor``: the next one lies before it.
    """

    label: int
    offset: int = 0
    scale: int = 1
    divisor: int = 1
    origins: tuple[Origin, ...] = ()
    extra: int = 0
    rows: Rows | None = None
    backwards: bool = False

    @property
    def plain(self) -> bool:
        return self[1:] == Axis(0)[1:]

    def looked_up(self, value: int, limit: int) -> Axis:
        """The axis of what is looked up by row numbers that are read along this one."""
        rows = Rows(value, limit, self.offset, self.origins, self.rows, self.backwards)
        return self._replace(offset=0, origins=(), rows=rows, backwards=False)

    def reversed(self, n: int) -> Axis:
        """The axis along which an operand of `n` elements is read for its reverse."""
        origins = tuple(origin._replace(sign=-origin.sign) for origin in self.origins)
        return self._replace(offset=n - self.offset, origins=origins, backwards=not self.backwards)

    @property
    def of_rows(self) -> Axis:
        """The axis along which the row numbers are read."""
        rows = self.rows
        if rows is None:
            return self
        return self._replace(offset=rows.offset, origins=rows.origins, rows=rows.rows, backwards=rows.backwards)

    def length(self, size: int) -> int:
        """Elements of the dim that a tile of `size` covers."""
        return size * self.scale // self.divisor + self.extra

    def begin(self, start: Any, size: int) -> Any:
        """First element of the dim for a tile of `size` that begins at `start`, without the origins."""
        moved = start * self.scale // self.divisor
        return self.offset - moved - self.length(size) if self.backwards else self.offset + moved


class Group(NamedTuple):
    """What the tiles of a label go by: they hold the row numbers that lie in the tile of an axis, and no others."""

    axis: Axis
    value: int
    """The row numbers, sorted, shape (n, 1)."""


Index = tuple[Axis | None, ...]
"""How one use of a value is addressed, a dim at a time; None is the whole dim."""


@dataclass
class Labels:
    """Union-find over labels, with the pairs that must stay apart."""

    sizes: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    apart: list[set[int]] = field(default_factory=list)
    multiples: list[int] = field(default_factory=list)
    """A tile of the label must be a multiple of this (or reach the label's end)."""
    groups: dict[int, Group] = field(default_factory=dict)

    def fresh(self, size: int) -> int:
        self.sizes.append(size)
        self.parents.append(len(self.parents))
        self.apart.append(set())
        self.multiples.append(1)
        return len(self.parents) - 1

    def find(self, label: int) -> int:
        while self.parents[label] != label:
            self.parents[label] = label = self.parents[self.parents[label]]
        return label

    def require_multiple(self, label: int, multiple: int) -> None:
        root = self.find(label)
        self.multiples[root] = math.lcm(self.multiples[root], multiple)

    def separate(self, labels: Iterable[int]) -> None:
        """Declare that these labels are distinct loops."""
        roots = {self.find(label) for label in labels}
        for root in roots:
            self.apart[root] |= roots - {root}

    def joinable(self, a: int, b: int) -> bool:
        a, b = self.find(a), self.find(b)
        alike = self.sizes[a] == self.sizes[b] and self.group(a) == self.group(b)
        return a == b or (alike and b not in {self.find(x) for x in self.apart[a]})

    def group(self, label: int) -> Group | None:
        """What the tiles of a label go by."""
        group = self.groups.get(label)
        return group and group._replace(axis=group.axis._replace(label=self.find(group.axis.label)))

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parents[b] = a
            self.multiples[a] = math.lcm(self.multiples[a], self.multiples[b])
            self.apart[a] |= self.apart[b]
            for other in self.apart[b]:
                self.apart[self.find(other)].add(a)

    def unify(self, left: Index, right: Index) -> bool:
        """Make two uses of one value the same use, if that keeps all loops that must differ apart."""
        pairs = [(a, b) for a, b in zip(left, right, strict=True)]
        if any((a is None) != (b is None) or (a and b and a[1:] != b[1:]) for a, b in pairs):
            return False
        labels = [(a.label, b.label) for a, b in pairs if a is not None and b is not None]
        if not all(self.joinable(a, b) for a, b in labels):
            return False
        roots_left = [self.find(a) for a, _ in labels]
        roots_right = [self.find(b) for _, b in labels]
        crossing = any(a == b for i, a in enumerate(roots_left) for j, b in enumerate(roots_right) if i != j)
        if crossing:
            return False
        for a, b in labels:
            self.join(a, b)
        return True

    def canonical(self, index: Index) -> Index:
        return tuple([axis and self._canonical(axis) for axis in index])

    def _canonical(self, axis: Axis) -> Axis:
        root = self.find(axis.label)
        return axis if root == axis.label else axis._replace(label=root)


def axes(index: Index) -> tuple[Axis, ...]:
    """The streamed dims of an index."""
    return tuple(axis for axis in index if axis is not None)


def chain(axis: Axis) -> Iterator[Axis]:
    """An axis, that of the row numbers it goes by, and so on."""
    yield axis
    while axis.rows is not None:
        axis = axis.of_rows
        yield axis
