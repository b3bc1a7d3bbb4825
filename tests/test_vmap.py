"""`jax.vmap` over and beside arrays on disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz
from helpers import REFERENCE, assert_close, assert_same, disk

CUBE = np.random.default_rng(4).normal(size=(4, 7, 5)).astype(np.float32)
MATRIX = np.random.default_rng(5).normal(size=(5, 3)).astype(np.float32)

MAPPED = {
    "unary": lambda xp, a: xp.tanh(a),
    "scalar": lambda xp, a: xp.sum(a * a),
    "rows": lambda xp, a: xp.softmax(a, axis=-1),
    "reduction": lambda xp, a: xp.max(a, axis=0),
    "matmul_itself": lambda xp, a: a.T @ a,
    "reshape": lambda xp, a: a.reshape(-1),
    "slice": lambda xp, a: a[1:4, ::2],
    "two_results": lambda xp, a: (xp.mean(a), a - 1),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name: str, axis: int) -> None:
    function = MAPPED[name]
    moved = np.moveaxis(CUBE, 0, axis)
    got = jax.vmap(lambda a: function(jz, a), in_axes=axis)(disk(moved))
    want = jax.vmap(lambda a: function(REFERENCE, a), in_axes=axis)(jnp.asarray(moved))
    for a, e in zip(jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, jz.DiskArray)),
                    jax.tree.leaves(want), strict=True):  # fmt: skip
        assert_close(a, e, 4)


def test_vmap_with_an_unmapped_operand() -> None:
    got = jax.vmap(lambda a, w: a @ w, in_axes=(0, None))(disk(CUBE), disk(MATRIX))
    assert_same(got, jnp.asarray(CUBE) @ jnp.asarray(MATRIX), 4)


def test_vmap_over_memory_beside_a_closed_over_array() -> None:
    a, scales = disk(CUBE[0]), jnp.arange(3.0)
    got = jax.vmap(lambda s: jz.sum(jz.sin(a * s)))(scales)
    want = jax.vmap(lambda s: jnp.sum(jnp.sin(CUBE[0] * s)))(scales)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_out_axes() -> None:
    got = jax.vmap(jz.exp, out_axes=1)(disk(CUBE))
    assert_same(got, jnp.moveaxis(jnp.exp(CUBE), 0, 1))


def test_nested_vmap() -> None:
    got = jax.vmap(jax.vmap(lambda row: jz.softmax(row)))(disk(CUBE))
    assert_same(got, jax.nn.softmax(CUBE, axis=-1))


def test_gradients_for_each_example() -> None:
    def loss(xp, w, a):
        return xp.sum(xp.tanh(a @ w))

    got = jax.vmap(jax.grad(lambda w, a: loss(jz, w, a)), in_axes=(None, 0))(disk(MATRIX), disk(CUBE))
    want = jax.vmap(jax.grad(lambda w, a: loss(jnp, w, a)), in_axes=(None, 0))(MATRIX, CUBE)
    assert_close(got, want, 4)


def test_gradient_of_vmap() -> None:
    got = jax.grad(lambda a: jz.sum(jax.vmap(lambda m: jz.square(m).sum(0))(a)))(disk(CUBE))
    assert_same(got, 2 * jnp.asarray(CUBE), 4)


def test_jit_of_vmap() -> None:
    got = jax.jit(jax.vmap(lambda m: jz.log_softmax(m, axis=0)))(disk(CUBE))
    assert_same(got, jax.nn.log_softmax(CUBE, axis=1))
