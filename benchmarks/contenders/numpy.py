"""Load everything, compute with numpy, save everything."""

from functools import partial
from pathlib import Path
from typing import Any

import by_hand
import models
import numpy as np
from stores import counted, load, open_stored, save

io_cost = counted
UPDATES_IN_PLACE = False


def set_budget(budget: int) -> None:
    """It takes what it needs."""


def _load(data: Path, names: str) -> list[np.ndarray]:
    return [load(data / name) for name in names.split()]


def _save(array: Any, path: Path, model: Path) -> None:
    save(path, np.ascontiguousarray(array), open_stored(model).chunks)


def difference(data: Path, out: Path) -> list[Any]:
    a, b = _load(data, "a b")
    a -= b
    return [np.square(a, out=a).sum()]


def elementwise(data: Path, out: Path) -> None:
    a, b = _load(data, "a b")
    b *= np.tanh(a)
    b += a
    _save(b, out / "result", data / "a")


def polynomial(data: Path, out: Path) -> None:
    a, b = _load(data, "a b")
    b *= a
    b += a
    _save(b, out / "result", data / "a")


def gradient(data: Path, out: Path) -> None:
    a, b = _load(data, "a b")
    a -= b
    a *= 2
    _save(a, out / "result", data / "a")


def logistic(data: Path, out: Path) -> list[Any]:
    x, targets = _load(data, "x targets")
    return by_hand.logistic(np, np.zeros(x.shape[1], "float32"), x, targets)


def mlp(data: Path, out: Path, name: str) -> list[Any]:
    depth = len(list((data / name).iterdir())) // 2
    parameters = [(load(data / name / f"w{n}"), load(data / name / f"b{n}")) for n in range(depth)]
    return by_hand.network(np, parameters, *_load(data, "x labels"))


def mlp_disk(data: Path, out: Path, name: str) -> list[Any]:
    loss, *gradients = mlp(data, out, name)
    for n, values in enumerate(gradients):
        save(out / f"{'wb'[n % 2]}{n // 2}", values, values.shape)
    return [loss]


mlp2, mlp2_disk = partial(mlp, name="mlp2"), partial(mlp_disk, name="mlp2")
mlp8, mlp8_disk = partial(mlp, name="mlp8"), partial(mlp_disk, name="mlp8")


def least_squares(data: Path, out: Path) -> list[Any]:
    (x,) = _load(data, "wide")
    return [models.least_squares(x, np.ones(x.shape[1], "float32"))]


def matmul(data: Path, out: Path) -> None:
    a, b = _load(data, "a b")
    _save(a @ b, out / "result", data / "a")


def adam(data: Path, out: Path) -> None:
    p, m, v, g = _load(data, "p m v g")
    for rows in np.split(np.arange(len(p)), 16):
        p[rows], m[rows], v[rows] = models.adam(p[rows], m[rows], v[rows], g[rows])
    for name, array in zip("pmv", (p, m, v), strict=True):
        _save(array, out / name, data / name)


def softmax(data: Path, out: Path) -> None:
    (x,) = _load(data, "long")
    _save(by_hand.softmax(np, x), out / "result", data / "long")


def moments0(data: Path, out: Path, axis: int = 0) -> list[Any]:
    (a,) = _load(data, "a")
    return [a.mean(axis), a.var(axis)]


moments1 = partial(moments0, axis=1)


def transpose(data: Path, out: Path) -> None:
    (a,) = _load(data, "a")
    _save(a.T, out / "result", data / "a")


def rechunk(data: Path, out: Path) -> None:
    (a,) = _load(data, "a")
    save(out / "result", a, by_hand.tall(a.shape, open_stored(data / "a").chunks))


def lookup(data: Path, out: Path) -> None:
    table, rows = _load(data, "x lookups")
    _save(table[rows], out / "result", data / "x")


def lookup_gradient(data: Path, out: Path) -> None:
    table, rows = _load(data, "x lookups")
    counts = np.bincount(rows, minlength=len(table)).astype("float32")
    _save(2 * counts[:, None] * table, out / "result", data / "x")
