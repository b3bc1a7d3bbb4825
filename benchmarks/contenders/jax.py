"""Load everything, compute with one jitted JAX function, save everything."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import by_hand
import jax
import jax.numpy as jnp
import models
import numpy as np
from stores import counted, load, open_stored, save

io_cost = counted
UPDATES_IN_PLACE = False


def set_budget(budget: int) -> None:
    """It takes what it needs."""


def _load(data: Path, names: str) -> list[jax.Array]:
    return [jnp.asarray(load(data / name)) for name in names.split()]


def _save(array: Any, path: Path, chunks: tuple[int, ...]) -> None:
    save(path, np.asarray(array), chunks)


_difference = jax.jit(models.difference)
_tanh = jax.jit(lambda a, b: jnp.tanh(a) * b + a)
_polynomial = jax.jit(lambda a, b: a * b + a)
_gradient = jax.jit(jax.grad(models.difference))
_product = jax.jit(jnp.matmul)


def difference(data: Path, out: Path) -> list[Any]:
    return [_difference(*_load(data, "a b"))]


def elementwise(data: Path, out: Path, function: Callable[..., Any] = _tanh) -> None:
    _save(function(*_load(data, "a b")), out / "result", open_stored(data / "a").chunks)


polynomial = partial(elementwise, function=_polynomial)
gradient = partial(elementwise, function=_gradient)
matmul = partial(elementwise, function=_product)

_logistic = jax.jit(jax.value_and_grad(models.logistic))
_network = jax.jit(jax.value_and_grad(models.network))
_least_squares = jax.jit(models.least_squares)


def logistic(data: Path, out: Path) -> list[Any]:
    x, targets = _load(data, "x targets")
    return list(_logistic(jnp.zeros(x.shape[1]), x, targets))


def mlp(data: Path, out: Path, name: str) -> list[Any]:
    depth = len(list((data / name).iterdir())) // 2
    parameters = [tuple(_load(data / name, f"w{n} b{n}")) for n in range(depth)]
    return jax.tree.leaves(_network(parameters, *_load(data, "x labels")))


def mlp_disk(data: Path, out: Path, name: str) -> list[Any]:
    loss, *gradients = mlp(data, out, name)
    for n, values in enumerate(gradients):
        _save(values, out / f"{'wb'[n % 2]}{n // 2}", values.shape)
    return [loss]


mlp2, mlp2_disk = partial(mlp, name="mlp2"), partial(mlp_disk, name="mlp2")
mlp8, mlp8_disk = partial(mlp, name="mlp8"), partial(mlp_disk, name="mlp8")


def least_squares(data: Path, out: Path) -> list[Any]:
    (x,) = _load(data, "wide")
    return [_least_squares(x, jnp.ones(x.shape[1]))]


_adam = jax.jit(models.adam, donate_argnums=(0, 1, 2))


def adam(data: Path, out: Path) -> None:
    for name, array in zip("pmv", _adam(*_load(data, "p m v g")), strict=True):
        _save(array, out / name, open_stored(data / name).chunks)


_softmax = jax.jit(partial(jax.nn.softmax, axis=1))


def softmax(data: Path, out: Path) -> None:
    _save(_softmax(*_load(data, "long")), out / "result", open_stored(data / "long").chunks)


_moments = jax.jit(lambda a, axis: (a.mean(axis), a.var(axis)), static_argnums=1)


def moments0(data: Path, out: Path, axis: int = 0) -> list[Any]:
    return list(_moments(*_load(data, "a"), axis))


moments1 = partial(moments0, axis=1)

_transpose = jax.jit(jnp.transpose)


def transpose(data: Path, out: Path) -> None:
    _save(_transpose(*_load(data, "a")), out / "result", open_stored(data / "a").chunks)


def rechunk(data: Path, out: Path) -> None:
    (a,) = _load(data, "a")
    _save(a, out / "result", by_hand.tall(a.shape, open_stored(data / "a").chunks))


_rows = jax.jit(lambda table, rows: jnp.take(table, rows, axis=0, mode="clip"))
_rows_gradient = jax.jit(jax.grad(models.squares_of_rows))


def lookup(data: Path, out: Path) -> None:
    _save(_rows(*_load(data, "x lookups")), out / "result", open_stored(data / "x").chunks)


def lookup_gradient(data: Path, out: Path) -> None:
    _save(_rows_gradient(*_load(data, "x lookups")), out / "result", open_stored(data / "x").chunks)


_descent = jax.jit(models.descent)


def steps(data: Path, out: Path) -> None:
    """In memory, saved once at the end."""
    (w,), (x,) = _load(data, "weights"), _load(data, "batch")
    for _ in range(100):
        w = _descent(w, x)
    _save(w, out / "weights", w.shape)
