"""Contractions of transposes: what is contracted is the array itself, and the numbers stay."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jask_zarr as jz
from jask_zarr._plan import tiles
from jask_zarr._plan.fold import permuted
from jask_zarr._plan.program import flatten

RNG = np.random.default_rng(0)
BATCH = ((), ())
MATRIX, VECTOR = RNG.normal(size=(6, 8)).astype("float32"), RNG.normal(size=6).astype("float32")
CUBE, OTHER = RNG.normal(size=(4, 6, 8)).astype("float32"), RNG.normal(size=(6, 5, 4)).astype("float32")


def dot(numbers, left=None, right=None):
    """A contraction of operands that are transposed first."""

    def function(a, b):
        a = a if left is None else lax.transpose(a, left)
        b = b if right is None else lax.transpose(b, right)
        return lax.dot_general(a, b, numbers)

    return function


# name: function, operands, transposes that remain
CASES = {
    "matrix and vector": (lambda a, v: a.T @ v, (MATRIX, VECTOR), 0),
    "vector and matrix": (lambda v, a: v @ a.T, (MATRIX[0], MATRIX), 0),
    "normal equations": (lambda a, w: a.T @ (a @ w), (MATRIX, MATRIX[0]), 0),
    "both transposed": (lambda a, b: a.T @ b.T, (MATRIX, MATRIX.reshape(8, 6)), 0),
    "transposed twice": (lambda a, v: a.T.T.T @ v, (MATRIX, VECTOR), 0),
    "the transpose is wanted too": (lambda a, v: (a.T @ v, a.T), (MATRIX, VECTOR), 1),
    "batch, left": (dot((((1,), (0,)), ((2,), (2,))), left=(2, 1, 0)), (CUBE, OTHER), 0),
    "batch, right": (dot((((0,), (1,)), ((1,), (0,))), right=(0, 2, 1)), (CUBE, OTHER), 0),
    "batch, both": (dot((((1,), (0,)), ((0,), (2,))), (0, 2, 1), (1, 2, 0)), (CUBE, RNG.normal(size=(4, 8, 3))), 0),
    "two contracted": (dot((((2, 1), (1, 0)), BATCH), left=(2, 1, 0), right=(0, 2, 1)), (CUBE, OTHER), 0),
    "free dims in order": (dot((((0,), (0,)), BATCH), left=(1, 0, 2)), (CUBE, OTHER), 0),
    "free dims swapped": (dot((((2,), (0,)), BATCH), left=(2, 1, 0)), (CUBE, OTHER.transpose(2, 1, 0)), 1),
    "gradient": (jax.grad(lambda a, v: jnp.sum(jnp.sin(a.T @ v)), (0, 1)), (MATRIX, VECTOR), None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_transposed_is_contracted(name):
    function, operands, remain = CASES[name]
    program = flatten(jax.make_jaxpr(function)(*operands))
    if remain is not None:
        assert [e.name for e in program.equations].count("transpose") == remain


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_stay(name, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 256)
    function, operands, _ = CASES[name]
    arrays = [jz.DiskArray.from_numpy(np.asarray(x, "float32"), chunks=(2,) * np.ndim(x)) for x in operands]
    got = jax.tree.leaves(jz.lift(function)(*arrays))
    for ours, want in zip(got, jax.tree.leaves(function(*operands)), strict=True):
        np.testing.assert_allclose(np.asarray(ours), want, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("permutation", [*itertools.permutations(range(4))])
def test_any_permutation(permutation):
    """A free dim, a batch dim and two contracted ones, in any order."""
    before, right = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(4, 2, 5, 6))
    left = lax.transpose(before, permutation)
    place = permutation.index
    numbers = ((place(2), place(0)), (0, 1)), ((place(3),), (2,))
    folded = permuted(numbers, 0, permutation)
    assert folded is not None
    np.testing.assert_allclose(lax.dot_general(before, right, folded), lax.dot_general(left, right, numbers), rtol=1e-5)
