"""The best loop that we can write by hand: threads, direct reading of chunk files, one jitted function a tile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import by_hand
import jax
import jax.numpy as jnp
import models
import numpy as np
from chunk_files import ChunkFiles, done, in_threads, moved
from stores import Moved, create, create_like, load

UPDATES_IN_PLACE = True


@contextmanager
def io_cost() -> Iterator[Moved]:
    """What the loop reads and writes."""
    moved.bytes_read = moved.bytes_written = 0
    yield moved


def set_budget(budget: int) -> None:
    """Each loop is written for the budget; nothing to set."""


def _inputs(data: Path, names: str) -> list[ChunkFiles]:
    return [ChunkFiles(data / name) for name in names.split()]


def _output(path: Path, model: ChunkFiles, chunks: tuple[int, ...] | None = None) -> ChunkFiles:
    create_like(path, model, chunks)
    return ChunkFiles(path)


def _total(tile: Callable[..., Any], inputs: list[ChunkFiles]) -> Any:
    """The sum of a function of each chunk, in their order."""
    task = lambda index: done(tile(*(array.read(index[: len(array.grid)]) for array in inputs)))
    partials = in_threads(task, inputs[0].indices())
    total = jax.tree.map(np.float64, next(partials))
    for values in partials:
        total = jax.tree.map(np.add, total, values)
    return total


def _each(tile: Callable[..., Any], inputs: list[ChunkFiles], output: ChunkFiles) -> None:
    """Write a function of each chunk."""
    task = lambda i: output.write(i, done(tile(*(array.read(i) for array in inputs))))
    list(in_threads(task, inputs[0].indices()))


# ------------------------------------------------------------------ elementwise and sums

_difference = jax.jit(models.difference)
_tanh = jax.jit(lambda a, b: jnp.tanh(a) * b + a)
_polynomial = jax.jit(lambda a, b: a * b + a)
_gradient = jax.jit(jax.grad(models.difference))
_transposed = jax.jit(jnp.transpose)


def difference(data: Path, out: Path) -> list[Any]:
    return [_total(_difference, _inputs(data, "a b"))]


def elementwise(data: Path, out: Path, tile: Callable[..., Any] = _tanh) -> None:
    a, b = _inputs(data, "a b")
    _each(tile, [a, b], _output(out / "result", a))


polynomial = partial(elementwise, tile=_polynomial)
gradient = eager_gradient = partial(elementwise, tile=_gradient)


# ------------------------------------------------------------------ training


@cache
def _parameters(data: Path, name: str) -> list[tuple[Any, Any]]:
    depth = len(list((data / name).iterdir())) // 2
    return [(load(data / name / f"w{n}"), load(data / name / f"b{n}")) for n in range(depth)]


_network = jax.jit(jax.value_and_grad(models.network))
_logistic = jax.jit(jax.value_and_grad(models.logistic))


def _mean(tile: Callable[..., Any], inputs: list[ChunkFiles]) -> list[np.ndarray]:
    """The mean of a function of each chunk of rows."""
    total = _total(tile, inputs)
    return [np.asarray(value / inputs[0].grid[0], "float32") for value in jax.tree.leaves(total)]


def logistic(data: Path, out: Path) -> list[np.ndarray]:
    x, targets = _inputs(data, "x targets")
    w = jnp.zeros(x.shape[1], "float32")
    return _mean(partial(_logistic, w), [x, targets])


def mlp(data: Path, out: Path, name: str) -> list[np.ndarray]:
    parameters = jax.tree.map(jnp.asarray, _parameters(data, name))
    return _mean(partial(_network, parameters), _inputs(data, "x labels"))


def mlp_disk(data: Path, out: Path, name: str) -> list[np.ndarray]:
    _parameters.cache_clear()
    loss, *gradients = mlp(data, out, name)
    nbytes = sum(values.nbytes for values in gradients)
    moved.add(read=nbytes, written=nbytes)
    for n, values in enumerate(gradients):
        create(out / f"{'wb'[n % 2]}{n // 2}", values.shape, values.shape)[...] = values
    return [loss]


mlp2, mlp2_disk = partial(mlp, name="mlp2"), partial(mlp_disk, name="mlp2")
mlp8, mlp8_disk = partial(mlp, name="mlp8"), partial(mlp_disk, name="mlp8")

# ------------------------------------------------------------------ products

# XLA takes a hundred times as long for ``x.T @ v`` as for ``v @ x``.
_normal = jax.jit(lambda x, w: (x @ w) @ x)
_add_product = jax.jit(lambda total, a, b: total + a @ b, donate_argnums=0)


def least_squares(data: Path, out: Path) -> list[np.ndarray]:
    (x,) = _inputs(data, "wide")
    w = jnp.ones(x.shape[1], "float32")
    task = lambda row: done(_normal(x.read_box((row, 0), (row + 1, x.grid[1])), w))
    return [sum(in_threads(task, range(x.grid[0])), start=np.zeros(x.shape[1])).astype("float32")]


def matmul(data: Path, out: Path) -> None:
    """Quarters of the result, each the sum of products of one row and one column of chunks."""
    a, b = _inputs(data, "a b")
    result = _output(out / "result", a)
    side = a.grid[0] // 2
    for row, column in ((0, 0), (0, side), (side, 0), (side, side)):
        total = jnp.zeros((side * a.chunks[0], side * b.chunks[1]), "float32")
        panel = lambda k, row=row, column=column: (
            a.read_box((row, k), (row + side, k + 1)).copy(),
            b.read_box((k, column), (k + 1, column + side)).copy(),
        )
        for left, right in in_threads(panel, range(a.grid[1])):
            total = _add_product(total, left, right)
        _write_quarter(result, (row, column), np.asarray(total), side)


def _write_quarter(result: ChunkFiles, start: tuple[int, int], values: np.ndarray, side: int) -> None:
    c = result.chunks[0]
    task = lambda i: result.write(
        (start[0] + i // side, start[1] + i % side),
        values[i // side * c : (i // side + 1) * c, i % side * c : (i % side + 1) * c],
    )
    list(in_threads(task, range(side * side)))


# ------------------------------------------------------------------ an optimizer

_adam = jax.jit(models.adam)
_descent = jax.jit(models.descent)


def adam(data: Path, out: Path) -> None:
    state = [ChunkFiles(out / name, replace=True) for name in "pmv"]
    (g,) = _inputs(data, "g")

    def task(i: Any) -> None:
        new = done(_adam(*(array.read(i) for array in (*state, g))))
        for array, values in zip(state, new, strict=True):
            array.write(i, values)

    list(in_threads(task, g.indices()))


def steps(data: Path, out: Path) -> None:
    w, x = ChunkFiles(out / "weights", replace=True), ChunkFiles(data / "batch")
    for _ in range(100):
        w.write((0, 0), done(_descent(w.read((0, 0)), x.read((0, 0)))))


# ------------------------------------------------------------------ split axes

_part = jax.jit(lambda x: (x.max(1), jnp.exp(x - x.max(1, keepdims=True)).sum(1)))
_normalized = jax.jit(lambda x, top, total: jnp.exp(x - top[:, None]) / total[:, None])


def softmax(data: Path, out: Path) -> None:
    """Two passes: the maximum and the sum of each row, merged as they come; then the result."""
    (x,) = _inputs(data, "long")
    parts = list(in_threads(lambda i: done(_part(x.read(i))), x.indices()))
    tops, sums = (np.stack(values) for values in zip(*parts, strict=True))
    top = tops.max(0)
    total = (sums * np.exp(tops - top)).sum(0)
    _each(lambda tile: _normalized(tile, top, total), [x], _output(out / "result", x))


@partial(jax.jit, static_argnums=1)
def _moments(x: Any, axis: int) -> tuple[Any, Any]:
    mean = x.mean(axis, keepdims=True)
    return mean.squeeze(axis), jnp.square(x - mean).sum(axis)


def moments0(data: Path, out: Path, axis: int = 0) -> list[np.ndarray]:
    """One pass: means and squared deviations of the chunks, merged as they come."""
    (x,) = _inputs(data, "a")
    length, side = x.shape[axis], x.chunks[axis]
    counts = np.zeros(x.grid[1 - axis])
    mean, squares = np.zeros((2, x.shape[1 - axis]))
    parts = in_threads(lambda i: (i, done(_moments(x.read(i), axis))), x.indices())
    for index, (part_mean, part_squares) in parts:
        n = index[1 - axis]
        block = slice(n * x.chunks[1 - axis], (n + 1) * x.chunks[1 - axis])
        shift, count = part_mean - mean[block], counts[n]
        counts[n] += side
        mean[block] += shift * side / counts[n]
        squares[block] += part_squares + shift**2 * count * side / counts[n]
    return [mean.astype("float32"), (squares / length).astype("float32")]


moments1 = partial(moments0, axis=1)

# ------------------------------------------------------------------ moving


def transpose(data: Path, out: Path) -> None:
    (a,) = _inputs(data, "a")
    result = _output(out / "result", a)
    task = lambda i: result.write(i[::-1], done(_transposed(a.read(i))))
    list(in_threads(task, a.indices()))


def rechunk(data: Path, out: Path) -> None:
    (a,) = _inputs(data, "a")
    result = _output(out / "result", a, by_hand.tall(a.shape, a.chunks))
    width = result.chunks[1]

    def task(column: int) -> None:
        strip = a.read_box((0, column), (a.grid[0], column + 1))
        count = a.chunks[1] // width
        for n in range(count):
            result.write((0, column * count + n), strip[:, n * width : (n + 1) * width])

    list(in_threads(task, range(a.grid[1])))


# ------------------------------------------------------------------ embedding


def _by_chunk(table: ChunkFiles, rows: np.ndarray) -> list[np.ndarray]:
    """For each chunk of the table, which look-ups fall into it."""
    order = np.argsort(rows, kind="stable")
    cuts = np.searchsorted(rows[order], np.arange(1, table.grid[0]) * table.chunks[0])
    return np.split(order, cuts)


def lookup(data: Path, out: Path) -> None:
    """The table is read once; the rows found are kept, as they fit."""
    (table,), rows = _inputs(data, "x"), load(data / "lookups")
    found = np.empty((len(rows), table.shape[1]), "float32")
    places = _by_chunk(table, rows)

    def gather(n: int) -> None:
        found[places[n]] = table.read((n, 0))[rows[places[n]] - n * table.chunks[0]]

    list(in_threads(gather, range(table.grid[0])))
    result = ChunkFiles(Path(create(out / "result", found.shape, table.chunks).store_path.store.root))
    height = table.chunks[0]
    task = lambda n: result.write((n, 0), found[n * height : (n + 1) * height])
    list(in_threads(task, range(result.grid[0])))


def lookup_gradient(data: Path, out: Path) -> None:
    """Twice the row, times how often it was looked up: derived by hand, far cheaper than adding row by row."""
    (table,), rows = _inputs(data, "x"), load(data / "lookups")
    result, height = _output(out / "result", table), table.chunks[0]

    def task(n: int) -> None:
        counts = np.bincount(rows[places[n]] - n * height, minlength=height).astype("float32")
        result.write((n, 0), done(_weighted(table.read((n, 0)), counts)))

    places = _by_chunk(table, rows)
    list(in_threads(task, range(table.grid[0])))


_weighted = jax.jit(lambda tile, counts: 2 * counts[:, None] * tile)
