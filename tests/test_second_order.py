"""Derivatives of derivatives (reverse over reverse)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz
from helpers import Op, assert_close, check, disk
from table import CORE


@pytest.mark.parametrize("op", [op for op in CORE if op.grad and op.smooth], ids=str)
def test_second_order(op: Op) -> None:
    check(op, "second_order")


VALUES = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32)


def loss(xp, a):
    return xp.sum(xp.sin(a) * a**3)


def test_third_order() -> None:
    def third(xp):
        first = jax.grad(lambda a: loss(xp, a))
        second = jax.grad(lambda a: xp.sum(xp.square(first(a))))
        return jax.grad(lambda a: xp.sum(xp.cos(second(a))))

    assert_close(third(jz)(disk(VALUES)), third(jnp)(jnp.asarray(VALUES)), 200)


def test_gradient_penalty_under_jit() -> None:
    def penalised(xp):
        gradient = jax.grad(lambda a: loss(xp, a))
        return jax.jit(jax.grad(lambda a: loss(xp, a) + xp.sum(xp.square(gradient(a)))))

    assert_close(penalised(jz)(disk(VALUES)), penalised(jnp)(jnp.asarray(VALUES)), 200)


def test_hessian_vector_product() -> None:
    def product(xp, a, v):
        return jax.grad(lambda a: xp.vdot(jax.grad(lambda a: loss(xp, a))(a), v))(a)

    x = jnp.asarray(VALUES)
    assert_close(product(jz, disk(VALUES), disk(VALUES + 1)), product(jnp, x, x + 1), 20)
