"""That the contenders computed the same: arrays returned and arrays written, compared chunk by chunk."""

from pathlib import Path
from typing import Any

import numpy as np
import zarr

ROWS = 1024


class Different(Exception):
    """Two contenders did not give the same arrays."""


def results(folder: Path) -> dict[str, Any]:
    """What one run left in its folder, by name."""
    found: dict[str, Any] = {}
    for place in sorted(folder.iterdir()):
        if place.suffix == ".npy":
            found[place.stem] = np.load(place)
        elif place.suffix == ".raw":
            found[place.stem] = place
        elif place.is_dir() and (place / "zarr.json").exists():
            found[place.name] = zarr.open_array(str(place), mode="r")
    return found


def difference(folder: Path, reference: Path) -> float:
    """The largest difference between two contenders' results, relative to the largest value of each array."""
    ours, theirs = results(folder), results(reference)
    if set(ours) != set(theirs) or not ours:
        raise Different(f"{folder.name} gave {sorted(ours)}, {reference.name} gave {sorted(theirs)}")
    return max(_difference(_array(ours[name], theirs[name]), theirs[name]) for name in theirs)


def _array(values: Any, model: Any) -> Any:
    """A raw file has the shape and dtype of the array it is compared with."""
    return np.memmap(values, model.dtype, "r", shape=model.shape) if isinstance(values, Path) else values


def _difference(ours: Any, theirs: Any) -> float:
    if ours.shape != theirs.shape:
        raise Different(f"a result of shape {ours.shape} is not {theirs.shape}")
    if not ours.shape:
        return _largest([(ours, theirs)])
    blocks = ((ours[n : n + ROWS], theirs[n : n + ROWS]) for n in range(0, ours.shape[0], ROWS))
    return _largest(blocks)


def _largest(pairs: Any) -> float:
    difference = scale = 0.0
    for ours, theirs in pairs:
        ours, theirs = np.asarray(ours, "float64"), np.asarray(theirs, "float64")
        difference = np.maximum(difference, np.abs(ours - theirs).max())
        scale = np.maximum(scale, np.abs(theirs).max())
    return float(difference / scale) if scale else float(difference)
