"""`jask_zarr.random` draws what `jax.random` draws, whatever the tiles, and nothing before it is needed."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

import jask_zarr as jz
from jask_zarr._plan import tiles

SHAPE = (32, 24)
KEYS = {"typed": jax.random.key(5), "raw": jax.random.PRNGKey(5)}
VECTOR = np.linspace(0.1, 0.9, 24).astype("float32")
DRAWS = {
    "bits": (SHAPE,),
    "uniform": (SHAPE,),
    "randint": (SHAPE, 3, 17),
    "normal": (SHAPE,),
    "truncated_normal": (-1.0, 2.0, SHAPE),
    "lognormal": (0.5, SHAPE),
    "multivariate_normal": (np.arange(3.0, dtype="float32"), np.eye(3, dtype="float32") + 0.1, (32,)),
    "bernoulli": (VECTOR, SHAPE),
    "rademacher": (SHAPE,),
    "categorical": (np.log(VECTOR), -1, (32,)),
    "geometric": (0.3, SHAPE),
    "exponential": (SHAPE,),
    "gumbel": (SHAPE,),
    "laplace": (SHAPE,),
    "logistic": (SHAPE,),
    "cauchy": (SHAPE,),
    "rayleigh": (2.0, SHAPE),
    "maxwell": (SHAPE,),
    "double_sided_maxwell": (0.5, 2.0, SHAPE),
    "pareto": (2.0, SHAPE),
    "triangular": (0.0, 0.5, 1.0, SHAPE),
    "wald": (1.0, SHAPE),
    "weibull_min": (1.0, 2.0, SHAPE),
    "choice": (30, SHAPE),
    "permutation": (32,),
}
# The squares of three numbers are summed: XLA does so in another order in another loop.
ROUNDED = {"maxwell", "double_sided_maxwell"}
GRIDS = {"one tile": (1 << 20, None), "rows": (2000, (8, 24)), "uneven": (1000, (12, 9))}


@pytest.fixture
def chunks(monkeypatch):
    """Tiles of at most so many bytes, and the chunks of what is read."""
    monkeypatch.setattr(tiles, "TILE_BYTES", 1600)
    return (8, 12)


def assert_drawn(drawn, name, key, *args, **kwargs):
    """It equals what JAX draws."""
    want = np.asarray(getattr(jax.random, name)(key, *args, **kwargs))
    found = drawn.to_numpy()
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    if name in ROUNDED:
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, want)


def test_every_function_that_draws_is_in_the_table():
    keys = {"PRNGKey", "clone", "fold_in", "key", "key_data", "key_impl", "split", "wrap_key_data"}
    assert set(jz.random.__all__) == keys | DRAWS.keys()
    assert all(getattr(jz.random, name) is getattr(jax.random, name) for name in keys)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", ["normal", "randint"])
def test_on_any_grid(name, grid, monkeypatch):
    tile_bytes, chunks = GRIDS[grid]
    monkeypatch.setattr(tiles, "TILE_BYTES", tile_bytes)
    drawn = getattr(jz.random, name)(KEYS["typed"], *DRAWS[name], chunks=chunks)
    assert_drawn(drawn, name, KEYS["typed"], *DRAWS[name])


def rest_by_request(names, cut):
    """All of a table, of which a default run takes the cut."""
    return [pytest.param(name, marks=() if name in cut else pytest.mark.soak) for name in names]


CUT = {
    "bits",
    "randint",
    "truncated_normal",
    "bernoulli",
    "categorical",
    "gumbel",
    "double_sided_maxwell",
    "permutation",
}


@pytest.mark.parametrize("name", rest_by_request(DRAWS, CUT))
def test_the_numbers_are_those_of_jax(name, chunks):
    drawn = getattr(jz.random, name)(KEYS["typed"], *DRAWS[name])
    assert "pending" in repr(drawn)
    assert_drawn(drawn, name, KEYS["typed"], *DRAWS[name])


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_any_dtype_from_keys_of_both_kinds(kind, dtype, chunks):
    drawn = jz.random.normal(KEYS[kind], SHAPE, dtype)
    assert_drawn(drawn, "normal", KEYS[kind], SHAPE, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_bits_of_any_width(dtype, chunks):
    assert_drawn(jz.random.bits(KEYS["raw"], SHAPE, dtype), "bits", KEYS["raw"], SHAPE, dtype)


@pytest.mark.parametrize("dtype", ["float64", "uint64"])
def test_64_bits(dtype, x64, chunks):
    name = "normal" if dtype == "float64" else "bits"
    assert_drawn(getattr(jz.random, name)(KEYS["typed"], SHAPE, dtype), name, KEYS["typed"], SHAPE, dtype)


def test_another_generator_draws_whole():
    key = jax.random.key(5, impl="rbg")
    assert_drawn(jz.random.normal(key, SHAPE), "normal", key, SHAPE)
    jz.set_memory_budget(2000)
    with pytest.raises(jz.errors.MemoryBudgetError, match="bytes are needed"):
        jz.random.normal(key, SHAPE).to_numpy(allow_large=True)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_rank_0_is_an_ordinary_array(impl):
    key = jax.random.key(5, impl=impl)
    drawn = jz.random.normal(key)
    assert isinstance(drawn, jax.Array)
    assert drawn == jax.random.normal(key)


def test_it_is_stored_if_it_is_said_where(tmp_path, chunks):
    in_scratch = jz.random.normal(KEYS["typed"], SHAPE, chunks=(10, 5))
    saved = jz.random.normal(KEYS["typed"], SHAPE, path=tmp_path / "noise.zarr", chunks=(10, 10), shards=(20, 20))
    assert (in_scratch.chunks, saved.chunks, saved.to_zarr().shards) == ((10, 5), (10, 10), (20, 20))
    for array in (in_scratch, saved):
        assert_drawn(array, "normal", KEYS["typed"], SHAPE)


def test_an_array_of_any_size_costs_nothing_before_it_is_needed():
    jz.set_memory_budget(20_000)
    noise = jz.random.bits(KEYS["typed"], (10**6, 10**7))
    high, low = divmod(10**13 - 1, 2**32)
    first, second = threefry_2x32(jax.random.key_data(KEYS["typed"]), jnp.array([high, low], "uint32"))
    assert noise[-2:, -3:].to_numpy()[-1, -1] == first ^ second


def test_parameters_may_be_on_disk(chunks):
    logits = jz.DiskArray.from_numpy(np.outer(np.arange(9), VECTOR).astype("float32"), chunks=(4, 24))
    p = jz.DiskArray.from_numpy(VECTOR, chunks=(5,))
    assert_drawn(jz.random.bernoulli(KEYS["raw"], p, SHAPE), "bernoulli", KEYS["raw"], VECTOR, SHAPE)
    assert_drawn(jz.random.categorical(KEYS["raw"], logits), "categorical", KEYS["raw"], logits.to_numpy())


@pytest.mark.parametrize("independent", [False, True])
def test_rows_are_shuffled(independent, chunks):
    values = np.arange(32 * 3, dtype="int32").reshape(32, 3)
    rows = jz.DiskArray.from_numpy(values, chunks=(5, 2))
    shuffled = jz.random.permutation(KEYS["typed"], rows, independent=independent)
    assert_drawn(shuffled, "permutation", KEYS["typed"], values, independent=independent)


@pytest.mark.parametrize("replace", [False, True])
def test_rows_are_chosen(replace, chunks):
    values = np.arange(32 * 3, dtype="int32").reshape(32, 3)
    rows = jz.DiskArray.from_numpy(values, chunks=(5, 2))
    p = np.arange(32) / np.arange(32).sum()
    chosen = jz.random.choice(KEYS["typed"], rows, (12,), replace=replace, p=p)
    assert_drawn(chosen, "choice", KEYS["typed"], jnp.asarray(values), (12,), replace=replace, p=p)


# ------------------------------------------------------------------ in transformations
VALUES = np.linspace(-1, 1, 32 * 24).reshape(SHAPE).astype("float32")


def dropout(random, xp, x, key):
    kept = random.bernoulli(key, 0.8, x.shape)
    return xp.sum(xp.where(kept, x / 0.8, 0) ** 2)


def on_disk(chunks):
    return jz.DiskArray.from_numpy(VALUES, chunks=chunks or SHAPE)


def loss(x, key):
    return dropout(jz.random, jz, x, key)


DROPPED = {
    "grad": jax.grad(loss),
    "jit of grad": jax.jit(jax.grad(loss)),
    "grad of jit": jax.grad(jax.jit(loss)),
    "jz.jit of grad": jz.jit(jax.grad(loss)),
    "jz.jit of plain code": jz.jit(jax.grad(lambda x, key: dropout(jax.random, jnp, x, key))),
    "lift": jz.lift(jax.grad(loss)),
}


@pytest.mark.parametrize("gradient", DROPPED)
def test_the_mask_is_the_same_forwards_and_backwards(gradient, chunks):
    for key in KEYS.values():
        want = jax.grad(lambda x, key=key: dropout(jax.random, jnp, x, key))(jnp.asarray(VALUES))
        found = DROPPED[gradient](on_disk(chunks), key)
        np.testing.assert_allclose(found.to_numpy(), want, rtol=1e-6)


def test_noise_has_a_gradient_in_its_parameters(chunks):
    def spread(random, xp, low, scale):
        return xp.sum(random.uniform(KEYS["typed"], SHAPE, minval=low, maxval=low + scale) ** 2)

    found = jax.grad(lambda *p: spread(jz.random, jz, *p), (0, 1))(0.5, 2.0)
    want = jax.grad(lambda *p: spread(jax.random, jnp, *p), (0, 1))(0.5, 2.0)
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_mapped_over_keys():
    keys = jz.random.split(KEYS["typed"], 3)
    found = jax.vmap(lambda key: jz.random.normal(key, (5, 4)))(keys)
    np.testing.assert_array_equal(found.to_numpy(), jax.vmap(lambda key: jax.random.normal(key, (5, 4)))(keys))


def test_another_key_does_not_trace_again():
    traces = []

    @jz.jit
    def step(x, key):
        traces.append(1)
        return jnp.sum(x * jax.random.normal(key, x.shape))

    x = on_disk((10, 10))
    sums = {float(step(x, key)) for key in jax.random.split(KEYS["typed"], 4)}
    assert (len(sums), len(traces)) == (4, 1)


# ------------------------------------------------------------------ memory
PEAK = """
import resource, jax, jask_zarr as jz
jz.set_memory_budget({budget})
key = jax.random.key(0)
float(jz.sum(jz.random.{draw}(key, {small})))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
float(jz.sum(jz.random.{draw}(key, {large})))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("draw", rest_by_request(["normal", "rademacher"], {"normal"}))
def test_numbers_are_never_whole_in_memory(draw):
    budget, large = 32_000_000, (4096, 4096)  # 64 MiB; with XLA's workspace ten times as much
    program = PEAK.format(budget=budget, draw=draw, small=(64, 64), large=large)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.1 * budget + 64_000_000
