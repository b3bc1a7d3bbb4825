"""cubed on its threads, within the same budget; the jobs that its array API can say."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import by_hand
import cubed
import cubed.array_api as xp
from stores import counted, create

io_cost = counted
UPDATES_IN_PLACE = False
_work = tempfile.TemporaryDirectory(prefix="cubed-")
_budget = 0


def set_budget(budget: int) -> None:
    """The memory that a task may take."""
    global _budget
    _budget = budget


def _open(data: Path, names: str) -> list[Any]:
    spec = cubed.Spec(_work.name, allowed_mem=_budget, executor_name="threads")
    return [cubed.from_zarr(str(data / name), spec=spec) for name in names.split()]


def _save(array: Any, path: Path, chunks: tuple[int, ...]) -> None:
    cubed.store([array], [create(path, array.shape, chunks, array.dtype)])


def difference(data: Path, out: Path) -> list[Any]:
    a, b = _open(data, "a b")
    return [xp.sum(xp.square(a - b)).compute()]


def elementwise(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(xp.tanh(a) * b + a, out / "result", a.chunksize)


def polynomial(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(a * b + a, out / "result", a.chunksize)


def gradient(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(2 * (a - b), out / "result", a.chunksize)


def matmul(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(a @ b, out / "result", a.chunksize)


def moments0(data: Path, out: Path, axis: int = 0) -> list[Any]:
    (a,) = _open(data, "a")
    return list(cubed.compute(xp.mean(a, axis=axis), xp.var(a, axis=axis)))


moments1 = partial(moments0, axis=1)


def transpose(data: Path, out: Path) -> None:
    (a,) = _open(data, "a")
    _save(xp.permute_dims(a, (1, 0)), out / "result", a.chunksize)


def rechunk(data: Path, out: Path) -> None:
    (a,) = _open(data, "a")
    chunks = by_hand.tall(a.shape, a.chunksize)
    _save(cubed.rechunk(a, chunks), out / "result", chunks)


def softmax(data: Path, out: Path) -> None:
    (x,) = _open(data, "long")
    exponentials = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    _save(exponentials / xp.sum(exponentials, axis=1, keepdims=True), out / "result", x.chunksize)
