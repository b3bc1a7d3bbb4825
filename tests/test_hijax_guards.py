"""Where JAX would build a whole array in memory: an error or a `DiskArray`, never a dense array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jask_zarr as jz

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


@pytest.fixture
def x() -> Any:
    return jz.DiskArray.from_numpy(X, chunks=(2, 4))


def directly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


BOTH_WAYS = pytest.mark.parametrize("run", [directly, jax.jit], ids=["eager", "compiled"])

LIKE = {
    "zeros_like": (jnp.zeros_like, 0),
    "ones_like": (jnp.ones_like, 1),
    "full_like": (lambda a: jnp.full_like(a, 7), 7),
    "optax.tree.zeros_like": (optax.tree.zeros_like, 0),
}


@BOTH_WAYS
@pytest.mark.parametrize(("like", "value"), LIKE.values(), ids=LIKE.keys())
def test_an_array_like_one_on_disk_is_on_disk(
    like: Callable[..., Any], value: int, run: Callable[..., Any], x: Any
) -> None:
    made = run(like)(x)
    assert isinstance(made, jz.DiskArray)
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made.to_numpy(), np.full_like(X, value))


DENSE = {
    "asarray": jnp.asarray,
    "array": jnp.array,
    "apply_updates": lambda a: optax.apply_updates({"a": a}, {"a": a}),
}
DENSE_BOTH_WAYS = {
    "empty_like": jnp.empty_like,
    "zeros_like with a dtype": lambda a: jnp.zeros_like(a, dtype="bfloat16"),
    "sin": jnp.sin,
    "sum": jnp.sum,
    "add": lambda a: jnp.add(a, 1),
    "dot with an array in memory": lambda a: jnp.dot(jnp.ones((2, 6)), a),
    "concatenate": lambda a: jnp.concatenate([a, a]),
}


@pytest.mark.parametrize("use", [*DENSE.values(), *DENSE_BOTH_WAYS.values()], ids=[*DENSE, *DENSE_BOTH_WAYS])
def test_a_dense_copy_is_refused(use: Callable[..., Any], x: Any) -> None:
    with pytest.raises(jz.errors.DenseCopyError, match=r"jask_zarr\.jit"):
        use(x)


@pytest.mark.parametrize("use", DENSE_BOTH_WAYS.values(), ids=DENSE_BOTH_WAYS.keys())
def test_a_dense_copy_is_refused_in_compiled_functions(use: Callable[..., Any], x: Any) -> None:
    with pytest.raises(jz.errors.DenseCopyError, match=r"jask_zarr\.jit"):
        jax.jit(use)(x)


@pytest.mark.parametrize("use", DENSE_BOTH_WAYS.values(), ids=DENSE_BOTH_WAYS.keys())
def test_the_same_code_works_when_it_is_lifted(use: Callable[..., Any], x: Any) -> None:
    np.testing.assert_allclose(np.asarray(jz.lift(use)(x)), use(jnp.asarray(X)), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(jz.jit(lambda s: use(x) * s)(1.0)), use(jnp.asarray(X)), rtol=1e-5)


def test_optax_states_are_on_disk(x: Any) -> None:
    state = optax.adam(1e-3).init({"w": x})
    assert isinstance(state[0].mu["w"], jz.DiskArray)
    assert isinstance(state[0].nu["w"], jz.DiskArray)


@BOTH_WAYS
@pytest.mark.parametrize(
    "operate",
    [
        lambda s, a: s * a,
        lambda s, a: s - a,
        lambda s, a: s / a,
        lambda s, a: s < a,
        lambda s, a: a**s,
        lambda s, a: s @ a,
    ],
)
def test_an_operator_with_a_jax_array_on_the_left(operate: Callable[..., Any], run: Callable[..., Any], x: Any) -> None:
    for left in (jnp.arange(1.0, 7.0).reshape(1, 6), jnp.float32(2), jnp.arange(1.0, 5.0)):
        try:
            expected = operate(left, jnp.asarray(X))
        except TypeError:
            continue
        found = run(operate)(left, x)
        assert isinstance(found, jz.DiskArray)
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-5)
        break


CLOSED = {
    "an operator": lambda a, x: jnp.sum(a * x),
    "a function of jax.numpy": lambda a, x: jnp.sum(jnp.sin(x) @ a.T),
    "in a scan": lambda a, x: jax.lax.scan(lambda c, _: (c + jnp.sum(x * c), None), a, None, length=2)[0],
    "in a branch": lambda a, x: jax.lax.cond(a[0, 0] > 0, lambda: jnp.sum(x * a), lambda: jnp.sum(x - a)),
    "under vmap": lambda a, x: jax.vmap(lambda row: jnp.dot(x, row))(a),
    "mapped itself": lambda a, x: jax.vmap(lambda r, s: jnp.sum(r * s))(x, a),
    "mapped over columns": lambda a, x: jax.vmap(lambda r: jnp.cumsum(r), in_axes=1)(x) + jnp.sum(a),
    "under grad": lambda a, x: jax.grad(lambda b: jnp.sum(jnp.dot(jnp.sin(x).T, b * b)))(a),
    "with respect to it": lambda a, x: jax.grad(lambda b: jnp.sum(jnp.sin(b) * a))(x),
    "in a checkpoint": lambda a, x: jax.grad(jax.checkpoint(lambda b: jnp.sum(jnp.sin(b * x))))(a),
    "in an inner jit": lambda a, x: jax.jit(lambda b: jnp.mean(b * x))(a),
    "returned as it is": lambda a, x: x,
}


@pytest.mark.parametrize("wrap", [jz.jit, lambda f: jz.lift(f)], ids=["jit", "lift"])
@pytest.mark.parametrize("use", CLOSED.values(), ids=CLOSED.keys())
def test_plain_code_may_close_over_an_array_on_disk(use: Callable[..., Any], wrap: Callable[..., Any], x: Any) -> None:
    a = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
    found = wrap(lambda b: use(b, x))(jz.DiskArray.from_numpy(a, chunks=(3, 4)))
    np.testing.assert_allclose(np.asarray(found), use(jnp.asarray(a), jnp.asarray(X)), rtol=1e-4, atol=1e-5)


def test_second_derivatives_as_matrices_are_lifted() -> None:
    """JAX assembles a Hessian as one array in memory, unless it is traced as ordinary code."""
    values = np.arange(1, 4, dtype=np.float32)
    a = jz.DiskArray.from_numpy(values, chunks=(2,))
    with pytest.raises(jz.errors.DenseCopyError, match=r"jask_zarr\.lift"):
        jax.hessian(lambda a: jz.sum(a**3))(a)
    hessian = jz.lift(jax.hessian(lambda a: jnp.sum(a**3)))(a)
    np.testing.assert_allclose(hessian.to_numpy(), np.diag(6 * values))
