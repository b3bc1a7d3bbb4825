"""Reads boxes with listed positions: each chunk that holds any of them is decoded once.

Of a temporary array, whose chunks lie on disk as they are, only these positions are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from jask_zarr._disk import count_read
from jask_zarr._run.buffers import BufferPool
from jask_zarr._run.executors import in_leaves
from jask_zarr._run.tile import Listed

Place = int | Listed


class _Piece(NamedTuple):
    """Part of a dim that lies in one chunk: where it is stored, and where it goes."""

    start: int
    stop: int
    target: slice | np.ndarray
    taken: np.ndarray | None
    """Which of the elements stored there; None for all."""


def read_listed(source: Any, places: Sequence[Place], buffer: np.ndarray, pool: BufferPool) -> None:
    """Read a box; what lies outside the array is arbitrary."""
    dims = zip(places, buffer.shape, source.shape, source.chunks, strict=True)
    pieces = [[*(_listed(p, n, c) if isinstance(p, Listed) else _running(p, k, n, c))] for p, k, n, c in dims]
    in_leaves(lambda *box: _read_piece(source, box, buffer, pool), product(*pieces))


def _running(start: int, length: int, size: int, chunk: int) -> Iterator[_Piece]:
    begin, end = max(start, 0), min(start + length, size)
    for first in range(begin // chunk * chunk, end, chunk) if begin < end else ():
        a, b = max(first, begin), min(first + chunk, end)
        yield _Piece(a, b, slice(a - start, b - start), None)


def _listed(place: Listed, size: int, chunk: int) -> Iterator[_Piece]:
    positions = np.clip(place.positions, 0, size - 1)
    order = np.argsort(positions, kind="stable")
    cuts = np.flatnonzero(np.diff(positions[order] // chunk)) + 1
    for where in np.split(order, cuts):
        first = int(positions[where[0]]) // chunk * chunk
        yield _Piece(first, min(first + chunk, size), where, positions[where] - first)


def _read_piece(source: Any, box: Sequence[_Piece], buffer: np.ndarray, pool: BufferPool) -> None:
    start, stop = tuple(p.start for p in box), tuple(p.stop for p in box)
    mapped = source.mapped(start, stop)
    if mapped is not None:
        part = buffer[_target(box, buffer.shape)] = _taken(mapped, box)
        count_read(1, min(part.nbytes, mapped.nbytes))
        return
    stored = pool.take([p.stop - p.start for p in box], source.dtype)
    source.read_box(start, stop, out=stored)
    buffer[_target(box, buffer.shape)] = _taken(stored, box)
    pool.give(stored)


def _taken(part: np.ndarray, box: Sequence[_Piece]) -> np.ndarray:
    for d, piece in enumerate(box):
        if piece.taken is not None:
            part = np.take(part, piece.taken, axis=d)
    return part


def _target(box: Sequence[_Piece], shape: Sequence[int]) -> tuple[Any, ...]:
    if sum(p.taken is not None for p in box) == 1:
        return tuple(p.target for p in box)
    return np.ix_(*(np.arange(n)[p.target] for p, n in zip(box, shape, strict=True)))
