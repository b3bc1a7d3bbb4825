"""A value that is compared with its own maximum is found again, though passes are compiled apart."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz
from jask_zarr._plan import tiles

RNG = np.random.default_rng(5)
A, B = RNG.normal(size=(2, 37, 23)).astype("float32")

COMPUTED = {
    "length": lambda xp, a, b: xp.sqrt(a * a + b * b),
    "line": lambda xp, a, b: a * b + 1.7 * b,
    "tanh": lambda xp, a, b: xp.tanh(a) * b,
    "exp": lambda xp, a, b: xp.exp(a) / 3 - b,
    "product": lambda xp, a, b: a * b,
    "difference": lambda xp, a, b: abs(a - b),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 64)
    jz.set_memory_budget(2000)


def on_disk(*arrays):
    return [jz.DiskArray.from_numpy(array, chunks=(7, 5)) for array in arrays]


ALWAYS = [("length", 0, "max"), ("length", 1, "min"), ("line", None, "max"), ("tanh", 0, "min")]
CASES = [*product(COMPUTED, (0, 1, None), ("max", "min"))]


@pytest.mark.parametrize(
    ("name", "axis", "extreme"),
    [pytest.param(*case, marks=() if case in ALWAYS else pytest.mark.soak) for case in CASES],
)
def test_gradients_of_extremes(name, axis, extreme):
    def loss(xp):
        return lambda a, b: xp.sum(xp.sin(getattr(xp, extreme)(COMPUTED[name](xp, a, b), axis=axis)))

    want = jax.grad(loss(jnp))(A, B)
    for gradient in (jz.lift(jax.grad(loss(jnp))), jax.grad(loss(jz))):
        got = gradient(*on_disk(A, B)).to_numpy(allow_large=True)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["length", "tanh"])
def test_extremes_are_found(name):
    def count(a, b):
        values = COMPUTED[name](jnp, a, b)
        return jnp.sum(values >= values.max(0), axis=0), jnp.sum(values == values.min(), axis=1)

    for got, want in zip(jz.lift(count)(*on_disk(A, B)), count(A, B), strict=True):
        np.testing.assert_array_equal(got.to_numpy(), want)


@pytest.mark.parametrize(
    ("function", "is_kept"),
    [
        (lambda a: a, False),
        (lambda a: jax.nn.relu(-a[1:]), False),
        (lambda a: a * 3, False),
        (lambda a: a * 3 + a, True),
    ],
)
def test_only_what_may_differ_is_kept(function, is_kept):
    (a,) = on_disk(A)
    gradient = jax.grad(lambda a: jnp.sum(jnp.sin(jnp.max(function(a), axis=0))))
    assert ("its own maximum" in str(jz.explain(gradient, a))) == is_kept
