"""Scans along an axis that is split: in blocks, whatever the chunks, in either direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jask_zarr as jz
from jask_zarr._plan.scans import KINDS

LONG = np.random.default_rng(0).normal(size=(300_007,)).astype("float32")
FLAT = np.random.default_rng(1).normal(size=(4_999, 64)).astype("float32")
NUMBERS = np.random.default_rng(2).integers(-1000, 1000, size=300_007).astype("int32")
EXTREME = np.where(np.arange(LONG.size) % 70_001 == 5, np.float32(np.inf), LONG)
MISSING = np.where(np.arange(LONG.size) == 200_000, np.float32(np.nan), LONG)


def check(function, values, chunks, budget, rtol=1e-5, atol=1e-4):
    """That a function gives what JAX gives in float64."""
    jz.set_memory_budget(budget)
    stored = jz.DiskArray.from_numpy(values, chunks=chunks)
    got = jz.lift(function)(stored)
    scanned = [e.name for e in jz.explain(got).plan.program.equations]
    with jax.enable_x64(True):
        exact = values.astype("float64") if values.dtype.kind == "f" else values
        want = np.asarray(function(jnp.asarray(exact)))
    got = got.to_numpy(allow_large=True)
    np.testing.assert_allclose(got, want.astype(got.dtype), rtol=rtol, atol=atol)
    return scanned


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_jax(kind, backwards):
    scan = getattr(lax, kind)
    values = 1 + LONG / 1000 if kind == "cumprod" else LONG
    assert "scan_of_blocks" in check(lambda x: scan(x, reverse=backwards), values, (7_001,), "500kB")


@pytest.mark.parametrize("chunks", [(97, 64), (1024, 64), (1000, 7), (2048, 8)])
@pytest.mark.parametrize("backwards", [False, True])
def test_agrees_with_jax_along_one_of_several_dims(chunks, backwards):
    check(lambda x: lax.cumsum(x, 0, reverse=backwards) * 2, FLAT, chunks, "500kB")


@pytest.mark.parametrize("kind", ["cumsum", "cummax", "cummin", "cumprod"])
def test_integers_are_exact_and_wrap_as_in_jax(kind):
    jz.set_memory_budget("500kB")
    stored = jz.DiskArray.from_numpy(NUMBERS, chunks=(10_000,))
    got = jz.lift(getattr(lax, kind))(stored).to_numpy(allow_large=True)
    np.testing.assert_array_equal(got, getattr(lax, kind)(jnp.asarray(NUMBERS)))


@pytest.mark.parametrize("values", [EXTREME, MISSING, -EXTREME], ids=["infinite", "missing", "negative"])
@pytest.mark.parametrize("kind", ["cumsum", "cummax", "cummin", "cumlogsumexp"])
def test_what_is_not_finite_spreads_as_in_jax(kind, values):
    check(getattr(lax, kind), values, (7_001,), "500kB")


OF_SCANS = {
    "a slice": lambda x: jnp.cumsum(x)[1234:90_000] * 2,
    "of a slice": lambda x: jnp.cumsum(x[777:]),
    "of what is computed": lambda x: jnp.cumsum(jnp.sin(x)) + x,
    "reversed": lambda x: jnp.cumsum(x[::-1])[::-1],
    "twice": lambda x: jnp.cumsum(jnp.cumsum(x) / 1000),
    "a gradient": jax.grad(lambda x: jnp.sum(jnp.cumsum(x) ** 2) / 1e6),
    "a gradient of logarithms": jax.grad(lambda x: jnp.sum(jnp.log(jnp.cumsum(jnp.exp(x[:290_000])))) / 100),
    "a moving mean": lambda x: (jnp.cumsum(x)[100:] - jnp.cumsum(x)[:-100]) / 100,
    "a distribution": lambda x: jnp.cumsum(jax.nn.softmax(x)),
}


PARTS = {
    "the first": lambda y, x: y[:123_456],
    "the first few": lambda y, x: y[:300],
    "the last": lambda y, x: y[-123_456:],
    "some": lambda y, x: y[777:290_000],
    "every third": lambda y, x: y[::3],
    "padded after": lambda y, x: jnp.pad(y, (0, 54_321)),
    "padded before": lambda y, x: jnp.pad(y, (4_321, 0)),
    "beside another": lambda y, x: jnp.concatenate([y, x]),
    "after another": lambda y, x: jnp.concatenate([x, y]),
    "summed in part": lambda y, x: jnp.sum(y[:123_456]) / 1000,
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kind", ["cumsum", "cummax", "cumlogsumexp"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_scans_and_scans_as_parts_agree_with_jax(part, kind, backwards):
    function = lambda x: PARTS[part](getattr(lax, kind)(jnp.exp(x), reverse=backwards), x)  # noqa: E731
    jz.set_memory_budget("3MB" if part == "every third" else "800kB")
    stored = jz.DiskArray.from_numpy(LONG, chunks=(7_001,))
    with jax.enable_x64(True):
        want = np.asarray(function(jnp.asarray(LONG.astype("float64"))))
    got = jz.lift(function)(stored)
    got = got.to_numpy(allow_large=True) if got.ndim else np.asarray(got)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("name", OF_SCANS)
def test_what_is_made_of_scans_agrees_with_jax(name):
    check(OF_SCANS[name], LONG, (7_001,), "800kB", rtol=1e-4, atol=1e-3)


def test_the_data_is_read_twice(tmp_path):
    jz.set_memory_budget("700kB")
    a = jz.DiskArray.from_numpy(LONG[:300_000], chunks=(10_000,))
    with jz.io_cost() as cost:
        jz.lift(jnp.cumsum)(a).save(tmp_path / "sums", chunks=a.chunks)
    assert cost.bytes_read == 2 * a.nbytes


def test_the_data_is_read_once_where_the_axis_is_not_split(tmp_path):
    jz.set_memory_budget("500kB")
    a = jz.DiskArray.from_numpy(FLAT, chunks=(4_999, 4))
    with jz.io_cost() as cost:
        jz.lift(lambda x: jnp.cumsum(x, 0))(a).save(tmp_path / "sums", chunks=a.chunks)
    assert cost.bytes_read == a.nbytes


def test_sums_are_taken_in_float64():
    ones = np.ones(1 << 19, "float32") / 3
    jz.set_memory_budget("1500kB")
    got = jz.lift(jnp.cumsum)(jz.DiskArray.from_numpy(ones, chunks=(1 << 15,))).to_numpy(allow_large=True)
    np.testing.assert_allclose(got, np.cumsum(ones.astype("float64")), rtol=1e-7)
