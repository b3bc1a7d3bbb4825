"""JAX's own transformations take a `DiskArray`: each row is checked eagerly and compiled.

A row is a function of a namespace (`jask_zarr` on disk, `jax.numpy` in memory) and two arrays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz

ROWS, COLUMNS = 6, 4
X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
Y = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype("float32")


def energy(n: Any, x: Any) -> Any:
    return n.sum(n.sin(x) * x * x)


def hessian_product(n: Any, x: Any, y: Any) -> Any:
    return jax.jvp(jax.grad(lambda v: energy(n, v)), (x,), (y,))[1]


def reverse_over_reverse(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: n.sum(jax.grad(lambda u: energy(n, u))(v) * y))(x)


def pushed(n: Any, x: Any, y: Any) -> Any:
    return jax.jvp(lambda v: v * n.tanh(v), (x,), (y,))


def linearized(n: Any, x: Any, y: Any) -> Any:
    out, pushforward = jax.linearize(lambda v: n.exp(v) * v, x)
    return out, pushforward(y)


def pulled(n: Any, x: Any, y: Any) -> Any:
    out, pullback = jax.vjp(lambda a, b: a * n.sin(b), x, y)
    return out, pullback(out)


def transposed(n: Any, x: Any, y: Any) -> Any:
    return jax.linear_transpose(lambda v: v * y, x)(x)


def checkpointed(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(jax.checkpoint(lambda v: energy(n, v * y)))(x)


def checkpointed_array(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: n.sum(jax.checkpoint(lambda u: n.sin(u) * y)(v)))(x)


def scanned_carry(n: Any, x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda c, _: (c * 0.9 + y, n.sum(c)), x, None, length=3)


def scanned_rows(n: Any, x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda c, row: (c + n.sum(row * row), row * 2.0), 0.0, x, length=ROWS)


def grad_of_scan(n: Any, x: Any, y: Any) -> Any:
    def loss(v: Any) -> Any:
        out, sums = jax.lax.scan(lambda c, _: (n.sin(c) * y, n.sum(c)), v, None, length=3)
        return n.sum(out) + jnp.sum(sums)

    return jax.grad(loss)(x)


def grad_of_row_scan(n: Any, x: Any, y: Any) -> Any:
    def loss(v: Any) -> Any:
        total, rows = jax.lax.scan(lambda c, r: (c + n.sum(r**3), n.sin(r)), 0.0, v, length=ROWS)
        return total + n.sum(rows)

    return jax.grad(loss)(x)


def looped_while(n: Any, x: Any, y: Any) -> Any:
    return jax.lax.while_loop(lambda c: n.sum(c) < 200.0, lambda c: c + 1.0, x)


def looped_fori(n: Any, x: Any, y: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda k, c: c * y + k, x)


def branched(n: Any, x: Any, y: Any) -> Any:
    return jax.lax.cond(n.sum(x) > n.sum(y), lambda v: v * 2.0, lambda v: v * y, x)


def grad_of_branch(n: Any, x: Any, y: Any) -> Any:
    def loss(v: Any) -> Any:
        picked = jax.lax.cond(n.sum(y) > 1e9, lambda u: u * 2.0, lambda u: u * u, v)
        return n.sum(picked)

    return jax.grad(loss)(x)


def custom_backward(n: Any, x: Any, y: Any) -> Any:
    @jax.custom_vjp
    def squares(v: Any) -> Any:
        return n.sum(v * v)

    squares.defvjp(lambda v: (squares(v), v), lambda v, ct: (v * (10.0 * ct),))
    return jax.grad(squares)(x)


def custom_backward_of_array(n: Any, x: Any, y: Any) -> Any:
    @jax.custom_vjp
    def clipped(v: Any) -> Any:
        return v * 1.0

    clipped.defvjp(lambda v: (v * 1.0, None), lambda _, ct: (n.clip(ct, -0.5, 0.5),))
    return jax.grad(lambda v: n.sum(clipped(v) * y))(x)


def mapped(n: Any, x: Any, y: Any) -> Any:
    return jax.vmap(lambda a, b: a * b + n.sum(a))(x, y)


def mapped_columns(n: Any, x: Any, y: Any) -> Any:
    return jax.vmap(lambda a, b: n.sum(a * b), in_axes=(1, None))(x, y[:, 0])


def mapped_grad(n: Any, x: Any, y: Any) -> Any:
    return jax.vmap(jax.grad(lambda a: n.sum(a**3)))(x)


def grad_of_mapped(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: jnp.sum(jax.vmap(lambda a, b: n.sum(a * a * b))(v, y)))(x)


def doubly_mapped(n: Any, x: Any, y: Any) -> Any:
    return jax.vmap(jax.vmap(lambda a, b: n.sin(a) * b))(x, y)


def used_twice(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: n.sum(v * v))(x)


def used_three_times(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: n.sum(v * v * v))(x)


def product_with_itself(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: n.sum((v.T @ v) ** 2))(x)


def two_gradients(n: Any, x: Any, y: Any) -> Any:
    return jax.value_and_grad(lambda a, b: n.mean((a * b - b) ** 2), argnums=(0, 1))(x, y)


def unused_argument(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda a, b: n.sum(a * 2.0), argnums=(0, 1))(x, y)


def stopped(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(lambda v: n.sum(v * n.stop_gradient(v)))(x)


def jitted_inside(n: Any, x: Any, y: Any) -> Any:
    return jax.grad(jax.jit(lambda v: n.sum(jax.jit(lambda u: u * y)(v) ** 2)))(x)


def many_outputs(n: Any, x: Any, y: Any) -> Any:
    return {"same": x, "sum": x + y, "again": (x, n.sum(x), x * 2.0)}


def passed_through(n: Any, x: Any, y: Any) -> Any:
    return x


BRANCH_BUG = pytest.mark.xfail(
    jax.__version_info__ < (0, 11), reason="JAX 0.10 cannot differentiate cond with values of its extended types"
)
CASES = [
    hessian_product,
    reverse_over_reverse,
    pushed,
    linearized,
    pulled,
    transposed,
    checkpointed,
    checkpointed_array,
    scanned_carry,
    scanned_rows,
    grad_of_scan,
    grad_of_row_scan,
    looped_while,
    looped_fori,
    branched,
    pytest.param(grad_of_branch, marks=BRANCH_BUG),
    custom_backward,
    custom_backward_of_array,
    mapped,
    mapped_columns,
    mapped_grad,
    grad_of_mapped,
    doubly_mapped,
    used_twice,
    used_three_times,
    product_with_itself,
    two_gradients,
    unused_argument,
    stopped,
    jitted_inside,
    many_outputs,
    passed_through,
]


MAPS_SCALARS = (mapped_columns, scanned_carry, doubly_mapped)
"""A scalar of a lifted function is in memory, and so are many of them, stacked by vmap or scan."""


class Reference:
    stop_gradient = staticmethod(jax.lax.stop_gradient)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


def on_disk(values: np.ndarray, chunks: tuple[int, ...] = (2, 3)) -> Any:
    return jz.DiskArray.from_numpy(values, chunks=chunks)


def eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def compiled_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled = jax.jit(function)

    def second_call(x: Any, y: Any) -> Any:
        compiled(y, x)
        return compiled(x, y)

    return second_call


def ahead_of_time(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: jax.jit(function).lower(x, y).compile()(x, y)


@pytest.mark.parametrize("run", [eagerly, compiled_twice, ahead_of_time])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_jax_in_memory(case: Callable[..., Any], run: Callable[..., Any]) -> None:
    expected = case(Reference(), jnp.asarray(X), jnp.asarray(Y))
    found = run(lambda x, y: case(jz, x, y))(on_disk(X), on_disk(Y))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        assert isinstance(a, jz.DiskArray) == bool(b.shape) or case in MAPS_SCALARS
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("run", [eagerly, jax.jit])
def test_cotangents_have_the_kind_of_their_primals(run: Callable[..., Any]) -> None:
    w = np.random.default_rng(2).normal(size=(COLUMNS, 3)).astype("float32")
    gradients = jax.grad(lambda w, x: jz.mean(jz.square(x @ w)), argnums=(0, 1))
    in_memory, disk = run(gradients)(jnp.asarray(w), on_disk(X))
    expected = jax.grad(lambda w, x: jnp.mean(jnp.square(x @ w)), argnums=(0, 1))(w, X)
    assert isinstance(in_memory, jax.Array)
    assert isinstance(disk, jz.DiskArray)
    np.testing.assert_allclose(in_memory, expected[0], rtol=1e-5)
    np.testing.assert_allclose(disk.to_numpy(), expected[1], rtol=1e-5)


@pytest.mark.parametrize("run", [eagerly, jax.jit])
def test_an_integer_array_has_no_gradient_and_does_not_disturb_the_others(run: Callable[..., Any]) -> None:
    rows = on_disk(np.array([[0, 2, 1]] * ROWS, "int32"), (2, 3))
    found = run(jax.grad(lambda x, k: jz.sum(x[:, :3] * k)))(on_disk(X), rows)
    expected = np.zeros_like(X)
    expected[:, :3] = [[0, 2, 1]] * ROWS
    np.testing.assert_array_equal(found.to_numpy(), expected)


def test_gradient_of_a_closed_over_array_is_not_lost_in_a_lifted_function() -> None:
    def loss(x: Any) -> Any:
        return jz.lift(lambda y: jnp.sum(jnp.sin(x) * y))(on_disk(Y))

    found = jax.grad(loss)(on_disk(X))
    np.testing.assert_allclose(found.to_numpy(), np.cos(X) * Y, rtol=1e-5)


def test_a_weak_scalar_does_not_widen() -> None:
    x = on_disk(X.astype("bfloat16"))
    assert (x * 2.0).dtype == (jnp.asarray(x.to_numpy()) * 2.0).dtype
    assert (x * jnp.float32(2)).dtype == np.dtype("float32")
    assert jax.jit(lambda a, s: a * s)(x, 2.0).dtype == x.dtype


def test_the_cotangent_of_an_integer_array_takes_no_space() -> None:
    _, pull = jax.vjp(lambda x, k: jz.sum(x * k), on_disk(X), on_disk(np.ones(X.shape, "int32")))
    floats, integers = pull(jnp.float32(1))
    np.testing.assert_array_equal(floats.to_numpy(), np.ones_like(X))
    assert integers.dtype == jax.dtypes.float0
    assert integers.shape == X.shape
