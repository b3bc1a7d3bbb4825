"""``a[index]``: what is a box, what is a look-up.

1. Slices, ints, `None` and `Ellipsis` alone select a strided box: its size is structure (`_Box`),
   its start is data.
2. An integer array anywhere makes it a look-up: the arrays are data, the rest is structure.
"""

import operator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from jask_zarr import _compat
from jask_zarr._tracing.lift import lift

_LARGEST_INT32 = 2**31 - 1


def getitem(a: Any, index: Any) -> Any:
    """Select a part of an array, as ``a[index]`` of NumPy does.

    Parameters
    ----------
    a : DiskArray or jax.Array
        The array.
    index : int, slice, None, Ellipsis, integer or boolean array, or a tuple of them
        Boolean masks must be in memory, since the shape of the result depends on them.

    Examples
    --------
    >>> import numpy as np, jask_zarr as jz
    >>> a = jz.DiskArray.from_numpy(np.arange(12, dtype="int32").reshape(3, 4), chunks=(2, 2))
    >>> a[1:, ::2].to_numpy()
    array([[ 4,  6],
           [ 8, 10]], dtype=int32)
    """
    given = [_without_list(entry) for entry in _as_tuple(index)]
    _check_masks(given, a.shape)
    entries = [part for entry in given for part in _without_mask(entry)]
    if any(_is_array(entry) for entry in entries):
        return _look_up(a, entries)
    return _select(a, _complete(entries, a.shape))


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_array(entry: Any) -> bool:
    return hasattr(entry, "dtype") and not isinstance(entry, np.integer)


def _complete(index: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """One entry for each dim, and `None` for each new one."""
    taken = sum(entry is not None and entry is not Ellipsis for entry in index)
    if taken > len(shape):
        raise IndexError(f"{taken} indices for an array of {len(shape)} dimensions, shape {shape}")
    at = [k for k, entry in enumerate(index) if entry is Ellipsis] or [len(index)]
    if len(at) > 1:
        raise IndexError("an index can have only one ellipsis ('...')")
    return [*index[: at[0]], *[slice(None)] * (len(shape) - taken), *index[at[0] + 1 :]]


def _without_list(entry: Any) -> Any:
    return np.asarray(entry, None if entry else np.int32) if isinstance(entry, list) else entry


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, bool | np.bool_) or (_is_array(entry) and entry.dtype == bool)


def _dims_taken(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return np.ndim(entry) if _is_mask(entry) else 1


def _first_dim(index: list[Any], k: int, rank: int) -> int:
    """The dim that entry `k` begins with."""
    if any(entry is Ellipsis for entry in index[:k]):
        return rank - sum(_dims_taken(entry) for entry in index[k:])
    return sum(_dims_taken(entry) for entry in index[:k])


def _check_masks(index: list[Any], shape: tuple[int, ...]) -> None:
    for k, entry in enumerate(index):
        if _is_mask(entry):
            dim = _first_dim(index, k, len(shape))
            _check_mask(entry, shape[dim : dim + np.ndim(entry)])


def _check_mask(mask: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, np.ndarray | jax.Array) or isinstance(mask, _compat.Tracer):
        raise TypeError(
            f"boolean index {mask!r} whose values are not an array in memory: the shape of the "
            "result would depend on them. Use jz.where(mask, a, fill), or mask.to_numpy()."
        )
    if mask.shape != shape:
        raise IndexError(f"boolean index of shape {mask.shape} for dims of shape {shape}")


def _without_mask(entry: Any) -> tuple[Any, ...]:
    """A mask as the positions of its true values."""
    return np.nonzero(np.asarray(entry)) if _is_mask(entry) else (entry,)


def _range(entry: Any, length: int, dim: int) -> range:
    """The positions that an entry selects, in ascending order."""
    if isinstance(entry, slice):
        selected = range(*entry.indices(length))
        return selected if selected.step > 0 else selected[::-1]
    position = operator.index(entry)
    if not -length <= position < length:
        raise IndexError(f"index {position} is out of bounds for dim {dim} of length {length}")
    return range(position % length, position % length + 1)


@dataclass(frozen=True, slots=True)
class _Box:
    """How to cut, without where: `spans` positions of every dim, of these every `strides`-th, then
    `flipped` dims reversed, `dropped` dims removed and `added` dims of length one put in."""

    spans: tuple[int, ...]
    strides: tuple[int, ...]
    flipped: tuple[int, ...]
    dropped: tuple[int, ...]
    added: tuple[int, ...]

    @classmethod
    def of(cls, entries: list[Any], ranges: list[range]) -> "_Box":
        real = [entry for entry in entries if entry is not None]
        kept = [entry for entry in entries if entry is None or isinstance(entry, slice)]
        slices = [entry if isinstance(entry, slice) else None for entry in real]
        return cls(
            spans=tuple(r[-1] - r[0] + 1 if r else 0 for r in ranges),
            strides=tuple(r.step for r in ranges),
            flipped=tuple(dim for dim, s in enumerate(slices) if s and (s.step or 1) < 0),
            dropped=tuple(dim for dim, s in enumerate(slices) if s is None),
            added=tuple(dim for dim, entry in enumerate(kept) if entry is None),
        )


def _cut(a: jax.Array, starts: Any, box: _Box) -> jax.Array:
    part = a if box.spans == a.shape else lax.dynamic_slice(a, starts, box.spans)
    if any(step != 1 for step in box.strides):
        part = lax.slice(part, (0,) * part.ndim, part.shape, box.strides)
    part = lax.rev(part, box.flipped) if box.flipped else part
    return lax.expand_dims(lax.squeeze(part, box.dropped), box.added)


# Where a box begins is data: a loop over `a[i:i + n]` plans and compiles once.
_cut_at_data = lift(_cut, static_argnames=("box",))
_cut_at_constant = lift(_cut, static_argnames=("box", "starts"))


def _select(a: Any, entries: list[Any]) -> Any:
    real = [entry for entry in entries if entry is not None]
    ranges = [_range(*pair, dim) for dim, pair in enumerate(zip(real, a.shape, strict=True))]
    starts = tuple(r[0] if r else 0 for r in ranges)
    box = _Box.of(entries, ranges)
    cut = _cut_at_data if max(starts, default=0) <= _LARGEST_INT32 else _cut_at_constant
    return cut(a, starts, box)


def _look_up(a: Any, entries: list[Any]) -> Any:
    arrays = [entry for entry in entries if _is_array(entry)]
    return _gather(a, arrays, tuple(None if _is_array(e) else _Static.of(e) for e in entries))


@dataclass(frozen=True, slots=True)
class _Static:
    """An index entry that is not an array, hashable (a slice is not before Python 3.12)."""

    value: Any
    is_slice: bool

    @classmethod
    def of(cls, entry: Any) -> "_Static":
        if isinstance(entry, slice):
            return cls((entry.start, entry.stop, entry.step), is_slice=True)
        return cls(entry, is_slice=False)

    def entry(self) -> Any:
        return slice(*self.value) if self.is_slice else self.value


def _gather_rows(a: jax.Array, arrays: list[jax.Array], static: tuple[_Static | None, ...]) -> Any:
    queue = iter(arrays)
    return a[tuple(next(queue) if entry is None else entry.entry() for entry in static)]


_gather = lift(_gather_rows, static_argnames=("static",))
