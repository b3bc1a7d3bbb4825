"""How the partial results of tiles become one result, in tile order and in the wider type."""

from __future__ import annotations

from typing import Any

import numpy as np

from jask_zarr._plan.wider import wider_inexact
from jask_zarr.errors import IntegerOverflowError

UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "add": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def first(combine: str, partial: Any) -> Any:
    """The accumulator that the first partial result begins."""
    if combine in ("rescaled", "recentred"):
        return _wide(partial)
    if isinstance(partial, tuple):
        return tuple(np.array(p) for p in partial)
    return np.array(partial, dtype=(combine == "add" and wider_inexact(partial.dtype)) or partial.dtype)


def merge(combine: str, total: Any, partial: Any) -> Any:
    """Add the partial result of the next tile."""
    if combine in ("argmax", "argmin"):
        return _merge_arg(combine, total, partial)
    if combine == "rescaled":
        return _merge_rescaled(total, _wide(partial))
    if combine == "recentred":
        return _merge_recentred(total, partial)
    if isinstance(partial, tuple):
        return tuple(UFUNCS[combine](t, p) for t, p in zip(total, partial, strict=True))
    with np.errstate(all="ignore"):
        return (
            UFUNCS[combine](total, partial, out=total)
            if isinstance(total, np.ndarray) and total.ndim
            else UFUNCS[combine](total, partial)
        )


def finish(combine: str, total: Any, dtype: Any) -> np.ndarray:
    """The result in its own dtype."""
    if combine in ("argmax", "argmin", "rescaled", "recentred"):
        with np.errstate(all="ignore"):
            result = _finish_recentred(total) if combine == "recentred" else total[1]
            return np.asarray(result).astype(dtype)
    if isinstance(total, tuple):
        _check_range(total[0], total[1], dtype)
        total = total[0]
    with np.errstate(all="ignore"):
        return np.asarray(total).astype(dtype)


def _merge_arg(combine: str, total: Any, partial: Any) -> Any:
    """The better value wins; of equal ones the earlier; the first NaN beats everything."""
    (best, where), (value, position) = total, partial
    better = (value > best) if combine == "argmax" else (value < best)
    better = np.asarray(better | ((value != value) & ~(best != best)), bool)
    return np.where(better, value, best), np.where(better, position, where)


def _wide(partial: Any) -> Any:
    """A maximum or a mean, and sums relative to it."""
    return tuple(np.asarray(p).astype(wider_inexact(p.dtype)) for p in partial)


def _merge_rescaled(total: Any, partial: Any) -> Any:
    """Both sums relative to the larger maximum."""
    (old, total), (new, partial) = total, partial
    with np.errstate(all="ignore"):
        maximum = np.maximum(old, new)
        return maximum, total * _scale(old, maximum) + partial * _scale(new, maximum)


def _scale(old: Any, new: Any) -> Any:
    return np.where(old == new, 1.0, np.exp(old - new))  # infinite ones may be equal


def _merge_recentred(total: Any, partial: Any) -> Any:
    """Both sums relative to the common mean; `rest` is what rounding left out of a mean, times the count."""
    (count, mean, rest, squares), (more, other, others_rest, others) = total, partial
    with np.errstate(all="ignore"):
        both = count + more
        centre = mean + ((other - mean) * more + rest + others_rest) / both
        near, far = mean - centre, other - centre
        correction = near * (2 * rest + count * near) + far * (2 * others_rest + more * far)
        return both, centre, rest + others_rest + count * near + more * far, _corrected(squares + others, correction)


def _finish_recentred(total: Any) -> Any:
    count, _, rest, squares = total
    return _corrected(squares, -rest * rest / count)


def _corrected(squares: Any, correction: Any) -> Any:
    """Squares that overflow are infinite, though what would correct them overflows too."""
    return np.where(np.isinf(squares), squares, squares + correction)


def _check_range(exact: Any, approximate: Any, dtype: Any) -> None:
    """Raise if an integer sum, known exactly modulo 2**64 and roughly as a float, does not fit its dtype."""
    info = np.iinfo(dtype)
    wrapped = np.abs(np.asarray(approximate) - np.asarray(exact, np.float64)) > 2.0**62
    outside = (np.asarray(exact) < info.min) | (np.asarray(exact) > info.max)
    if np.any(wrapped | outside):
        worst = np.asarray(approximate).flat[int(np.argmax(np.abs(approximate)))]
        raise IntegerOverflowError(
            f"a sum of about {worst:.6g} does not fit {np.dtype(dtype).name} (at most {info.max}): convert the array "
            "to a wider type first, for instance with .astype('float32'), or enable 64-bit types with jax_enable_x64"
        )
