"""How large a tile is, and in which order tiles are visited.

Every label starts whole. Labels are then halved, in whole granules, until what is resident fits the budget and a tile
is small enough to keep all workers busy. What a choice costs is counted in bytes moved: read again for another tile,
decoded again because tiles are smaller than chunks, or moved by the passes that become necessary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations

from jask_zarr._plan.labels import Axis, Index, axes
from jask_zarr._plan.program import itemsize
from jask_zarr._plan.sweep import Version

TILE_BYTES = 16 << 20
"""What one tile reads and writes at most, where cutting further costs nothing."""

LEAST_TILE_BYTES = 2 << 20
"""What is worth a tile of its own, if only memory is to be had by cutting a chunk."""

IN_MEMORY = 10
"""How many times as fast memory is read as chunks are decoded."""

DECODED_IN_PLACE = 2 << 20
"""Chunks from which it is worth to have them one at a time: several are put together, or taken apart, by a copy."""

Sizes = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of a value's tile as a function of the tile sizes: ``constant * product(axis.length)``."""

    constant: int
    axes: tuple[Axis, ...]
    """Of each streamed dim; without offsets, which do not count."""

    def bytes(self, sizes: Sizes) -> int:
        return self.constant * math.prod(axis.length(sizes[axis.label]) for axis in self.axes)


def footprint(shape: Sequence[int], dtype: object, index: Index) -> Footprint:
    whole = math.prod(n for n, axis in zip(shape, index, strict=True) if axis is None)
    streamed = (axis._replace(offset=0, origins=(), rows=None, backwards=False) for axis in axes(index))
    return Footprint(itemsize(dtype) * whole, tuple(sorted(streamed)))


def total(footprints: Iterable[Footprint]) -> tuple[Footprint, ...]:
    """Footprints of equal shape added up."""
    sums: Counter[tuple[Axis, ...]] = Counter()
    for f in footprints:
        sums[f.axes] += f.constant
    return tuple(Footprint(constant, streamed) for streamed, constant in sums.items())


def add(footprints: Iterable[Footprint], sizes: Sizes) -> int:
    return sum(f.bytes(sizes) for f in footprints)


@dataclass(frozen=True, slots=True)
class Stream:
    """A value on disk that a pass reads or writes tile by tile."""

    version: Version
    index: Index
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    chunk_bytes: int
    nbytes: int
    footprint: Footprint
    in_order: bool = False
    """Whether it is read by row numbers that come in order."""
    alone: bool = False
    """Whether rows are read without the chunks around them."""

    @property
    def streamed(self) -> list[tuple[int, Axis, int]]:
        """The dims that are not whole, their axes, and the lengths of a chunk along them."""
        dims = enumerate(zip(self.index, self.chunks, self.shape, strict=True))
        return [(d, axis, min(chunk, n)) for d, (axis, chunk, n) in dims if axis is not None]


@dataclass(frozen=True, slots=True)
class Partial:
    """A result that reduces labels: its partial sums stay in memory until they are complete."""

    kept: frozenset[int]
    reduced: frozenset[int]
    footprint: Footprint
    nbytes: int


@dataclass(frozen=True)
class Model:
    """What the choice of tiles is judged by."""

    sizes: dict[int, int]
    multiples: dict[int, int]
    reads: tuple[Stream, ...]
    writes: tuple[Stream, ...]
    partials: tuple[Partial, ...]
    temporaries: tuple[tuple[Footprint, ...], ...]
    """What is live beside reads and results, at each moment of computing a tile."""
    results: tuple[Footprint, ...]
    penalties: dict[int, int]
    """Labels that other passes must follow if they are cut, and the bytes that those move."""
    again: tuple[tuple[int, int, frozenset[int]], ...]
    """Of what may be computed again for each tile of a label: the time of once, and that of keeping it instead, both as
    bytes moved in that time; and the labels that it depends on."""
    fixed: int
    """Bytes held throughout, whatever the tiles."""
    workers: int
    shared: int
    """Bytes that may be decoded at most for several tiles that are parts of them."""
    groups: Mapping[int, int] = field(default_factory=dict)
    """Labels whose tiles are those that belong to a tile of another label."""

    @cached_property
    def granules(self) -> dict[int, int]:
        """The smallest tile of each label: whole chunks of what is written, and if possible of what is read."""
        return {label: self._granule(label) for label in self.sizes}

    @cached_property
    def least_granules(self) -> dict[int, int]:
        """The same without regard to what is read: chunks are then decoded more than once."""
        return {label: min(self._write_granule(label), self.sizes[label]) for label in self.sizes}

    def _write_granule(self, label: int) -> int:
        chunks = (c for stream in self.writes for c in chunk_units(stream, label))
        return math.lcm(self.multiples[label], *chunks)

    def _granule(self, label: int) -> int:
        unit, size = self._write_granule(label), self.sizes[label]
        wanted = sorted({c for stream in self.reads for c in self._read_units(stream, label)}, reverse=True)
        for chunk in wanted:
            both = math.lcm(unit, chunk)
            if both <= 4 * max(unit, wanted[0]) or both <= size // 8:
                unit = both
        return min(unit, size)

    def _read_units(self, stream: Stream, label: int) -> list[int]:
        """Chunk lengths along a label, also of what is read in the order of the rows that follow it."""
        dims = zip(stream.index, stream.chunks, strict=True)
        told = [c for axis, c in dims if axis is not None and axis.rows and self.groups.get(axis.label) == label]
        return chunk_units(stream, label) + (told if stream.in_order else [])

    @cached_property
    def read_footprints(self) -> tuple[Footprint, ...]:
        return total(stream.footprint for stream in self.reads)

    def tile_bytes(self, sizes: Sizes) -> int:
        return add(self.read_footprints, sizes) + add(self.results, sizes)

    def waits(self, sizes: Sizes) -> bool:
        """Whether tiles, but for partial sums, would be smaller if a label that is reduced in the middle were cut."""

        def complete(sizes: Sizes) -> int:
            return self.tile_bytes(sizes) - add((partial.footprint for partial in self.partials), sizes)

        smaller = ({**sizes, label: min(sizes[label], self.granules[label])} for label in self.penalties)
        return any(complete(cut) < complete(sizes) for cut in smaller)

    def wanted(self, tile_bytes: int) -> int:
        """What a tile should be at most: a chunk of each array, if these are large."""
        chunks = [stream.chunk_bytes for stream in (*self.reads, *self.writes)]
        return min(tile_bytes, sum(chunks)) if self.reads and min(chunks) >= DECODED_IN_PLACE else tile_bytes

    def resident(self, sizes: Sizes, workers: int) -> int:
        in_flight = workers * (self.tile_bytes(sizes) + self.live(sizes) + self.coding(sizes))
        return in_flight + self.held(sizes)

    def live(self, sizes: Sizes) -> int:
        """Bytes that computing a tile takes at most."""
        return max((add(moment, sizes) for moment in self.temporaries), default=0)

    def coding(self, sizes: Sizes) -> int:
        """Bytes of the largest chunk: one at a time is decoded whole, even for a smaller tile, or encoded."""
        order = self.order(sizes)
        apart = (s for s in self.reads if not s.alone and self.part(s, sizes, order) is None)
        encoded = (2 * stream.chunk_bytes for stream in self.writes)
        return max((*(stream.chunk_bytes for stream in apart), *encoded), default=0)

    def held(self, sizes: Sizes) -> int:
        """Bytes that do not depend on how many tiles are under way: also the chunks of which these are parts."""
        order = self.order(sizes)
        whole = sum(self._shared_bytes(stream, sizes, order) for stream in self.reads)
        return self.fixed + self.accumulators(sizes, order) + 2 * whole

    def part(self, stream: Stream, sizes: Sizes, order: Sequence[int]) -> int | None:
        """The dim along which a tile is part of chunks that the next tiles need too, and that are decoded once.

        None if it is not: they must be next in order, and what is decoded for them small.
        """
        dims = stream.streamed
        parts = [(d, axis.label) for d, axis, chunk in dims if sizes[axis.label] < chunk]
        if len(parts) != 1:
            return None
        (d, label), own = parts[0], {axis.label for _, axis, _ in dims}
        regular = all(
            axis.plain
            and axis.label not in self.groups
            and (axis.label == label or axis.label not in order or sizes[axis.label] % chunk == 0)
            for _, axis, chunk in dims
        )
        is_next = [label] == [each for each in order if each in own][-1:] and stream.chunks[d] % sizes[label] == 0
        return d if regular and is_next and _whole_bytes(stream, d, sizes) <= self.shared else None

    def _shared_bytes(self, stream: Stream, sizes: Sizes, order: Sequence[int]) -> int:
        """Bytes of the chunks of which a tile is a part; 0 if it is none."""
        d = self.part(stream, sizes, order)
        return 0 if d is None else _whole_bytes(stream, d, sizes)

    def count(self, label: int, sizes: Sizes) -> int:
        return -(-self.sizes[label] // sizes[label])

    def cut(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(label for label in self.sizes if sizes[label] < self.sizes[label])

    def accumulators(self, sizes: Sizes, order: Sequence[int]) -> int:
        """Bytes of partial results, in the wider type, that are alive at once."""
        result = 0
        for partial in self.partials:
            reduced = [n for n, label in enumerate(order) if label in partial.reduced]
            inner = [label for n, label in enumerate(order) if label in partial.kept and reduced and n > reduced[0]]
            live = math.prod(self.count(label, sizes) for label in inner)
            result += min(live * partial.footprint.bytes(sizes), partial.nbytes) * 2
        return result

    def traffic(self, sizes: Sizes, order: Sequence[int]) -> int:
        """Bytes decoded; a tile that the next one needs again is kept, a chunk that two tiles need is decoded twice."""
        result = 0
        for stream in self.reads:
            own = self._with_groups(axis.label for axis in axes(stream.index))
            last = max((n for n, label in enumerate(order) if label in own), default=-1)
            again = [label for label in order[: last + 1] if label not in own]
            times = math.prod(self.count(label, sizes) for label in again)
            result += stream.nbytes * times * redecoded(self, stream, sizes, order) // 16
        return result

    def _with_groups(self, labels: Iterable[int]) -> set[int]:
        labels = set(labels)
        return labels | {self.groups[label] for label in labels & self.groups.keys()}

    def rows_decoded(self, axis: Axis, n: int, chunk: int, in_order: bool, sizes: Sizes) -> int:
        """Of a dim of `n` that is read by row numbers, positions in the chunks that all tiles decode."""
        by, length = self.groups.get(axis.label), axis.length(sizes[axis.label])
        tiles, groups = self.count(axis.label, sizes), 1 if by is None else self.count(by, sizes)
        if not in_order:  # each row may be in another chunk
            return max(tiles, groups) * min(n, length * chunk)
        if 5 * tiles <= 4 * groups:  # a tile holds somewhat more than an average group
            return n
        return n + tiles * chunk

    def cost(self, sizes: Sizes) -> int:
        """Bytes that a choice of tiles moves, in this pass and in those that it makes necessary."""
        return self.effort(sizes) + sum(self.penalties.get(label, 0) for label in self.cut(sizes))

    def effort(self, sizes: Sizes) -> int:
        """Bytes that this pass moves; what it goes through, or computes, again counts as those moved in that time."""
        cut, traffic = self.cut(sizes), self.traffic(sizes, self.order(sizes))
        again = sum(min(keep, once * (self._times(cut, own, sizes) - 1)) for once, keep, own in self.again)
        return traffic + self.gone_through(sizes, traffic) + again

    def gone_through(self, sizes: Sizes, traffic: int) -> int:
        """What it costs if tiles go through the same memory again and again, as bytes decoded in that time."""
        cut, whole = [label for label in self.cut(sizes) if label not in self.groups], self.sizes
        labels = [(f, self._with_groups(axis.label for axis in f.axes)) for f in (*self.read_footprints, *self.results)]
        nbytes = sum(f.bytes(whole) * (self._times(cut, frozenset(own), sizes) - 1) for f, own in labels)
        return max(0, nbytes // IN_MEMORY - traffic)

    def _times(self, cut: Sequence[int], own: frozenset[int], sizes: Sizes) -> int:
        return math.prod(self.count(label, sizes) for label in cut if label not in own)

    @cached_property
    def _orders(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}

    def order(self, sizes: Sizes) -> tuple[int, ...]:
        """Loops from the outermost to the innermost: few partial results alive, few bytes read again."""
        key = tuple(sizes.values())
        if key not in self._orders:
            self._orders[key] = self._order(sizes)
        return self._orders[key]

    def _order(self, sizes: Sizes) -> tuple[int, ...]:
        cut = self.cut(sizes)
        if len(cut) > 4:
            reduced = frozenset().union(*(p.reduced for p in self.partials))
            return tuple(sorted(cut, key=lambda label: (label in self.groups, label in reduced, label)))
        orders = filter(self._is_possible, permutations(cut))
        return min(orders, key=lambda o: (self.accumulators(sizes, o), self.traffic(sizes, o)), default=())

    def _is_possible(self, order: Sequence[int]) -> bool:
        """Tiles that others tell come after these."""
        return all(not {self.groups.get(label)} & {*order[n:]} for n, label in enumerate(order))


def chunk_units(stream: Stream, label: int) -> list[int]:
    """Chunk lengths along a label, counted in steps of the label; a chunk as long as the dim is the whole dim."""
    return [
        _steps(axis, min(chunk, n))
        for axis, chunk, n in zip(stream.index, stream.chunks, stream.shape, strict=True)
        if axis is not None and axis.label == label and axis.rows is None
    ]


def _whole_bytes(stream: Stream, d: int, sizes: Sizes) -> int:
    """Bytes of a tile if it were of whole chunks along a dim."""
    axis = stream.index[d]
    return 0 if axis is None else stream.footprint.bytes({**sizes, axis.label: stream.chunks[d]})


def redecoded(model: Model, stream: Stream, sizes: Sizes, cut: Sequence[int]) -> int:
    """How often a chunk is decoded, in sixteenths: once if tiles are whole chunks."""
    times = 16
    if model.part(stream, sizes, cut) is not None:
        return times
    for axis, chunk, n in zip(stream.index, stream.chunks, stream.shape, strict=True):
        if axis is not None and axis.rows is not None:
            decoded = model.rows_decoded(axis, n, 1 if stream.alone else chunk, stream.in_order, sizes)
            times = max(1, times * decoded // max(n, 1))
        elif axis is not None and axis.label in cut:
            length = axis.length(sizes[axis.label])
            chunk = min(chunk, n)
            if length % chunk:
                times = times * (max(length, chunk) + (length if chunk % length else 0)) // length
    return times


def _steps(axis: Axis, chunk: int) -> int:
    return max(1, chunk * axis.divisor // math.gcd(chunk * axis.divisor, axis.scale))


@dataclass(frozen=True, slots=True)
class Tiling:
    """The choice: tile sizes, loop order, and what they cost."""

    sizes: dict[int, int]
    order: tuple[int, ...]
    workers: int
    """Tiles under way at a time."""
    resident: int
    """Projected peak, in bytes."""
    held: int
    """Its part that does not depend on how many tiles are under way."""
    ahead: int
    """Bytes that reading another tile takes meanwhile."""
    traffic: int
    """Bytes read."""
    effort: int
    """The same with what is gone through, or computed, again, as bytes read in that time."""
    tile_bytes: int
    """Bytes that one tile reads and yields."""
    parts: tuple[bool, ...]
    """Of each array that is read, whether a tile is part of a chunk that is decoded for several."""
    waits: bool
    """Whether it is larger than wanted, since a value in the middle reduces what it holds."""
    fits: bool


def choose_tiles(model: Model, budget: int, tile_bytes: int = TILE_BYTES) -> Tiling:
    """The largest tiles that fit the budget and are no larger than `tile_bytes` where smaller ones are free.

    1. Cut what can be cut for free: between chunks, then, for memory, within those that are decoded once for several.
    2. If one tile at a time does not fit, cut what costs least; below whole chunks only if that costs less in the end.
    3. Cut on, as long as it is free, so that more tiles fit at a time.
    """
    wanted = model.wanted(tile_bytes)
    sizes = _shrink(model, dict(model.sizes), model.granules, budget, wanted, model.workers, _free)
    sizes = _shrink(model, sizes, model.least_granules, budget, budget, model.workers, _free_and_worth)
    if model.resident(sizes, 1) > budget:
        fitted = [_fitted(model, sizes, g, budget, wanted) for g in (model.granules, model.least_granules)]
        sizes = min(fitted, key=lambda sizes: (model.resident(sizes, 1) > budget, model.cost(sizes)))
    order = model.order(sizes)
    at_most = min(model.workers, math.prod(model.count(label, sizes) for label in order))
    workers = max((n for n in range(1, at_most + 1) if model.resident(sizes, n) <= budget), default=1)
    resident, tile = model.resident(sizes, workers), model.tile_bytes(sizes)
    return Tiling(
        sizes,
        order,
        workers,
        resident,
        model.held(sizes),
        add(model.read_footprints, sizes) + 4 * model.coding(sizes),  # two threads have buffers to decode in
        model.traffic(sizes, order),
        model.effort(sizes),
        tile,
        tuple(model.part(stream, sizes, order) is not None for stream in model.reads),
        tile > wanted and model.waits(sizes),
        resident <= budget,
    )


def _fitted(model: Model, sizes: dict[int, int], granules: Sizes, budget: int, tile_bytes: int) -> dict[int, int]:
    sizes = _shrink(model, sizes, granules, budget, tile_bytes, 1)
    return _shrink(model, sizes, granules, budget, tile_bytes, model.workers, _free)


def _shrink(
    model: Model,
    sizes: dict[int, int],
    granules: Sizes,
    budget: int,
    tile_bytes: int,
    workers: int,
    may: Callable[[Model, Sizes, Sizes], bool] | None = None,
) -> dict[int, int]:
    """Cut until so many tiles fit, and each is small enough if that matters, as long as a cut is such as it may be."""
    while True:
        fits = model.resident(sizes, workers) <= budget
        if fits and (may is None or model.tile_bytes(sizes) <= tile_bytes):
            return sizes
        smaller = [s for s in _smaller(granules, sizes) if may is None or may(model, sizes, s)]
        if not smaller:
            return sizes
        sizes = min(smaller, key=lambda s: (model.cost(s), model.resident(s, workers)))


def _smaller(granules: Sizes, sizes: dict[int, int]) -> list[dict[int, int]]:
    """The choices one step smaller: one label, about halved, in whole granules."""
    result = []
    for label, size in sizes.items():
        granule = granules[label]
        if size > granule:
            half = max(granule, -(-size // 2 // granule) * granule)
            result.append({**sizes, label: half if half < size else granule})
    return result


def _free(model: Model, sizes: Sizes, smaller: Sizes) -> bool:
    return model.cost(smaller) <= model.cost(sizes) and model.tile_bytes(smaller) < model.tile_bytes(sizes)


def _free_and_worth(model: Model, sizes: Sizes, smaller: Sizes) -> bool:
    """Whether such a cut leaves more to compute than partial results to combine."""
    combined = sum(partial.footprint.bytes(smaller) for partial in model.partials)
    work = model.tile_bytes(smaller) + model.live(smaller)
    return _free(model, sizes, smaller) and work >= max(LEAST_TILE_BYTES, 4 * combined)
