"""How a row of the table is run: on disk with `jask_zarr`, in memory with `jax.numpy`.

A row (`Op`) is a function of a *namespace*, called once with `jask_zarr` on arrays on disk and once
with `REFERENCE` (`jax.numpy` and friends) on the same values in memory.  `check` does both, through
one of the `TRANSFORMATIONS`, and compares values, dtypes, shapes and kinds.
"""

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jask_zarr as jz

LENGTHS = {"m": 7, "k": 5, "n": 4, "b": 2, "1": 1}
EVEN_LENGTHS = {"m": 8, "k": 6, "n": 4, "b": 2, "1": 1}
# Chunk length of a dim, from its length and the position of the operand.
GRIDS: dict[str, Callable[[int, int], int]] = {
    "uneven": lambda length, operand: max(1, length // 2),
    "even": lambda length, operand: max(1, length // 2),
    "one": lambda length, operand: length,
    "thin": lambda length, operand: 1,
    "mixed": lambda length, operand: max(1, length // 2 + (1, 0, -1)[operand % 3]),
}
FLOATS = ("float32", "float64", "bfloat16")
SMALLEST_BUDGET = 400
# Each value passes through at most a few hundred roundings of its own dtype.
ROUNDINGS = {"forward": 1, "grad": 4, "jvp": 4, "second_order": 20}
TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 4e-2, "float16": 4e-3}


class _Reference:
    """`jax.numpy`, then `jax.nn`, then the few names `jask_zarr` takes from elsewhere."""

    norm = staticmethod(jnp.linalg.norm)
    stop_gradient = staticmethod(jax.lax.stop_gradient)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name) if hasattr(jnp, name) else getattr(jax.nn, name)


REFERENCE: Any = _Reference()


@dataclass(frozen=True)
class Operand:
    """Dims by letter (`LENGTHS`), values by kind, and `dtype` where the row does not vary it."""

    dims: str
    kind: str = "real"
    dtype: str | None = None

    def values(self, position: int, dtype: str, lengths: dict[str, int]) -> np.ndarray:
        shape = tuple(lengths[dim] for dim in self.dims)
        dtype = self.dtype or dtype
        return _values(self.kind, shape, dtype, seed=position + 17 * len(shape))


def _values(kind: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
    kind = "whole" if kind in ("real", "positive") and not is_float(dtype) else kind
    made = {
        "real": lambda: rng.normal(size=shape),
        "positive": lambda: rng.uniform(0.5, 2.0, shape),
        "unit": lambda: rng.uniform(-0.9, 0.9, shape),
        "whole": lambda: rng.integers(1, 6, shape),
        "small": lambda: rng.integers(-3, 4, shape),
        "row": lambda: rng.integers(-4, 4, shape),
        "bool": lambda: rng.random(shape) < 0.5,
        "nans": lambda: np.where(rng.random(shape) < 0.3, np.nan, rng.normal(size=shape)),
    }[kind]()
    return np.asarray(made).astype(jnp.dtype(dtype))


def is_float(dtype: Any) -> bool:
    return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)


@dataclass(frozen=True)
class Op:
    """One row: ``call(xp, *operands)``, differentiable in the positions `grad`."""

    name: str
    call: Callable[..., Any]
    operands: tuple[Operand, ...]
    grad: tuple[int, ...]
    dtypes: tuple[str, ...] = FLOATS
    smooth: bool = True

    def __str__(self) -> str:
        return self.name

    def values(self, dtype: str = "float32", grid: str = "uneven") -> list[np.ndarray]:
        lengths = EVEN_LENGTHS if grid == "even" else LENGTHS
        return [op.values(k, dtype, lengths) for k, op in enumerate(self.operands)]

    def on_disk(self, dtype: str = "float32", grid: str = "uneven") -> list[Any]:
        return [disk(v, grid, k) for k, v in enumerate(self.values(dtype, grid))]

    def in_memory(self, dtype: str = "float32", grid: str = "uneven") -> list[jax.Array]:
        return [jnp.asarray(v) for v in self.values(dtype, grid)]


# ---------------------------------------------------------------------------------- transformations
def forward(op: Op, xp: Any) -> Callable[..., Any]:
    return lambda *operands: op.call(xp, *operands)


def scalar(op: Op, xp: Any) -> Callable[..., Any]:
    """A scalar of the op's results whose cotangents are all different.

    ``sum(result * cos(result))`` rather than ``sum(result)``, so that a cotangent that is dropped,
    transposed or taken twice cannot go unseen.
    """

    def total(*operands: Any) -> Any:
        parts = [part for part in leaves(op.call(xp, *operands)) if is_float(part.dtype)]
        return functools.reduce(xp.add, [xp.sum(xp.multiply(p, xp.cos(p))) for p in parts])

    return total


def gradient(op: Op, xp: Any) -> Callable[..., Any]:
    return jax.grad(scalar(op, xp), op.grad)


def directional(op: Op, xp: Any) -> Callable[..., Any]:
    """Values and their derivative in a direction that differs from element to element."""

    def run(*operands: Any) -> Any:
        def moved(*moving: Any) -> Any:
            full = dict(enumerate(operands)) | dict(zip(op.grad, moving, strict=True))
            return op.call(xp, *full.values())

        primals = tuple(operands[k] for k in op.grad)
        return jax.jvp(moved, primals, tuple(xp.cos(xp.multiply(p, 3)) for p in primals))

    return run


def second_order(op: Op, xp: Any) -> Callable[..., Any]:
    """Reverse over reverse."""

    def total(*operands: Any) -> Any:
        return functools.reduce(xp.add, [xp.sum(xp.sin(g)) for g in gradient(op, xp)(*operands)])

    return jax.grad(total, op.grad)


TRANSFORMATIONS: dict[str, Callable[[Op, Any], Callable[..., Any]]] = {
    "forward": forward,
    "grad": gradient,
    "jit": lambda op, xp: jax.jit(forward(op, xp)),
    "jit_of_grad": lambda op, xp: jax.jit(gradient(op, xp)),
    "grad_of_jit": lambda op, xp: jax.grad(jax.jit(scalar(op, xp)), op.grad),
    "jvp": directional,
    "second_order": second_order,
}
SAME_VALUES = {"jit": "forward", "jit_of_grad": "grad", "grad_of_jit": "grad"}


@functools.cache
def reference(op: Op, transformation: str, dtype: str, even: bool) -> Any:
    run = TRANSFORMATIONS[transformation](op, REFERENCE)
    return jax.jit(run)(*op.in_memory(dtype, "even" if even else "uneven"))


@functools.cache
def exact(op: Op, transformation: str, even: bool) -> Any:
    """Of values that are rounded to bfloat16, what is then computed in float32."""
    run = TRANSFORMATIONS[transformation](op, REFERENCE)
    operands = op.in_memory("bfloat16", "even" if even else "uneven")
    return jax.jit(run)(*(x.astype("float32") if x.dtype == jnp.bfloat16 else x for x in operands))


def check(op: Op, transformation: str, dtype: str = "float32", grid: str = "uneven") -> None:
    """The op on disk, transformed, gives what `jax.numpy` gives in memory."""
    actual = TRANSFORMATIONS[transformation](op, jz)(*op.on_disk(dtype, grid))
    values, even = SAME_VALUES.get(transformation, transformation), grid == "even"
    truth = exact(op, values, even) if dtype == "bfloat16" else None
    assert_same(actual, reference(op, values, dtype, even), ROUNDINGS[values], truth)


def check_in_tiles(op: Op, transformation: str, grid: str, dtype: str = "float32") -> None:
    """The same with the smallest memory budget that the planner accepts (within a factor of two),
    so that arrays of a hundred bytes are cut into as many tiles as their chunks allow."""
    for budget in (SMALLEST_BUDGET << doubling for doubling in range(10)):
        jz.set_memory_budget(budget)
        try:
            return check(op, transformation, dtype, grid)
        except jz.errors.MemoryBudgetError:
            continue
    raise AssertionError(f"{op} does not fit {budget} bytes")


# ---------------------------------------------------------------------------------- values
def disk(values: np.ndarray, grid: str = "uneven", position: int = 0) -> Any:
    """The same values as a `DiskArray` in chunks of the grid; one store for each content."""
    values = np.ascontiguousarray(values)
    return _disk(values.tobytes(), values.dtype, values.shape, grid, position)


@functools.cache
def _disk(content: bytes, dtype: Any, shape: tuple[int, ...], grid: str, position: int) -> Any:
    chunks = tuple(max(1, GRIDS[grid](length, position)) for length in shape)
    values = np.frombuffer(content, dtype).reshape(shape)
    return jz.DiskArray.from_numpy(values, chunks=chunks)


def is_disk(x: Any) -> bool:
    return isinstance(x, jz.DiskArray)


def leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=is_disk)


def in_memory(x: Any) -> np.ndarray:
    return x.to_numpy(allow_large=True) if is_disk(x) else np.asarray(x)


def assert_kind(x: Any) -> None:
    """Rank 0 is an ordinary `jax.Array`; anything else stays out of core."""
    assert is_disk(x) if x.ndim else isinstance(x, jax.Array), type(x)


def assert_same(actual: Any, expected: Any, scale: float = 1.0, truth: Any = None) -> None:
    """Same structure, dtype, shape and kind; values within the tolerance of the dtype."""
    assert jax.tree.structure(actual, is_leaf=is_disk) == jax.tree.structure(expected)
    truths = jax.tree.leaves(expected if truth is None else truth)
    for a, e, t in zip(leaves(actual), jax.tree.leaves(expected), truths, strict=True):
        assert_kind(a)
        assert_close(a, e, scale, None if truth is None else t)


def assert_close(a: Any, e: Any, scale: float = 1.0, truth: Any = None) -> None:
    """Where the operation magnifies roundings in memory, it may do so on disk: `truth` is without them."""
    assert (a.dtype, a.shape) == (e.dtype, e.shape)
    values = in_memory(a)
    assert (values.dtype, values.shape) == (e.dtype, e.shape)
    tolerance = scale * TOLERANCES.get(str(e.dtype), 0.0)
    wide = np.float64 if is_float(e.dtype) else None
    expected = np.asarray(e, wide)
    atol = tolerance * min(max(_size(expected), 1.0), 1e3) if wide else 0.0
    if wide and truth is not None:
        atol = max(atol, 2 * _size(expected - np.asarray(truth, wide)))
    np.testing.assert_allclose(np.asarray(values, wide), expected, rtol=tolerance, atol=atol)


def _size(values: np.ndarray) -> float:
    """The largest finite magnitude."""
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))
