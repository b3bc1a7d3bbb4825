"""Gradients of every op are those of `jax.numpy`, whatever the chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import helpers
import jask_zarr as jz
from helpers import Op, assert_same, check, check_in_tiles, disk, in_memory
from table import CORE, DIFFERENTIABLE


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_gradient(op: Op) -> None:
    check(op, "grad")


@pytest.mark.parametrize("grid", ["thin", "mixed"])
@pytest.mark.parametrize("op", [op for op in CORE if op.grad], ids=str)
def test_gradient_cut_into_tiles(op: Op, grid: str) -> None:
    check_in_tiles(op, "grad", grid)


@pytest.mark.parametrize("op", [op for op in CORE if op.grad], ids=str)
def test_gradient_in_bfloat16(op: Op) -> None:
    check(op, "grad", "bfloat16")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("op", [op for op in CORE if op.grad], ids=str)
def test_gradient_in_float64(op: Op) -> None:
    check(op, "grad", "float64", "mixed")


VALUES = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)

USED_OFTEN = {
    "twice": lambda xp, a: xp.sum(a * a),
    "thrice": lambda xp, a: xp.sum(a * a * a),
    "dot_with_itself": lambda xp, a: xp.sum(xp.dot(a.T, a)),
    "matmul_both_sides": lambda xp, a: xp.sum((a @ a.T) @ a),
    "sum_of_terms": lambda xp, a: xp.sum(a) + xp.sum(xp.sin(a)) * xp.mean(a),
    "through_slices": lambda xp, a: xp.sum(a[1:] * a[:-1]) + xp.sum(a[2] * a[:, 1:2]),
    "broadcast_of_itself": lambda xp, a: xp.sum(a * a[:1] + a[:, :1]),
    "where_of_itself": lambda xp, a: xp.sum(xp.where(a > 0, a, a * a)),
    "shared_subexpression": lambda xp, a: (lambda t: xp.sum(t * t + t))(xp.tanh(a)),
}


@pytest.mark.parametrize("name", USED_OFTEN)
@pytest.mark.parametrize("grid", ["uneven", "thin"])
def test_an_array_used_more_than_once(name: str, grid: str) -> None:
    loss = USED_OFTEN[name]
    expected = jax.grad(lambda x: loss(helpers.REFERENCE, x))(jnp.asarray(VALUES))
    assert_same(jax.grad(lambda a: loss(jz, a))(disk(VALUES, grid)), expected, 4)


def test_both_operands_of_matmul() -> None:
    a, b = disk(VALUES), disk(VALUES.T.copy(), "mixed", 1)
    got = jax.grad(lambda a, b: jz.sum(jz.square(a @ b)), (0, 1))(a, b)
    want = jax.grad(lambda a, b: jnp.sum(jnp.square(a @ b)), (0, 1))(VALUES, VALUES.T)
    assert_same(got, want, 4)


def test_two_gradients_are_two_arrays() -> None:
    a = disk(VALUES)
    first = jax.grad(lambda a: jz.sum(a * a))(a)
    second = jax.grad(lambda a: jz.sum(a * a * a))(a)
    np.testing.assert_allclose(in_memory(first), 2 * VALUES, rtol=1e-6)
    np.testing.assert_allclose(in_memory(second), 3 * VALUES**2, rtol=1e-5)
    np.testing.assert_allclose(in_memory(first), 2 * VALUES, rtol=1e-6)


def test_cotangents_have_the_kind_of_their_primals() -> None:
    w = jnp.ones((5, 2))
    gw, ga = jax.grad(lambda w, a: jz.sum(jz.tanh(a @ w)), (0, 1))(w, disk(VALUES))
    assert isinstance(gw, jax.Array)
    assert isinstance(ga, jz.DiskArray)
    want = jax.grad(lambda w, a: jnp.sum(jnp.tanh(a @ w)), (0, 1))(w, VALUES)
    helpers.assert_close(gw, want[0], 4)
    helpers.assert_close(ga, want[1], 4)


def test_value_and_grad_of_a_tree_with_auxiliary_output() -> None:
    params = {"w": disk(VALUES), "b": [disk(VALUES[0], "thin")]}
    dense = {"w": jnp.asarray(VALUES), "b": [jnp.asarray(VALUES[0])]}

    def loss(xp, params):
        out = xp.sum(xp.square(params["w"] + params["b"][0]))
        return out, {"mean": xp.mean(params["w"])}

    got = jax.value_and_grad(lambda p: loss(jz, p), has_aux=True)(params)
    want = jax.value_and_grad(lambda p: loss(jnp, p), has_aux=True)(dense)
    assert_same(got, want, 4)


def test_vjp_pulls_back_twice() -> None:
    a = disk(VALUES)
    out, pull = jax.vjp(jz.sin, a)
    for factor in (1.0, 2.0):
        (got,) = pull(out * factor)
        np.testing.assert_allclose(in_memory(got), factor * np.sin(VALUES) * np.cos(VALUES), rtol=1e-5, atol=1e-6)


def test_stop_gradient_and_unused_operands_give_zeros() -> None:
    a, b = disk(VALUES), disk(VALUES, "mixed")
    ga, gb = jax.grad(lambda a, b: jz.sum(jz.stop_gradient(a)), (0, 1))(a, b)
    for g in (ga, gb):
        assert isinstance(g, jz.DiskArray)
        np.testing.assert_array_equal(in_memory(g), np.zeros_like(VALUES))


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_have_no_gradient(dtype: str) -> None:
    a = disk(np.ones((3, 2), dtype))
    with pytest.raises(TypeError, match="grad requires"):
        jax.grad(lambda a: jz.sum(a * 1.0))(a)
