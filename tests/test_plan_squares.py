"""Sums of deviations and of their squares do not wait for the mean: variances, layer norms, their derivatives."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz
from helpers import assert_close, in_memory, is_disk

ROWS, COLUMNS = 600, 8
RNG = np.random.default_rng(0)
X = (RNG.standard_normal((ROWS, COLUMNS)) * 3 + 5).astype("float32")
Y, Z = (RNG.standard_normal((ROWS, COLUMNS)).astype("float32") for _ in range(2))
TARGET = RNG.standard_normal((1, COLUMNS)).astype("float32")
GRIDS = {"even": (40, COLUMNS), "uneven": (37, 3)}


@pytest.fixture(autouse=True)
def _small_budget():
    """An axis of `ROWS` does not fit."""
    jz.set_memory_budget("12kB")


def stored(values, grid="even", axis=0):
    chunks = GRIDS[grid][:: 1 if axis == 0 else -1]
    return jz.DiskArray.from_numpy(np.asarray(values), chunks=chunks)


def computed(function, *arrays):
    return jax.tree.map(in_memory, jz.lift(function)(*arrays), is_leaf=is_disk)


def walks(function, *arrays):
    """Passes that read from disk."""
    return sum(bool(p.streams) for p in jz.explain(function, *arrays).plan.passes)


def equations(function, *arrays):
    return {step.equation.name for p in jz.explain(function, *arrays).plan.passes for step in p.sweep.steps}


def normed(x, axis=0):
    m, v = jnp.mean(x, axis, keepdims=True), jnp.var(x, axis, keepdims=True)
    return (x - m) * jax.lax.rsqrt(v + 1e-5) * 1.5 + 0.5


# --- which sums, and how many walks ---------------------------------------------------------------

FORMS = {
    "var": lambda x, axis: jnp.var(x, axis),
    "std": lambda x, axis: jnp.std(x, axis, ddof=1),
    "mean and var": lambda x, axis: (jnp.mean(x, axis), jnp.var(x, axis)),
    "square": lambda x, axis: jnp.sum(jnp.square(x - x.mean(axis, keepdims=True)), axis),
    "power": lambda x, axis: jnp.mean(jax.lax.integer_pow(x - x.mean(axis, keepdims=True), 2), axis),
    "product": lambda x, axis: jnp.sum((x - x.mean(axis, keepdims=True)) * (x - x.mean(axis, keepdims=True)), axis),
    "from the other side": lambda x, axis: jnp.sum((x.mean(axis, keepdims=True) - x) ** 2, axis),
    "scaled": lambda x, axis: jnp.sum(0.5 * (x - x.mean(axis, keepdims=True)) ** 2 / x.shape[axis], axis),
    "not the mean": lambda x, axis: jnp.sum((x - jnp.tanh(x.sum(axis, keepdims=True))) ** 2, axis),
    "the mean of all": lambda x, axis: jnp.sum((x - x.mean()) ** 2, axis),
    "in another type": lambda x, axis: jnp.sum((x - x.mean(axis, keepdims=True)).astype("float32") ** 2, axis),
}
DTYPES = ["float32", "float16", "bfloat16"]


def exact(name, x, axis):
    """In float64, from the values as they are stored."""
    with jax.enable_x64(True):
        return FORMS[name](jnp.asarray(x.astype("float64")), axis)


CASES = [(name, "float32", "even", 0) for name in FORMS]
CASES += [("mean and var", "float32", "uneven", 1), ("std", "float16", "even", 1), ("var", "bfloat16", "uneven", 0)]
MORE = [case for case in itertools.product(FORMS, DTYPES, GRIDS, (0, 1)) if case not in CASES]


@pytest.mark.parametrize(
    ("name", "dtype", "grid", "axis"), [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_one_walk_and_the_values_of_jax(name, dtype, grid, axis):
    x = (X if axis == 0 else X.T).astype(jnp.dtype(dtype))
    array, function = stored(x, grid, axis), lambda x: FORMS[name](x, axis)
    assert walks(function, array) == 1
    got, wanted = computed(function, array), jax.jit(function)(x)
    tolerance = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for one, other, true in zip(*map(jax.tree.leaves, (got, wanted, exact(name, x, axis))), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.astype("float64"), true, rtol=tolerance)


# function, operands, walks
COMPUTED = {
    "of something computed": (lambda x, y, z: jnp.var(x * y + z, axis=0), (X, Y, Z), 1),
    "of all": (jnp.var, (X,), 1),
    "vmapped": (jax.vmap(jnp.var, 1), (X,), 1),
    "of groups": (lambda x: jnp.var(x.reshape(ROWS, 2, 4), axis=(0, 2)), (X,), 1),
    "of integers": (lambda x: jnp.var(x.astype("int32"), axis=0), (X,), 1),
    "twice": (lambda x: (jnp.var(x, axis=0), jnp.sum((x - x.mean(0)) * (x - x.mean(0)), axis=0)), (X,), 1),
    "layer norm": (normed, (X,), 2),
    "two layer norms": (lambda x: normed(jnp.tanh(normed(x))), (X,), 3),
    "standardized": (lambda x: jax.nn.standardize(x, axis=0), (X,), 2),
    "jvp": (lambda x, y: jax.jvp(lambda x: jnp.var(x, axis=0), (x,), (y,)), (X, Y), 3),
    "gradient": (jax.grad(lambda x: jnp.sum(jnp.sin(jnp.var(x, axis=0)))), (X,), 2),
    "gradient of std": (jax.grad(lambda x: jnp.sum(jnp.std(x, axis=0))), (X,), 2),
    "gradient of a layer norm": (jax.grad(lambda x, y: jnp.sum(normed(x) * y)), (X, Y), 2),
    "factors that wait": (lambda x, y: jnp.sum(y / x.std(0), axis=0), (X, Y), 2),
    "a weighted deviation": (lambda x, y: jnp.sum(y * (x.mean(0) - x) / 3, axis=0), (X, Y), 1),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_walks_over_what_is_computed_and_in_derivatives(name):
    function, operands, count = COMPUTED[name]
    arrays = [stored(a) for a in operands]
    assert walks(function, *arrays) == count
    got, wanted = computed(function, *arrays), jax.jit(function)(*operands)
    jax.tree.map(lambda a, b: assert_close(a, b, 8), got, wanted)


PLAIN = {
    "a target in memory": (lambda x, t: jnp.sum((x - t) ** 2, axis=0), (TARGET,), 1),
    "the mean of another": (lambda x, y: jnp.sum((x - y.mean(0)) ** 2, axis=0), (Y,), 2),
    "an earlier result": (lambda x, t: jnp.sum((x - t.mean()) ** 2, axis=0), (TARGET,), 1),
    "a weighted sum": (lambda x, y: jnp.sum((x - x.mean(0)) ** 2 * y, axis=0), (Y,), 2),
}


@pytest.mark.parametrize("name", PLAIN)
def test_where_nothing_is_gained_sums_are_as_written(name):
    function, others, count = PLAIN[name]
    arrays = [stored(X), *(stored(a) if a is Y else jnp.asarray(a) for a in others)]
    assert walks(function, *arrays) == count
    assert "square_reduce_sum" not in equations(function, *arrays)
    assert_close(computed(function, *arrays), jax.jit(function)(X, *others), 8)


def test_each_chunk_is_read_once_for_moments_and_twice_for_a_layer_norm(tmp_path):
    a = stored(X)
    with jz.io_cost() as cost:
        jz.compute(a.mean(0), a.var(0))
    assert (cost.blocks_read, cost.bytes_read) == (15, X.nbytes)
    with jz.io_cost() as cost:
        jz.lift(normed)(a).save(tmp_path / "normed", chunks=GRIDS["even"])
    assert (cost.blocks_read, cost.bytes_read) == (30, 2 * X.nbytes)


def test_explain_says_how_the_sums_combine():
    text = str(jz.explain(lambda x: jnp.var(x, axis=0), stored(X)))
    assert "square_reduce_sum over an axis that is split into tiles: float64[8], combined by recentred" in text


# --- rows that fit --------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["var", "mean and var"])
def test_tiles_are_chunks_even_where_whole_rows_would_fit(name, axis):
    jz.set_memory_budget("256MB")
    array = jz.zeros((4096, 4096), chunks=(1024, 1024))
    reading, dividing = jz.explain(lambda x: FORMS[name](x, axis), array).plan.passes
    assert [loop.tile for loop in reading.loops] == [1024, 1024]
    assert not dividing.streams
    assert reading.tiling.traffic == 4 * 4096**2


@pytest.mark.parametrize("function", [lambda x: FORMS["var"](x, 0), normed])
def test_an_axis_that_fits_into_a_small_tile_is_computed_as_it_is_written(function):
    jz.set_memory_budget("64MB")
    array = stored(X)
    assert walks(function, array) == 1
    assert "square_reduce_sum" not in equations(function, array)


# --- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 8.0, -1e4])
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_a_large_mean_costs_no_digits(offset, shift):
    """Of the sum as it is written, whatever is subtracted."""
    x = (RNG.standard_normal((ROWS, COLUMNS)) * max(1, offset / 1e7) + offset).astype("float32")

    def sums(x):
        d = x.mean(0) + shift
        return d, jnp.sum((x - d) ** 2, axis=0)

    subtracted, got = computed(sums, stored(x))
    np.testing.assert_allclose(got, ((x - subtracted.astype("float64")) ** 2).sum(0), rtol=3e-7)


def test_tiles_of_different_means_combine():
    x = X + np.repeat([1e3, -1e3, 2e3], ROWS // 3)[:, None].astype("float32")
    true = x.astype("float64").var(0)
    np.testing.assert_allclose(computed(lambda x: jnp.var(x, axis=0), stored(x)), true, rtol=1e-6)


def test_with_64_bits_the_sum_is_as_exact(x64):
    x = X.astype("float64") + 1e8
    np.testing.assert_allclose(computed(lambda x: jnp.var(x, axis=0), stored(x)), x.var(0), rtol=1e-14)


# --- infinities and NaN ---------------------------------------------------------------------------

INF = np.float32(np.inf)
HOSTILE = {
    "inf": lambda x: x.at[0].set(INF),
    "-inf at the end": lambda x: x.at[-1].set(-INF),
    "a tile of inf": lambda x: x.at[:40].set(INF),
    "inf and -inf": lambda x: x.at[0].set(INF).at[-1].set(-INF),
    "NaN": lambda x: x.at[300].set(jnp.nan),
    "NaN and inf": lambda x: x.at[300].set(jnp.nan).at[0].set(INF),
    "near the limit": lambda x: x.at[3].set(3e38).at[-3].set(-3e38),
    "beyond the limit": lambda x: jnp.full_like(x, 3e38),
    "constant": lambda x: jnp.ones_like(x),
}
SHIFTS = {
    "mean": lambda m: m,
    "no infinity": jnp.nan_to_num,
    "always inf": lambda m: m * 0 + INF,
    "always -inf": lambda m: jnp.where(m == m, -INF, -INF),
    "always NaN": lambda m: m * jnp.nan,
}


def hostile_sums(x):
    """Each column by itself: squares, deviations, and what a derivative makes of them."""
    squares = [jnp.sum((x - shift(x.mean(0))) ** 2, axis=0) for shift in SHIFTS.values()]
    deviations = [jnp.sum(x - shift(x.mean(0)), axis=0) for shift in [*SHIFTS.values()][2:]]
    return [*squares, *deviations, jax.grad(lambda x: jnp.sum(normed(x) * Y[:, :1]))(x)]


@pytest.fixture(scope="module")
def of_hostile():
    """Of all kinds side by side: on disk, and in memory."""
    x = jnp.concatenate([spoil(jnp.asarray(X)) for spoil in HOSTILE.values()], axis=1)
    before = jz.memory_budget()
    jz.set_memory_budget("200kB")
    array = jz.DiskArray.from_numpy(np.asarray(x), chunks=(40, x.shape[1]))
    assert walks(hostile_sums, array) == 2
    found = computed(hostile_sums, array), jax.jit(hostile_sums)(x)
    jz.set_memory_budget(before)
    return found


@pytest.mark.parametrize("kind", HOSTILE)
def test_infinities_and_nan_are_those_of_jax(kind, of_hostile):
    first = [*HOSTILE].index(kind) * COLUMNS
    for got, wanted in zip(*of_hostile, strict=True):
        if kind != "near the limit" or got.ndim == 1:  # a product of the gradient is infinite only in float32
            columns = np.s_[..., first : first + COLUMNS]
            np.testing.assert_allclose(got[columns], wanted[columns], rtol=1e-5, atol=1e-5)


INFINITE = {
    "a factor": lambda x, y: jnp.sum((x - x.mean(0)) * jnp.where(y > 3, INF, y), axis=0),
    "what is subtracted": lambda x, y: jnp.sum((x - x.mean(0) * INF) * y, axis=0),
}


@pytest.mark.parametrize("name", INFINITE)
def test_products_with_an_infinity_are_not_finite_where_those_of_jax_are_not(name):
    array, other = stored(X), stored(Y)
    assert walks(INFINITE[name], array, other) == 1
    got, wanted = computed(INFINITE[name], array, other), jax.jit(INFINITE[name])(X, Y)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))
    assert not np.isfinite(got).all()


@pytest.mark.parametrize("exponent", [150, 160, 175, 200, 300])
def test_squares_of_64_bits_that_overflow_are_infinite(exponent, x64):
    x = X.astype("float64") * 10.0**exponent
    np.testing.assert_allclose(computed(lambda x: jnp.var(x, axis=0), stored(x)), jnp.var(x, axis=0), rtol=1e-14)


# --- as everything else ---------------------------------------------------------------------------


def loss(w, x):
    return jnp.mean((normed(x) @ w - 1.0) ** 2)


def test_second_derivatives():
    def penalty(x):
        return jnp.sum(jnp.sin(jax.grad(lambda x: jnp.sum(normed(x) * Y))(x)) * Z)

    assert_close(computed(jax.grad(penalty), stored(X)), jax.jit(jax.grad(penalty))(X), 20)


def test_a_planned_step_with_a_layer_norm_reads_the_data_twice():
    x, w = stored(X), jnp.linspace(-1.0, 1.0, COLUMNS)
    step = jz.jit(jax.value_and_grad(loss))
    step(w, x)
    with jz.io_cost() as cost:
        got = step(w, x)
    assert cost.blocks_read == 30
    jax.tree.map(lambda a, b: assert_close(np.asarray(a), b, 4), got, jax.value_and_grad(loss)(w, X))
