"""This library: `jax.numpy`-like calls for single operations, `jit` of plain JAX code for the rest."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import by_hand
import jax
import jax.numpy as jnp
import models
import numpy as np
from stores import CODEC, load
from zarr.codecs import BloscCodec

import jask_zarr as jz

UPDATES_IN_PLACE = True
io_cost = jz.io_cost
set_budget = jz.set_memory_budget


def _open(data: Path, names: str) -> list[jz.DiskArray]:
    return [jz.open(data / name) for name in names.split()]


def _save(array: jz.DiskArray, path: Path, chunks: tuple[int, ...]) -> None:
    array.save(path, chunks=chunks, compressors=BloscCodec(**CODEC))


# ------------------------------------------------------------------ elementwise and sums


def difference(data: Path, out: Path) -> list[Any]:
    a, b = _open(data, "a b")
    return [jz.sum(jz.square(a - b))]


def elementwise(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(jz.tanh(a) * b + a, out / "result", a.chunks)


def polynomial(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(a * b + a, out / "result", a.chunks)


_gradient = jz.lift(jax.grad(models.difference))
_rows_gradient = jz.lift(jax.grad(models.squares_of_rows))


def gradient(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(_gradient(a, b), out / "result", a.chunks)


def eager_gradient(data: Path, out: Path) -> None:
    """JAX computes the loss as well, before it asks for the gradient: the inputs are read twice."""
    a, b = _open(data, "a b")
    loss = lambda a: jz.sum(jz.square(a - b))
    _save(jax.grad(loss)(a), out / "result", a.chunks)


# ------------------------------------------------------------------ training

_logistic = jz.jit(jax.value_and_grad(models.logistic))
_network = jz.jit(jax.value_and_grad(models.network))


@cache
def _parameters(data: Path, name: str, read: Callable[[Path], Any]) -> list[tuple[Any, Any]]:
    depth = len(list((data / name).iterdir())) // 2
    return [(read(data / name / f"w{n}"), read(data / name / f"b{n}")) for n in range(depth)]


def logistic(data: Path, out: Path) -> list[Any]:
    x, targets = _open(data, "x targets")
    return list(_logistic(jnp.zeros(x.shape[1]), x, targets))


def mlp(data: Path, out: Path, name: str) -> list[Any]:
    return jax.tree.leaves(_network(_parameters(data, name, load), *_open(data, "x labels")))


def mlp_disk(data: Path, out: Path, name: str) -> list[Any]:
    _parameters.cache_clear()
    loss, gradients = _network(_parameters(data, name, jz.open), *_open(data, "x labels"))
    for n, (w, b) in enumerate(gradients):
        _save(w, out / f"w{n}", w.shape)
        _save(b, out / f"b{n}", b.shape)
    return [loss]


mlp2, mlp2_disk = partial(mlp, name="mlp2"), partial(mlp_disk, name="mlp2")
mlp8, mlp8_disk = partial(mlp, name="mlp8"), partial(mlp_disk, name="mlp8")

# ------------------------------------------------------------------ products

_least_squares = jz.jit(models.least_squares)


def least_squares(data: Path, out: Path) -> list[Any]:
    (x,) = _open(data, "wide")
    return [_least_squares(x, jnp.ones(x.shape[1]))]


def matmul(data: Path, out: Path) -> None:
    a, b = _open(data, "a b")
    _save(a @ b, out / "result", a.chunks)


# ------------------------------------------------------------------ an optimizer

_adam = jz.jit(models.adam, donate_argnums=(0, 1, 2))
_descent = jz.jit(models.descent, donate_argnums=0)


def adam(data: Path, out: Path) -> None:
    _adam(*_open(out, "p m v"), *_open(data, "g"))


def steps(data: Path, out: Path) -> None:
    w, x = jz.open(out / "weights"), jz.open(data / "batch")
    for _ in range(100):
        w = _descent(w, x)


# ------------------------------------------------------------------ split axes


def softmax(data: Path, out: Path) -> None:
    (x,) = _open(data, "long")
    _save(jz.softmax(x, axis=1), out / "result", x.chunks)


def moments0(data: Path, out: Path, axis: int = 0) -> list[np.ndarray]:
    (a,) = _open(data, "a")
    return [moment.to_numpy() for moment in jz.compute(a.mean(axis), a.var(axis))]


moments1 = partial(moments0, axis=1)

# ------------------------------------------------------------------ moving


def transpose(data: Path, out: Path) -> None:
    (a,) = _open(data, "a")
    _save(a.T, out / "result", a.chunks)


def rechunk(data: Path, out: Path) -> None:
    (a,) = _open(data, "a")
    _save(a, out / "result", by_hand.tall(a.shape, a.chunks))


# ------------------------------------------------------------------ embedding


def lookup(data: Path, out: Path) -> None:
    (table,), rows = _open(data, "x"), load(data / "lookups")
    _save(jz.take(table, rows, axis=0, mode="clip"), out / "result", table.chunks)


def lookup_gradient(data: Path, out: Path) -> None:
    (table,), rows = _open(data, "x"), load(data / "lookups")
    _save(_rows_gradient(table, rows), out / "result", table.chunks)
