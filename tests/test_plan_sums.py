"""Sums are taken in the wider type, in a tile and over tiles: no further from the truth than numpy's pairwise sum."""

import math

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jask_zarr as jz
from jask_zarr._plan.wider import wider, wider_inexact

LENGTHS = [1_000_000, pytest.param(100_000_000, marks=pytest.mark.soak)]
KINDS = {
    "uniform": lambda rng, n: rng.random(n, "float32"),
    "around zero": lambda rng, n: rng.standard_normal(n, "float32"),
    "of all sizes": lambda rng, n: np.exp(8 * rng.standard_normal(n, "float32")),
    "one large": lambda rng, n: np.r_[np.float32(2**26), rng.random(n - 1, "float32")],
}


def error(got, exact):
    return abs(float(got) - exact)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_is_no_further_from_the_truth_than_a_pairwise_one(kind, n):
    values = KINDS[kind](np.random.default_rng(0), n)
    exact = (
        math.fsum(values) if n <= 1_000_000 else math.fsum(float(np.sum(b, dtype="f8")) for b in np.split(values, 1000))
    )
    for shape, chunks in [
        ((n,), (n // 7,)),
        ((n // 1000, 1000), (n // 3000, 1000)),
        ((1000, n // 1000), (300, n // 5000)),
    ]:
        array = jz.DiskArray.from_numpy(values.reshape(shape), chunks=chunks)
        assert error(jz.sum(array), exact) <= error(np.sum(values), exact)


@pytest.mark.parametrize("budget", ["1MB", "64MB"])
def test_the_tiles_of_a_sum_do_not_show(budget):
    jz.set_memory_budget(budget)
    values = KINDS["around zero"](np.random.default_rng(1), 600_000)
    exact = math.fsum(values)
    array = jz.DiskArray.from_numpy(values.reshape(600, 1000), chunks=(7, 300))
    assert error(jz.sum(array), exact) <= error(np.sum(values), exact)
    rows = array.sum(axis=1).to_numpy()
    np.testing.assert_array_equal(rows, values.reshape(600, 1000).sum(1, dtype="f8").astype("float32"))


@pytest.mark.parametrize("chunk", [4, 64])
def test_complex_sums_and_products_do_not_lose_what_cancels(chunk):
    values = np.array([1e8, *[1] * 30, -1e8]).astype("complex64") * (1 + 1j)
    array = jz.DiskArray.from_numpy(values, chunks=(chunk,))
    assert complex(jz.sum(array)) == 30 + 30j
    rows = jz.DiskArray.from_numpy(np.stack([values] * 3), chunks=(1, chunk))
    np.testing.assert_array_equal(np.asarray(jz.sum(rows, axis=1)), np.full(3, 30 + 30j, "complex64"))


@pytest.mark.parametrize("chunk", [1, 64])
def test_products_may_pass_over_the_limit_on_the_way(chunk):
    values = np.array([1e30, 1e30, 1e-30, 1e-30], "float32")
    assert float(jz.prod(jz.DiskArray.from_numpy(values, chunks=(chunk,)))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("dtype", "wide", "inexact"),
    [
        ("float32", "float64", "float64"),
        ("float16", "float64", "float64"),
        (ml_dtypes.bfloat16, "float64", "float64"),
        (jnp.float8_e4m3fn, "float64", "float64"),
        ("complex64", "complex128", "complex128"),
        ("int8", "int64", None),
        ("uint16", "uint64", None),
        ("bool", "int64", None),
    ],
)
def test_the_wider_type(dtype, wide, inexact):
    assert wider(dtype) == np.dtype(wide)
    assert wider_inexact(dtype) == inexact
