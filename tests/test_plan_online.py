"""A sum of exponentials does not wait for the maximum that is subtracted: softmax, logsumexp, attention, entropies."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jask_zarr as jz
from helpers import assert_close, in_memory, is_disk

ROWS, COLUMNS = 600, 8
RNG = np.random.default_rng(0)
X = (RNG.standard_normal((ROWS, COLUMNS)) * 20).astype("float32")
W = RNG.standard_normal((ROWS, COLUMNS)).astype("float32")
Q, K, V = (RNG.standard_normal((n, 8)).astype("float32") for n in (24, ROWS, ROWS))
LABELS = RNG.integers(ROWS, size=COLUMNS)
CHUNKS = {"even": (40, COLUMNS), "uneven": (37, 3)}


@pytest.fixture(autouse=True)
def _small_budget():
    """An axis of `ROWS` does not fit."""
    jz.set_memory_budget("12kB")


def stored(values, chunks="even"):
    return jz.DiskArray.from_numpy(np.asarray(values), chunks=CHUNKS[chunks])


def computed(function, *arrays):
    return jax.tree.map(in_memory, jz.lift(function)(*arrays), is_leaf=is_disk)


def walks(function, *arrays):
    """Passes that read the last of the arrays."""
    plan = jz.explain(function, *arrays).plan
    return sum(any(stream.version[0] == plan.program.inputs[-1] for stream in p.streams) for p in plan.passes)


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / 3, axis=-1) @ v


def masked(q, k, v):
    scores = jnp.where(jnp.arange(ROWS) < jnp.arange(24)[:, None] * 20, q @ k.T, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ v


def heads(q, k, v):
    """Two heads, one sequence."""
    q, k, v = (a.reshape(1, -1, 2, 4) for a in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v)


def cross_entropy(x):
    return optax.softmax_cross_entropy_with_integer_labels(x.T, LABELS).mean()


def cross_entropy_of_weights(x, w):
    return -jnp.sum(jax.nn.log_softmax(x, axis=0) * w)


def own_maximum(x):
    """As many write it: no stop_gradient, and the numerator at full shape."""
    m = jnp.max(x, axis=0)
    return jnp.exp(x - m) / jnp.sum(jnp.exp(x - m), axis=0)


def softmax_of_maximum_of_all(x):
    return jnp.exp(x - jnp.max(x)) / jnp.sum(jnp.exp(x - jnp.max(x)), axis=0)


# function, operands, walks
ONE_WALK_LESS = {
    "softmax": (lambda x: jax.nn.softmax(x, axis=0), (X,), 2),
    "log_softmax": (lambda x: jax.nn.log_softmax(x, axis=0), (X,), 2),
    "own maximum": (own_maximum, (X,), 2),
    "maximum of all": (softmax_of_maximum_of_all, (X,), 2),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=0), (X,), 1),
    "logsumexp of all": (jax.nn.logsumexp, (X,), 1),
    "weighted logsumexp": (lambda x, w: jax.nn.logsumexp(x, axis=0, b=jnp.abs(w)), (X, W), 1),
    "with its sign": (lambda x, w: jax.nn.logsumexp(x, axis=0, b=w, return_sign=True), (X, W), 1),
    "expectation": (lambda x, w: jnp.sum(jax.nn.softmax(x, axis=0) * w / 3, axis=0), (X, W), 1),
    "expectation by a product": (lambda x, w: jax.nn.softmax(x, axis=0).T @ w, (X, W), 1),
    "vmapped": (jax.vmap(jax.nn.logsumexp, 1), (X,), 1),
    "cross-entropy and its gradient": (jax.value_and_grad(cross_entropy), (X,), 2),
    "gradient of an expectation": (jax.grad(lambda x, w: jnp.sum(jax.nn.softmax(x, axis=0) * w)), (X, W), 2),
    "gradient of log_softmax": (jax.grad(cross_entropy_of_weights), (X, W), 2),
    "jvp of logsumexp": (lambda x, w: jax.jvp(jax.nn.logsumexp, (x,), (w,)), (X, W), 1),
    "attention": (attention, (Q, K, V), 1),
    "masked attention": (masked, (Q, K, V), 1),
    "heads": (heads, (Q, K, V), 1),
}
AS_MANY = {
    "sum of squares": (lambda x: jnp.sum(jax.nn.softmax(x, axis=0) ** 2), (X,), 2),
    "entropy": (lambda x: -jnp.sum(jax.nn.softmax(x, axis=0) * jax.nn.log_softmax(x, axis=0), axis=0), (X,), 2),
    "gradient of a sum of squares": (jax.grad(lambda x: jnp.sum(jax.nn.softmax(x, axis=0) ** 2)), (X,), 3),
    "minus a mean": (lambda x: jnp.sum(jnp.exp((x - x.mean(0)) / 40), axis=0), (X,), 2),
    "the maximum of another": (lambda x, w: jnp.sum(jnp.exp(x - jnp.max(w) * 20), axis=0), (X, W), 1),
    "times its rank": (lambda x: jnp.sum(jnp.exp(x - x.max(0)) * (x == x.max(0)), axis=0), (X,), 2),
}
ALL = ONE_WALK_LESS | AS_MANY


@pytest.mark.parametrize("chunks", ["even", pytest.param("uneven", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ALL)
def test_no_walk_more_than_needed_and_the_values_of_jax(name, chunks):
    function, operands, count = ALL[name]
    arrays = [stored(a, chunks) for a in operands]
    if operands[0] is Q:
        jz.set_memory_budget("40kB")  # one tile of the scores of all queries
    if chunks == "even":
        assert walks(function, *arrays) == count
    got = computed(function, *arrays)
    jax.tree.map(lambda a, b: assert_close(a, b, 4), got, jax.jit(function)(*operands))


def test_each_chunk_is_read_once_for_logsumexp_and_twice_for_softmax(tmp_path):
    a = stored(X)
    with jz.io_cost() as cost:
        jax.block_until_ready(jz.logsumexp(a, axis=0) + 0)
    assert cost.blocks_read == 15
    with jz.io_cost() as cost:
        jz.softmax(a, axis=0).save(tmp_path / "softmax", chunks=CHUNKS["even"])
    assert cost.blocks_read == 30


# --- infinities and NaN ---------------------------------------------------------------------------

HOSTILE = {
    "a tile of -inf": lambda x: x.at[:200].set(-jnp.inf),
    "-inf up to the last": lambda x: x.at[:-1].set(-jnp.inf),
    "nothing but -inf": lambda x: x.at[:, 1].set(-jnp.inf),
    "far below zero after -inf": lambda x: (x - 1e4).at[:300].set(-jnp.inf),
    "inf at the end": lambda x: x.at[-1, 2].set(jnp.inf),
    "inf at the beginning": lambda x: x.at[0, 2].set(jnp.inf),
    "inf and -inf": lambda x: x.at[0, 2].set(jnp.inf).at[-1, 2].set(-jnp.inf),
    "NaN": lambda x: x.at[300, 3].set(jnp.nan),
    "NaN and inf": lambda x: x.at[300, 3].set(jnp.nan).at[0, 3].set(jnp.inf).at[500, 3].set(-jnp.inf),
    "rising": lambda x: x + jnp.arange(ROWS)[:, None] * 50,
    "falling": lambda x: x - jnp.arange(ROWS)[:, None] * 50,
    "near the limit": lambda x: jnp.sign(x) * 3e38,
    "zeros of both signs": lambda x: x * 0,
}


def statistics(x):
    """Each column by itself."""
    weights = jax.nn.softmax(x, axis=0)
    gradient = jax.grad(lambda x: jnp.sum(jax.nn.logsumexp(x, axis=0)))(x)
    sums = jax.nn.logsumexp(x, axis=0), jnp.sum(weights * W[:, :1], axis=0), W.T @ weights
    return weights, jax.nn.log_softmax(x, axis=0), gradient, *sums


@pytest.fixture(scope="module")
def hostile_statistics():
    """Of all kinds side by side: on disk, and in memory."""
    x = jnp.concatenate([spoil(jnp.asarray(X)) for spoil in HOSTILE.values()], axis=1)
    before = jz.memory_budget()
    jz.set_memory_budget("200kB")
    array = jz.DiskArray.from_numpy(np.asarray(x), chunks=(40, x.shape[1]))
    assert walks(statistics, array) == 2
    found = computed(statistics, array), jax.jit(statistics)(x)
    jz.set_memory_budget(before)
    return found


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=HOSTILE)
def test_infinities_and_nan_are_those_of_jax(number, hostile_statistics):
    columns = np.s_[..., number * COLUMNS : (number + 1) * COLUMNS]
    for got, wanted in zip(*hostile_statistics, strict=True):
        np.testing.assert_allclose(got[columns], wanted[columns], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_that_do_not_fit_a_short_type_are_divided_in_a_longer_one(dtype):
    scores, values = jnp.zeros((ROWS, COLUMNS), dtype), jnp.full((ROWS, COLUMNS), 1000, dtype)
    got = computed(lambda x, v: jax.nn.softmax(x, axis=0).T @ v, stored(np.asarray(scores)), stored(np.asarray(values)))
    assert got.dtype == scores.dtype
    np.testing.assert_allclose(got.astype("float32"), 1000, rtol=1e-2)


@pytest.mark.parametrize("by", ["sum", "product"])
def test_factors_near_the_limit_do_not_overflow_before_they_are_divided(by):
    x, f = np.zeros((ROWS, COLUMNS), "float32"), np.full((ROWS, COLUMNS), 1e38, "float32")
    mean = {
        "sum": lambda x, f: jnp.sum(jax.nn.softmax(x, axis=0) * f, axis=0),
        "product": lambda x, f: jax.nn.softmax(x, axis=0).T @ f,
    }
    np.testing.assert_allclose(computed(mean[by], stored(x), stored(f)), 1e38, rtol=1e-5)


def test_with_64_bits_the_sum_is_as_exact(x64):
    x = X.astype("float64")
    np.testing.assert_allclose(computed(jax.nn.logsumexp, stored(x)), jax.nn.logsumexp(x), rtol=1e-14)


# --- as everything else ---------------------------------------------------------------------------


def test_second_derivatives():
    def penalty(x):
        return jnp.sum(jnp.sin(jax.grad(lambda x: jnp.sum(jax.nn.logsumexp(x / 20, axis=0)))(x)) * W)

    assert_close(computed(jax.grad(penalty), stored(X)), jax.jit(jax.grad(penalty))(X), 20)


def test_a_planned_step_reads_the_logits_twice():
    a, step = stored(X), jz.jit(jax.value_and_grad(cross_entropy))
    step(a)
    with jz.io_cost() as cost:
        loss, gradient = step(a)
    assert cost.blocks_read == 30
    want = jax.value_and_grad(cross_entropy)(X)
    assert_close(loss, want[0])
    assert_close(gradient.to_numpy(allow_large=True), want[1])


def test_the_bits_do_not_depend_on_threads():
    arrays = [stored(a) for a in (Q, K, V)]

    def bits(threads):
        with ThreadPoolExecutor(threads) as pool, jz.set_executor(pool, workers=threads):
            return computed(attention, *arrays).tobytes()

    assert len({bits(threads) for threads in (1, 2, 8)}) == 1


def test_an_axis_that_fits_is_computed_as_it_is_written():
    jz.set_memory_budget("64MB")
    (p,) = jz.explain(own_maximum, stored(X)).plan.passes
    names = {step.equation.name for step in p.sweep.steps}
    assert names.isdisjoint({"exp_reduce_sum", "exp_dot_general"})
