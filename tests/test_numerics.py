"""NaN and infinity, ties, overflow, accuracy, empty arrays: where chunking could show."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import helpers
import jask_zarr as jz
from helpers import GRIDS, assert_close, assert_same, disk, in_memory

NAN, INF = np.nan, np.inf


@pytest.fixture(autouse=True)
def _many_tiles() -> None:
    jz.set_memory_budget(2000)


def chunked(values: np.ndarray, chunks: tuple[int, ...]):
    return jz.DiskArray.from_numpy(np.asarray(values), chunks=chunks)


# ---------------------------------------------------------------------------------- NaN, infinity
def _special() -> dict[str, np.ndarray]:
    base = np.arange(35, dtype=np.float32).reshape(7, 5) - 9
    at = lambda where, what: np.where(np.isin(np.arange(35).reshape(7, 5), where), what, base)  # noqa: E731
    return {
        "nan_in_the_edge_chunk": at([34], NAN),
        "two_nans_in_chunk_order": at([4, 5], NAN),
        "all_nan_chunk": at([0, 1, 5, 6, 10, 11], NAN),
        "all_nan": np.full((7, 5), NAN),
        "inf_minus_inf": np.where(base == 11, -INF, at([3], INF)),
        "infinities": at([2, 30], INF),
        "minus_infinities": np.full((7, 5), -INF),
        "ties_in_chunk_order": (np.isin(np.arange(35).reshape(7, 5), [4, 5, 20])) * 1.0,
        "all_equal": np.zeros((7, 5)),
        "minus_zero": np.zeros((7, 5)) * -1,
        "all_negative": base - 100,
    }


SPECIAL = {name: values.astype(np.float32) for name, values in _special().items()}


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("pick", ["max", "min", "argmax", "argmin", "sum"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, pick: str, axis: int | None) -> None:
    _check_reduction(pick, SPECIAL[name], axis)


@pytest.mark.parametrize("pick", ["mean", "any", "all", "nanmax", "nansum", "logsumexp", "var"])
@pytest.mark.parametrize(
    "name", ["nan_in_the_edge_chunk", "all_nan", "all_nan_chunk", "infinities", "minus_infinities"]
)
def test_special_values_in_other_reductions(name: str, pick: str) -> None:
    _check_reduction(pick, SPECIAL[name], None)


def _check_reduction(pick: str, values: np.ndarray, axis: int | None) -> None:
    want = getattr(helpers.REFERENCE, pick)(jnp.asarray(values), axis=axis)
    assert_same(getattr(jz, pick)(disk(values), axis=axis), want)


@pytest.mark.parametrize("pick", ["argmax", "argmin", "max", "min"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("grid", GRIDS)
def test_ties_of_integers(pick: str, dtype: str, grid: str) -> None:
    values = np.array([[3, 1, 3], [1, 3, 0], [0, 0, 1], [3, 0, 3]]).astype(dtype)
    assert_same(getattr(jz, pick)(disk(values, grid)), getattr(jnp, pick)(jnp.asarray(values)))


@pytest.mark.parametrize("extreme", [np.iinfo(np.int32).min, np.iinfo(np.int32).max])
def test_extreme_integers(extreme: int) -> None:
    values = np.full((5, 3), extreme, np.int32)
    assert int(jz.max(disk(values))) == int(jz.min(disk(values))) == extreme


def test_division_by_zero() -> None:
    numerator = np.array([[-1, 0, 1, NAN, INF]], np.float32)
    a, b = disk(numerator), disk(np.zeros((7, 5), np.float32), "thin")
    assert_same(a / b, jnp.asarray(numerator) / jnp.zeros((7, 5)))
    i, zero = disk(np.array([5, -5, 0], np.int32)), disk(np.zeros(3, np.int32))
    assert_same(i // zero, jnp.array([5, -5, 0]) // jnp.zeros(3, int))
    assert_same(i % zero, jnp.array([5, -5, 0]) % jnp.zeros(3, int))


@pytest.mark.parametrize("pick", ["max", "min"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_gradient_is_shared_between_ties_of_all_chunks(pick: str, axis: int | None) -> None:
    values = SPECIAL["ties_in_chunk_order"]
    got = jax.grad(lambda a: jz.sum(getattr(jz, pick)(a, axis=axis) * 3))(disk(values))
    want = jax.grad(lambda a: jnp.sum(getattr(jnp, pick)(a, axis=axis) * 3))(jnp.asarray(values))
    assert_same(got, want)


@pytest.mark.parametrize("function", ["maximum", "minimum"])
def test_gradient_of_an_elementwise_tie(function: str) -> None:
    values = np.array([1, 2, 3, 2, 1], np.float32)
    got = jax.grad(lambda a: jz.sum(getattr(jz, function)(a, 2)))(disk(values))
    assert_same(got, jax.grad(lambda a: jnp.sum(getattr(jnp, function)(a, 2)))(values))


def test_gradient_of_a_product_with_zeros() -> None:
    values = np.array([[2, 0, 3], [1, 1, 1], [0, 0, 5]], np.float32)
    got = jax.grad(lambda a: jz.sum(jz.prod(a, axis=1)))(chunked(values, (2, 1)))
    assert_same(got, jax.grad(lambda a: jnp.sum(jnp.prod(a, axis=1)))(values))


def test_gradient_of_norm_and_sqrt_at_zero() -> None:
    zeros = np.zeros((5, 3), np.float32)
    for function in ("norm", "sqrt"):
        got = jax.grad(lambda a, f=function: jz.sum(getattr(jz, f)(a)))(disk(zeros))
        want = jax.grad(lambda a, f=function: jnp.sum(getattr(helpers.REFERENCE, f)(a)))(zeros)
        assert_same(got, want)


# ---------------------------------------------------------------------------------- integers
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integer_sum_that_does_not_fit_raises(dtype: str) -> None:
    values = np.full((6, 2), np.iinfo(dtype).max, dtype)
    with pytest.raises(jz.errors.IntegerOverflowError, match=dtype):
        jz.sum(chunked(values, (1, 2)))


def test_integer_sum_overflow_in_an_array_of_sums() -> None:
    values = np.full((6, 2), np.iinfo(np.int32).max, np.int32)
    values[:, 1] = 1
    with pytest.raises(jz.errors.IntegerOverflowError):
        in_memory(jz.sum(chunked(values, (1, 2)), axis=0))


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "int32"])
def test_integer_sums_that_fit_are_exact(dtype: str) -> None:
    values = np.full((60, 50), np.iinfo(dtype).max // (1 + (dtype == "int32") * 3000), dtype)
    assert int(jz.sum(chunked(values, (7, 50)))) == int(values.sum(dtype=np.int64))


def test_integer_sum_may_pass_over_the_limit_on_the_way() -> None:
    big = np.iinfo(np.int32).max
    values = np.array([big, big, -big, -big, 5], np.int32)
    assert int(jz.sum(chunked(values, (1,)))) == 5


def test_integer_mean() -> None:
    values = np.full((6,), np.iinfo(np.int32).max, np.int32)
    np.testing.assert_allclose(float(jz.mean(chunked(values, (1,)))), 2147483647.0, rtol=1e-6)


# ---------------------------------------------------------------------------------- accuracy
EPS = np.finfo(np.float32).eps
ACCURACY = {
    "cancelling": np.array([1e8, *[1] * 30, -1e8]),
    "drifting": np.array([2.0**24, *[1] * 3000]),
    "kelvin": np.full(4096, 273.15),
    "mixed_signs": np.random.default_rng(0).normal(size=4096) * 1e4,
}


@pytest.mark.parametrize("chunk", [1, 16, 4096])
@pytest.mark.parametrize("name", ACCURACY)
def test_float_sums_are_at_least_as_close_as_those_of_jax(name: str, chunk: int) -> None:
    jz.set_memory_budget("200kB")
    values = ACCURACY[name].astype(np.float32)
    if chunk == 1:
        values = values[:128]
    exact = values.astype(np.float64).sum()
    got = float(jz.sum(chunked(values, (chunk,))))
    bound = abs(float(jnp.sum(values)) - exact)
    assert abs(got - exact) <= max(bound, EPS * abs(exact))


@pytest.mark.parametrize("budget", [3000, 200_000])
@pytest.mark.parametrize("name", ACCURACY)
def test_means_and_norms_are_at_least_as_close_as_those_of_jax(name: str, budget: int) -> None:
    jz.set_memory_budget(budget)
    values = ACCURACY[name].astype(np.float32)
    a, exact = chunked(values, (64,)), values.astype(np.float64)
    for got, jax_gives, truth in [
        (jz.mean(a), jnp.mean(values), exact.mean()),
        (jz.norm(a), jnp.linalg.norm(values), np.linalg.norm(exact)),
    ]:
        assert abs(float(got) - truth) <= max(abs(float(jax_gives) - truth), 2 * EPS * abs(truth))


def test_exact_sums_whatever_the_chunks() -> None:
    drift = ACCURACY["drifting"].astype(np.float32)
    for chunk in (7, 100):
        assert float(jz.sum(chunked(drift, (chunk,)))) == 16780216.0


@pytest.mark.parametrize("chunk", [3, 50])
def test_variance_by_merging_moments(chunk: int) -> None:
    values = (1e4 + np.tile([0.0, 1.0], 500)).astype(np.float32)
    np.testing.assert_allclose(float(jz.var(chunked(values, (chunk,)))), 0.25, rtol=1e-5)
    np.testing.assert_allclose(float(jz.std(chunked(values, (chunk,)))), 0.5, rtol=1e-5)


def test_bfloat16_sums_accumulate_wider() -> None:
    values = np.ones(1500, jnp.bfloat16)
    np.testing.assert_allclose(float(jz.sum(chunked(values, (10,)))), 1500, rtol=1e-2)


def test_float16_mean_of_a_sum_that_does_not_fit() -> None:
    values = np.full((2000,), 100, np.float16)
    assert float(jz.mean(chunked(values, (100,)))) == 100.0


def test_the_same_bits_at_every_run() -> None:
    values = np.random.default_rng(1).normal(size=(50, 40)).astype(np.float32)
    a = chunked(values, (3, 7))
    results = {(float(jz.sum(a)), float(jz.logsumexp(a)), float(jz.var(a))) for _ in range(5)}
    assert len(results) == 1


def test_matmul_of_small_integers_is_exact() -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (10, 10)).astype(np.float32)
    b = rng.integers(-4, 5, (10, 10)).astype(np.float32)
    x, y = chunked(a, (3, 4)), chunked(b, (3, 3))
    np.testing.assert_array_equal(in_memory(x @ y), a @ b)
    np.testing.assert_array_equal(in_memory(x.T @ x), a.T @ a)
    gx, gy = jax.grad(lambda x, y: jz.sum(x @ y * 2), (0, 1))(x, y)
    np.testing.assert_array_equal(in_memory(gx), np.full((10, 10), 2) @ b.T)
    np.testing.assert_array_equal(in_memory(gy), a.T @ np.full((10, 10), 2))


# ---------------------------------------------------------------------------------- axes, grids
_CUBE = np.random.default_rng(3).normal(size=(3, 4, 5, 6)).astype(np.float32)
_AXES = [None, (), 0, -1, 2, (0, 2), (-1, 1), (3, 0, 1), (0, 1, 2, 3), (1,), (-2, -3)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", _AXES, ids=str)
def test_axes_of_a_4d_array(axis: object, keepdims: bool) -> None:
    jz.set_memory_budget(6000)
    a = _cube()
    for name in ("sum", "max", "mean"):
        want = getattr(jnp, name)(_CUBE, axis=axis, keepdims=keepdims)
        assert_same(getattr(jz, name)(a, axis=axis, keepdims=keepdims), want)


@functools.cache
def _cube():
    return chunked(_CUBE, (2, 3, 2, 4))


_PARTNERS = {"full": (7, 5), "row": (1, 5), "column": (7, 1), "vector": (5,), "scalar": ()}


@pytest.mark.parametrize("partner", _PARTNERS)
@pytest.mark.parametrize("chunks", [(4, 3), (1, 1), (7, 5)])
def test_broadcasting_over_different_grids(partner: str, chunks: tuple[int, int]) -> None:
    shape = _PARTNERS[partner]
    values = np.random.default_rng(4).normal(size=(7, 5)).astype(np.float32)
    other = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    a = chunked(values, (3, 2))
    kept = chunks[len(chunks) - len(shape) :]
    b = chunked(other, tuple(map(min, kept, shape))) if shape else jnp.asarray(other)
    assert_same(a * b + b, jnp.asarray(values) * other + other)
    ga, gb = jax.grad(lambda a, b: jz.sum(a * a * b), (0, 1))(a, b)
    wa, wb = jax.grad(lambda a, b: jnp.sum(a * a * b), (0, 1))(jnp.asarray(values), other)
    assert_close(ga, wa, 4)
    assert_close(gb, wb, 4)


# ---------------------------------------------------------------------------------- empty
EMPTY = [(0,), (0, 4), (3, 0)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    a, x = disk(np.zeros(shape, np.float32)), jnp.zeros(shape)
    axes = [None, *range(len(shape))]
    for name, axis in itertools.product(("sum", "prod", "mean", "any", "all"), axes):
        assert_same(getattr(jz, name)(a, axis=axis), getattr(jnp, name)(x, axis=axis))
    assert_same(jz.tanh(a) * 2, x)
    assert_same(a.T, x.T)
    assert_same(jz.concatenate([a, a]), jnp.concatenate([x, x]))
    assert_same(jax.grad(lambda a: jz.sum(a * 2))(a), x)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_arrays_have_no_maximum(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"zero-size|empty"):
        getattr(jz, name)(disk(np.zeros(shape, np.float32)))


def test_matmul_over_an_empty_dim() -> None:
    a, b = disk(np.ones((3, 0), np.float32)), disk(np.ones((0, 4), np.float32))
    assert_same(a @ b, jnp.zeros((3, 4)))
    ga, gb = jax.grad(lambda a, b: jz.sum(a @ b), (0, 1))(a, b)
    assert_same((ga, gb), (jnp.zeros((3, 0)), jnp.zeros((0, 4))))


def test_one_element() -> None:
    a = disk(np.array([[3]], np.float32))
    assert float(a) == float(jz.sum(a)) == 3.0
    assert_same(jz.softmax(a), jnp.ones((1, 1)))
    assert_same(a @ a, jnp.full((1, 1), 9.0))


@pytest.mark.parametrize("where", [0, 1234, 99_999])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("chunk", [1000, 100_000])
def test_one_nan_among_many_is_the_maximum_and_the_minimum(where, dtype, chunk):
    values = np.random.default_rng(0).normal(size=100_000).astype(dtype)
    values[where] = np.nan
    jz.set_memory_budget("2MB")
    a = jz.DiskArray.from_numpy(values, chunks=(chunk,))
    square = jz.DiskArray.from_numpy(values.reshape(200, 500), chunks=(100, 500))
    assert np.isnan(jz.max(a))
    assert np.isnan(jz.min(a))
    np.testing.assert_array_equal(jz.max(square, axis=0), values.reshape(200, 500).max(0))
    np.testing.assert_array_equal(jz.min(square, axis=1), values.reshape(200, 500).min(1))
