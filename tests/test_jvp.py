"""Forward-mode derivatives, and forward over reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz
from helpers import Op, assert_close, check, check_in_tiles, disk
from table import CORE, DIFFERENTIABLE


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_jvp(op: Op) -> None:
    check(op, "jvp")


@pytest.mark.parametrize("op", [op for op in CORE if op.grad], ids=str)
def test_jvp_cut_into_tiles(op: Op) -> None:
    check_in_tiles(op, "jvp", "mixed")


VALUES = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)


def loss(xp, a):
    return xp.sum(xp.tanh(a) * a * a)


def test_forward_over_reverse() -> None:
    a, x = disk(VALUES), jnp.asarray(VALUES)
    got = jax.jvp(jax.grad(lambda a: loss(jz, a)), (a,), (jz.cos(a),))[1]
    want = jax.jvp(jax.grad(lambda x: loss(jnp, x)), (x,), (jnp.cos(x),))[1]
    assert_close(got, want, 10)


def test_reverse_over_forward() -> None:
    a, x = disk(VALUES), jnp.asarray(VALUES)
    got = jax.grad(lambda a: jax.jvp(lambda a: loss(jz, a), (a,), (jz.cos(a),))[1])(a)
    want = jax.grad(lambda x: jax.jvp(lambda x: loss(jnp, x), (x,), (jnp.cos(x),))[1])(x)
    assert_close(got, want, 10)


def test_linearize() -> None:
    a, x = disk(VALUES), jnp.asarray(VALUES)
    out, tangent = jax.linearize(lambda a: jz.softmax(a, axis=0), a)
    want_out, want_tangent = jax.linearize(lambda x: jax.nn.softmax(x, axis=0), x)
    assert_close(out, want_out)
    assert_close(tangent(jz.sin(a)), want_tangent(jnp.sin(x)), 4)
