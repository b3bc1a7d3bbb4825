"""`update_`: the store changes, values do not."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zarr

import jask_zarr as jz

W = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
X = np.random.default_rng(1).normal(size=(8, 6)).astype("float32")


def stored(path: Path, values: np.ndarray = W, **keywords: Any) -> Any:
    return jz.DiskArray.from_numpy(values, path=path, **{"chunks": (4, 3), **keywords})


def directly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


BOTH_WAYS = pytest.mark.parametrize("run", [directly, jax.jit], ids=["eager", "compiled"])

NEW_VALUES = {
    "elementwise": (lambda w: w * 2.0 - 1.0, lambda w: w * 2 - 1),
    "minus its mean": (lambda w: w - w.mean(), lambda w: w - w.mean()),
    "reversed": (lambda w: w[::-1], lambda w: w[::-1]),
    "shifted": (lambda w: jz.concatenate([w[1:], w[:1]]), lambda w: np.concatenate([w[1:], w[:1]])),
    "a product with itself": (lambda w: (w @ w.T) @ w, lambda w: (w @ w.T) @ w),
    "itself": (lambda w: w, lambda w: w),
    "a number": (lambda w: 3, lambda w: np.full_like(w, 3)),
    "an array in memory": (lambda w: jnp.asarray(W[::-1] * 1), lambda w: W[::-1]),
    "a sum over another axis": (lambda w: w + w.sum(axis=0), lambda w: w + w.sum(axis=0)),
}


@BOTH_WAYS
@pytest.mark.parametrize(("new", "expected"), NEW_VALUES.values(), ids=NEW_VALUES.keys())
def test_the_store_holds_what_was_computed_from_the_old_values(
    new: Callable[..., Any], expected: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    w = run(lambda w: w.update_(new(w)))(stored(tmp_path / "w.zarr"))
    on_disk = zarr.open_array(str(tmp_path / "w.zarr"), mode="r")
    np.testing.assert_allclose(on_disk[:], expected(W), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(w.to_numpy(), expected(W), rtol=1e-5, atol=1e-5)
    assert on_disk.chunks == (4, 3)


def test_a_square_array_becomes_its_transpose(tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr", W[:4, :4], chunks=(3, 2))
    np.testing.assert_array_equal(w.update_(w.T).to_numpy(), W[:4, :4].T)


def test_shards_are_written_whole(tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr", chunks=(1, 1), shards=(3, 2))
    w = w.update_(w * 2.0)
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "w.zarr"), mode="r")[:], W * 2)


DEPENDENTS = {
    "elementwise": (lambda w: w * 2.0, W * 2),
    "a product": (lambda w: w @ w.T, W @ W.T),
    "a slice": (lambda w: w[1:3], W[1:3]),
    "two steps away": (lambda w: jz.tanh(w * 2.0) + 1.0, np.tanh(W * 2) + 1),
}


@BOTH_WAYS
@pytest.mark.parametrize(("make", "expected"), DEPENDENTS.values(), ids=DEPENDENTS.keys())
def test_arrays_recorded_from_the_old_values_keep_them(
    make: Callable[..., Any], expected: np.ndarray, run: Callable[..., Any], tmp_path: Path
) -> None:
    w = stored(tmp_path / "w.zarr")
    before = make(w)
    after = run(lambda w: w.update_(w + 100.0))(w)
    np.testing.assert_allclose(before.to_numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(after.to_numpy(), W + 100)


def test_a_dependent_inside_a_compiled_function_keeps_the_old_values(tmp_path: Path) -> None:
    @jax.jit
    def step(w: Any) -> Any:
        before = w * 2.0
        after = w.update_(w + 100.0)
        return before, after, after * 1.0, jz.sum(after) - jz.sum(before)

    before, after, again, difference = step(stored(tmp_path / "w.zarr"))
    np.testing.assert_array_equal(before.to_numpy(), W * 2)
    np.testing.assert_array_equal(after.to_numpy(), W + 100)
    np.testing.assert_array_equal(again.to_numpy(), W + 100)
    np.testing.assert_allclose(difference, (W + 100).sum() - 2 * W.sum(), rtol=1e-5)


@BOTH_WAYS
def test_the_new_value_outlives_the_next_update(run: Callable[..., Any], tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr")
    first = w * 2.0
    w = w.update_(first)
    later = first + 1.0
    w = run(lambda w: w.update_(w * 0.0))(w)
    np.testing.assert_array_equal(first.to_numpy(), W * 2)
    np.testing.assert_array_equal(later.to_numpy(), W * 2 + 1)
    np.testing.assert_array_equal(w.to_numpy(), W * 0)


def test_an_update_takes_place_even_if_its_result_is_dropped(tmp_path: Path) -> None:
    @jax.jit
    def step(w: Any) -> Any:
        w.update_(w + 1.0)
        return jz.sum(w)

    total = step(stored(tmp_path / "w.zarr"))
    np.testing.assert_allclose(total, W.sum(), rtol=1e-5)
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "w.zarr"), mode="r")[:], W + 1)


USES = {
    "to_numpy": lambda w: w.to_numpy(),
    "an operation": lambda w: w + 1.0,
    "a scalar": lambda w: jz.sum(w),
    "compute": lambda w: w.compute(),
    "save": lambda w: w.save("unused.zarr"),
    "to_zarr": lambda w: w.to_zarr(),
    "a compiled function": lambda w: jax.jit(lambda w: w * 2.0)(w),
    "another update": lambda w: w.update_(w),
    "a gradient": lambda w: jax.grad(lambda w: jz.sum(w * w))(w),
    "a slice": lambda w: w[:2],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_the_donated_array_says_what_to_do(use: Callable[..., Any], tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr")
    _ = w.update_(w * 2.0)
    with pytest.raises(jz.errors.StaleArrayError, match=r"w = w\.update_\(new\)"):
        use(w)
    assert "replaced by update_" in repr(w)


def _linked(path: Path) -> str:
    os.symlink(path, path.parent / "link.zarr")
    return str(path.parent / "link.zarr")


SAME_STORE = {
    "the same path": str,
    "a trailing slash": lambda path: f"{path}/",
    "a dotted path": lambda path: str(path.parent / "." / path.name),
    "a relative path": lambda path: os.path.relpath(path),
    "a link": _linked,
}


@pytest.mark.parametrize("spelled", SAME_STORE.values(), ids=SAME_STORE.keys())
def test_another_array_on_the_store_is_known_to_be_replaced(spelled: Callable[..., Any], tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr")
    other = jz.open(spelled(tmp_path / "w.zarr"))
    pending = other * 2.0
    _ = w.update_(w + 100.0)
    np.testing.assert_array_equal(pending.to_numpy(), W * 2)
    with pytest.raises(jz.errors.StaleArrayError):
        other.to_numpy()
    np.testing.assert_array_equal(jz.open(tmp_path / "w.zarr").to_numpy(), W + 100)


def test_an_array_opened_with_a_dtype_is_known_to_be_replaced(tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr")
    cast = jz.open(tmp_path / "w.zarr", dtype="bfloat16")
    pending = cast + 0
    _ = w.update_(w + 100.0)
    np.testing.assert_array_equal(pending.to_numpy(), W.astype("bfloat16"))
    with pytest.raises(jz.errors.StaleArrayError):
        cast.to_numpy()
    with pytest.raises(jz.errors.ReadOnlyStoreError, match="dtype="):
        jz.open(tmp_path / "w.zarr", dtype="bfloat16").update_(0)


REFUSED = {
    "another shape": (lambda w: w[:2], jz.errors.ShapeMismatchError, r"\(6, 4\).*\(2, 4\)"),
    "a shape that would broadcast": (lambda w: w[:1], jz.errors.ShapeMismatchError, r"\(1, 4\)"),
    "another dtype": (lambda w: w.astype("bfloat16"), jz.errors.DtypeMismatchError, r"astype\('float32'\)"),
    "a complex number": (lambda w: 1j, jz.errors.DtypeMismatchError, "complex"),
    "an integer array": (lambda w: jnp.ones((6, 4), "int32"), jz.errors.DtypeMismatchError, "int32"),
}


@BOTH_WAYS
@pytest.mark.parametrize(("new", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_before_anything_is_written(
    new: Callable[..., Any], error: type[Exception], message: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    w = stored(tmp_path / "w.zarr")
    with pytest.raises(error, match=message):
        run(lambda w: w.update_(new(w)))(w)
    np.testing.assert_array_equal(w.to_numpy(), W)


def test_a_python_float_does_not_become_an_integer(tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr", np.arange(24, dtype="int32").reshape(6, 4))
    with pytest.raises(jz.errors.DtypeMismatchError):
        w.update_(0.5)
    assert w.update_(7).to_numpy().tolist() == [[7] * 4] * 6


def test_a_store_opened_for_reading_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "w.zarr")
    w = jz.open(tmp_path / "w.zarr", mode="r")
    with pytest.raises(jz.errors.ReadOnlyStoreError):
        w.update_(w * 2.0)
    np.testing.assert_array_equal(w.to_numpy(), W)


@BOTH_WAYS
def test_a_failed_update_leaves_the_old_values(run: Callable[..., Any], tmp_path: Path) -> None:
    w, x = stored(tmp_path / "w.zarr"), stored(tmp_path / "x.zarr")
    files = sorted(p for p in (tmp_path / "w.zarr").rglob("*"))
    for file in (tmp_path / "x.zarr" / "c").rglob("*"):
        if file.is_file():
            file.write_bytes(b"junk")
    with pytest.raises(jz.errors.DamagedChunkError):
        run(lambda w, x: w.update_(w + x))(w, x)
    np.testing.assert_array_equal(w.to_numpy(), W)
    assert sorted(p for p in (tmp_path / "w.zarr").rglob("*")) == files
    np.testing.assert_array_equal(w.update_(w * 2.0).to_numpy(), W * 2)


@pytest.mark.parametrize("kind", ["pending", "in memory", "scratch"])
def test_an_array_without_a_store_of_its_own_is_replaced(kind: str) -> None:
    m = {"pending": jz.zeros((6, 4)), "in memory": (jz.zeros((6, 4)) + 1.0).compute()}.get(kind)
    m = jz.zeros((6, 4), chunks=(3, 2)) if m is None else m
    start = m.to_numpy()
    updated = m.update_(m * 0.5 + 2.0)
    np.testing.assert_array_equal(updated.to_numpy(), start * 0.5 + 2)


def test_two_updates_in_one_compiled_function_read_the_old_values(tmp_path: Path) -> None:
    a, b = stored(tmp_path / "a.zarr"), stored(tmp_path / "b.zarr", W + 1)
    a, b = jax.jit(lambda a, b: (a.update_(a + b), b.update_(a * b)))(a, b)
    np.testing.assert_allclose(a.to_numpy(), W + (W + 1), rtol=1e-6)
    np.testing.assert_allclose(b.to_numpy(), W * (W + 1), rtol=1e-6)


def test_updates_in_a_loop(tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr")
    w = jax.jit(lambda w: jax.lax.fori_loop(0, 5, lambda k, w: w.update_(w * 2.0), w))(w)
    np.testing.assert_allclose(w.to_numpy(), W * 32, rtol=1e-6)
    np.testing.assert_allclose(zarr.open_array(str(tmp_path / "w.zarr"), mode="r")[:], W * 32, rtol=1e-6)


def test_a_gradient_through_an_update_is_that_of_the_new_values(tmp_path: Path) -> None:
    w = stored(tmp_path / "w.zarr")
    gradient = jax.jit(jax.grad(lambda v, w: jz.sum(w.update_(v * v) * 3.0)))(jz.asarray(W), w)
    np.testing.assert_allclose(gradient.to_numpy(), 6 * W, rtol=1e-5)


OPTIMIZERS = {
    "sgd": (lambda: optax.sgd(0.1), False),
    "momentum": (lambda: optax.sgd(0.1, momentum=0.9), False),
    "nesterov": (lambda: optax.sgd(0.1, momentum=0.9, nesterov=True), False),
    "a schedule": (lambda: optax.sgd(optax.exponential_decay(0.1, 2, 0.5)), False),
    "adam, which calls jax.numpy": (lambda: optax.adam(0.01), True),
}


@BOTH_WAYS
@pytest.mark.parametrize(("make", "lifted"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_optax_trains_through_plain_tree_maps(
    make: Callable[..., Any], lifted: bool, run: Callable[..., Any], tmp_path: Path
) -> None:
    optimizer = make()

    def step(n: Any, params: Any, state: Any, x: Any) -> Any:
        loss = lambda p: n.mean(n.square(n.tanh(x @ p["w"]) + p["b"]))  # noqa: E731
        gradients = jax.grad(loss)(params)
        update = optimizer.update if n is jnp or not lifted else jz.lift(optimizer.update)
        updates, state = update(gradients, state, params)
        if n is jnp:
            return jax.tree.map(lambda p, u: p + u, params, updates), state
        return jax.tree.map(lambda p, u: p.update_(p + u), params, updates), state

    values = {"w": W, "b": W[0]}
    expected = jax.tree.map(jnp.asarray, values)
    expected_state = optimizer.init(expected)
    params = {"w": stored(tmp_path / "w.zarr"), "b": stored(tmp_path / "b.zarr", W[0], chunks=(3,))}
    state, x = optimizer.init(params), jz.DiskArray.from_numpy(X, chunks=(3, 4))
    compiled = run(lambda params, state, x: step(jz, params, state, x))
    for _ in range(4):
        params, state = compiled(params, state, x)
        expected, expected_state = step(jnp, expected, expected_state, jnp.asarray(X))
    for name in values:
        np.testing.assert_allclose(params[name].to_numpy(), expected[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            zarr.open_array(str(tmp_path / f"{name}.zarr"), mode="r")[:], expected[name], rtol=1e-4, atol=1e-5
        )
