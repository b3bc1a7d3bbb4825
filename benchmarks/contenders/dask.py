"""dask.array on its threads; gradients derived by hand, as it has none."""

from functools import partial
from pathlib import Path
from typing import Any

import by_hand
import dask
import dask.array as da
import models
import numpy as np
from stores import counted, create, load, open_stored

io_cost = counted
UPDATES_IN_PLACE = False


def set_budget(budget: int) -> None:
    """dask's threads know no budget."""


def _open(data: Path, names: str) -> list[Any]:
    return [da.from_zarr(open_stored(data / name)) for name in names.split()]


def _save(arrays: dict[Path, Any], chunks: tuple[int, ...]) -> None:
    targets = [create(path, array.shape, chunks, array.dtype) for path, array in arrays.items()]
    da.store([array.rechunk(chunks) for array in arrays.values()], targets, lock=False)


def difference(data: Path, out: Path) -> list[Any]:
    a, b = _open(data, "a b")
    return [((a - b) ** 2).sum().compute()]


def elementwise(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save({out / "result": da.tanh(a) * b + a}, a.chunksize)


def polynomial(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save({out / "result": a * b + a}, a.chunksize)


def gradient(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save({out / "result": 2 * (a - b)}, a.chunksize)


def logistic(data: Path, out: Path) -> list[Any]:
    x, targets = _open(data, "x targets")
    return list(dask.compute(*by_hand.logistic(da, np.zeros(x.shape[1], "float32"), x, targets)))


def mlp(data: Path, out: Path, name: str) -> list[Any]:
    depth = len(list((data / name).iterdir())) // 2
    parameters = [(load(data / name / f"w{n}"), load(data / name / f"b{n}")) for n in range(depth)]
    return list(dask.compute(*by_hand.network(da, parameters, *_open(data, "x labels"))))


def mlp_disk(data: Path, out: Path, name: str) -> list[Any]:
    loss, *gradients = mlp(data, out, name)
    for n, values in enumerate(gradients):
        create(out / f"{'wb'[n % 2]}{n // 2}", values.shape, values.shape)[...] = values
    return [loss]


mlp2, mlp2_disk = partial(mlp, name="mlp2"), partial(mlp_disk, name="mlp2")
mlp8, mlp8_disk = partial(mlp, name="mlp8"), partial(mlp_disk, name="mlp8")


def least_squares(data: Path, out: Path) -> list[Any]:
    (x,) = _open(data, "wide")
    return [models.least_squares(x, np.ones(x.shape[1], "float32")).compute()]


def matmul(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save({out / "result": a @ b}, a.chunksize)


def adam(data: Path, out: Path) -> None:
    """Into new stores: updating those that it reads would race."""
    p, m, v, g = _open(data, "p m v g")
    _save({out / n: x for n, x in zip("pmv", models.adam(p, m, v, g), strict=True)}, p.chunksize)


def softmax(data: Path, out: Path) -> None:
    (x,) = _open(data, "long")
    _save({out / "result": by_hand.softmax(da, x)}, x.chunksize)


def moments0(data: Path, out: Path, axis: int = 0) -> list[Any]:
    (a,) = _open(data, "a")
    return list(dask.compute(a.mean(axis), a.var(axis)))


moments1 = partial(moments0, axis=1)


def transpose(data: Path, out: Path) -> None:
    (a,) = _open(data, "a")
    _save({out / "result": a.T}, a.chunksize)


def rechunk(data: Path, out: Path) -> None:
    (a,) = _open(data, "a")
    _save({out / "result": a}, by_hand.tall(a.shape, a.chunksize))


def lookup(data: Path, out: Path) -> None:
    (table,), rows = _open(data, "x"), load(data / "lookups")
    _save({out / "result": table[rows]}, table.chunksize)


def lookup_gradient(data: Path, out: Path) -> None:
    (table,), rows = _open(data, "x"), load(data / "lookups")
    counts = da.from_array(np.bincount(rows, minlength=len(table)).astype("float32"), chunks=table.chunksize[0])
    _save({out / "result": 2 * counts[:, None] * table}, table.chunksize)
