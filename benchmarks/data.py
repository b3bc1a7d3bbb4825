"""The inputs of the jobs: made once for each scale, chunk by chunk, and kept."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from stores import create, open_stored


@dataclass(frozen=True)
class Scale:
    """How large the inputs are, and the memory budget in bytes."""

    name: str
    budget: int
    square: int
    square_chunk: int
    rows: int
    row_chunk: int
    parameters: int
    """Side of the square array of parameters that Adam updates."""
    long: int
    """Length of the axis that softmax reduces."""
    features: int = 256
    classes: int = 10
    height: int | None = None
    """Rows of the square arrays, where they are not square."""


SMALL = Scale("small", 8_000_000, 1024, 256, 16_384, 1024, 1024, 262_144)
FULL = Scale("full", 256_000_000, 8192, 1024, 262_144, 8192, 16_384, 2_097_152)
TINY = Scale("tiny", 8_000_000, 128, 32, 512, 128, 128, 4096, features=32)
SCALES = {scale.name: scale for scale in (TINY, SMALL, FULL)}


def growing(base: Scale, factor: int) -> Scale:
    """Of the two large arrays alone, `factor` times as high, at a budget that stays."""
    small = base.name != "full"
    return Scale(
        f"{base.name}-times-{factor}",
        budget=8_000_000 if small else 40_000_000,
        square=512 if small else 4096,
        square_chunk=128 if small else 512,
        height=(256 if small else 4096) * factor,
        rows=0,
        row_chunk=0,
        parameters=0,
        long=0,
    )


def prepare(folder: Path, scale: Scale, names: tuple[str, ...]) -> Path:
    """Make those inputs of a scale that are not there yet; gives their folder."""
    place = folder / scale.name
    for name in names:
        if not (place / name).exists():
            partial = place / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            INPUTS[name](partial, scale)
            partial.rename(place / name)
    return place


def needed_bytes(place: Path, names: tuple[str, ...]) -> int:
    """Decoded bytes of those inputs, each once."""
    return sum(open_stored(path.parent).nbytes for name in names for path in (place / name).rglob("zarr.json"))


def _noise(seed: int, spread: float = 1.0, positive: bool = False) -> Callable[[tuple[int, ...]], np.ndarray]:
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        values = generator.standard_normal(shape, dtype="float32") * np.float32(spread)
        return np.abs(values) if positive else values

    return draw


def _classes(seed: int, count: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    generator = np.random.default_rng(seed)
    return lambda shape: generator.integers(0, count, shape, dtype="int32")


def _fill(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], draw: Callable, dtype: str = "float32") -> None:
    array = create(path, shape, chunks, dtype)
    for box in _boxes(array):
        array[box] = draw(tuple(s.stop - s.start for s in box)).astype(dtype)


def _boxes(array: zarr.Array) -> Iterator[tuple[slice, ...]]:
    starts = (range(0, n, c) for n, c in zip(array.shape, array.chunks, strict=True))
    for start in itertools.product(*starts):
        yield tuple(slice(a, min(a + c, n)) for a, c, n in zip(start, array.chunks, array.shape, strict=True))


def _square(seed: int) -> Callable[[Path, Scale], None]:
    def make(path: Path, s: Scale) -> None:
        _fill(path, (s.height or s.square, s.square), (s.square_chunk, s.square_chunk), _noise(seed))

    return make


def _parameters(seed: int, spread: float, positive: bool = False) -> Callable[[Path, Scale], None]:
    def make(path: Path, s: Scale) -> None:
        chunk = (s.square_chunk, s.square_chunk)
        _fill(path, (s.parameters, s.parameters), chunk, _noise(seed, spread, positive))

    return make


def _network(depth: int) -> Callable[[Path, Scale], None]:
    def make(path: Path, s: Scale) -> None:
        widths = [s.features] * depth + [s.classes]
        for n, shape in enumerate(itertools.pairwise(widths)):
            _fill(path / f"w{n}", shape, shape, _noise(n, (2 / shape[0]) ** 0.5))
            _fill(path / f"b{n}", shape[1:], shape[1:], _noise(100 + n, 0.1))

    return make


def _rows(path: Path, s: Scale) -> None:
    _fill(path, (s.rows, s.features), (s.row_chunk, s.features), _noise(3))


def _labels(path: Path, s: Scale) -> None:
    _fill(path, (s.rows,), (s.row_chunk,), _classes(4, s.classes), "int32")


def _targets(path: Path, s: Scale) -> None:
    _fill(path, (s.rows,), (s.row_chunk,), _classes(5, 2))


def _wide(path: Path, s: Scale) -> None:
    shape, chunks = (s.rows // 4, 8 * s.features), (s.row_chunk // 4, 4 * s.features)
    _fill(path, shape, chunks, _noise(6))


def _long(path: Path, s: Scale) -> None:
    _fill(path, (32, s.long), (32, s.long // 32), _noise(7, 3.0))


def _lookups(path: Path, s: Scale) -> None:
    count = s.rows // 4
    _fill(path, (count,), (count,), _classes(8, s.rows), "int32")


def _weights(path: Path, s: Scale) -> None:
    _fill(path, (s.features, s.features), (s.features, s.features), _noise(9, 0.1))


def _batch(path: Path, s: Scale) -> None:
    _fill(path, (512, s.features), (512, s.features), _noise(10))


INPUTS: dict[str, Callable[[Path, Scale], None]] = {
    "a": _square(1),
    "b": _square(2),
    "x": _rows,
    "labels": _labels,
    "targets": _targets,
    "wide": _wide,
    "long": _long,
    "lookups": _lookups,
    "weights": _weights,
    "batch": _batch,
    "mlp2": _network(2),
    "mlp8": _network(8),
    "p": _parameters(11, 0.1),
    "m": _parameters(12, 0.01),
    "v": _parameters(13, 1e-4, positive=True),
    "g": _parameters(14, 0.01),
}
