"""Every primitive has a rule or is whole on purpose; those with a rule stream, and agree with JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jask_zarr as jz
from jask_zarr import _compat
from jask_zarr._plan import tiles
from jask_zarr._plan.program import CALLS
from jask_zarr._plan.rules import RULES, WHOLE_ON_PURPOSE

# Not functions of arrays: communication between devices, callbacks, tokens, hardware, JAX's own plumbing.
OUTSIDE = """
after_all all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start
all_gather_start all_to_all all_to_all_done all_to_all_start axis_index broadcast_to call call_exported check
composite core_map create_linear create_token cudnn_fusion custom_lin custom_partitioning custom_vmap_call dce_sink
debug_callback debug_print dim_as_value dimension_size disk_callback dot_product_attention_bwd
dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd eq_to eval_jaxpr ffi_call from_edtype
global_array_to_host_local_array host_local_array_to_global_array inspect_sharding io_callback iota_2x32_shape le_to
linear_call lt_to pbroadcast pbroadcast_done pbroadcast_dynamic pbroadcast_start pin platform_index pmax pmin
polynomial ppermute ppermute_done ppermute_start precv preduced psend psum psum_done psum_invariant
psum_invariant_start psum_start pure_callback ragged_all_to_all reduce_scatter reduce_scatter_done
reduce_scatter_start reduced_vary_cast reduced_vary_cast_p relayout remat_opt run_state scaled_matmul
scaled_matmul_wrapper shape_assertion shard_map stage tie to_edtype unpin unreachable unreduced_pmax unreduced_pmin
unreduced_psum unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast
vary_unreduced_cast_p with_memory_space_constraint
""".split()
FLATTENED = {*CALLS, "scan", "cond"}


def test_every_primitive_of_this_jax_is_ruled_or_whole_on_purpose():
    known = {*RULES, *WHOLE_ON_PURPOSE, *OUTSIDE, *FLATTENED}
    assert sorted(_compat.primitive_names() - known) == []


def test_no_primitive_is_both():
    assert sorted(WHOLE_ON_PURPOSE & RULES.keys()) == []


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 1024)


RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(5, 3, 9, 8)).astype("float32")
KERNEL = RNG.normal(size=(4, 3, 3, 2)).astype("float32")
MATRIX = RNG.normal(size=(9, 7)).astype("float32")
SQUARES = (RNG.normal(size=(5, 3, 3)) + 4 * np.eye(3)).astype("float32")
ROWS = np.array([3, 0, 8, 3, -1])


def convolution(strides, padding, dilation=(1, 1)):
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, rhs_dilation=dilation)


def window(function, init, dims, strides, padding):
    return lambda x: lax.reduce_window(x, init, function, dims, strides, padding)


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / 3, axis=-1) @ v


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


# name: function, operands, differentiable
CASES = {
    "conv same": (convolution((1, 1), "SAME"), (IMAGES, KERNEL), True),
    "conv valid": (convolution((1, 1), "VALID"), (IMAGES, KERNEL), True),
    "conv strided": (convolution((2, 3), "SAME"), (IMAGES, KERNEL), True),
    "conv dilated": (convolution((1, 1), ((2, 1), (0, 3)), (2, 1)), (IMAGES, KERNEL), True),
    "conv transposed": (
        lambda x, k: (
            lax.conv_transpose(x, k.T, (2, 2), "SAME", dimension_numbers=("NCHW", "HWIO", "NCHW")) if k.ndim == 4 else x
        ),
        (IMAGES, KERNEL),
        False,
    ),
    "max pool": (window(lax.max, -jnp.inf, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), (IMAGES,), True),
    "max pool overlapping": (window(lax.max, -jnp.inf, (1, 1, 3, 2), (1, 1, 1, 1), "SAME"), (IMAGES,), True),
    "sum pool": (window(lax.add, 0.0, (1, 1, 3, 3), (1, 1, 2, 1), "SAME"), (IMAGES,), True),
    "cumsum": (lambda x: jnp.cumsum(x, 0), (MATRIX,), True),
    "cumprod": (lambda x: jnp.cumprod(x, 1), (MATRIX,), True),
    "cummax": (lambda x: lax.cummax(x, 0), (MATRIX,), True),
    "sort": (lambda x: jnp.sort(x, 0), (MATRIX,), True),
    "argsort": (lambda x: jnp.argsort(x, 1), (MATRIX,), False),
    "top k": (lambda x: lax.top_k(x, 3), (MATRIX,), False),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), (MATRIX,), True),
    "rfft": (lambda x: jnp.abs(jnp.fft.rfft(x, axis=0)), (MATRIX,), True),
    "reverse": (lambda x: x[::-1, 1:] * 2, (MATRIX,), True),
    "look-up": (lambda x: x[ROWS], (MATRIX,), True),
    "rows set": (lambda x: x.at[ROWS].set(7.0), (MATRIX,), True),
    "rows added": (lambda x: x.at[ROWS].add(x[:5]), (MATRIX,), True),
    "rows multiplied": (lambda x: x.at[ROWS[:3]].multiply(2.0), (MATRIX,), True),
    "rows compared": (lambda x: x.at[ROWS].max(0.5), (MATRIX,), False),
    "take along axis": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1)[:, :3], 1), (MATRIX,), True),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), constant_values=2.0), (MATRIX,), True),
    "pad interior": (lambda x: lax.pad(x, 1.0, ((1, -1, 1), (0, 0, 2))), (MATRIX,), True),
    "roll": (lambda x: jnp.roll(x, 3, 0), (MATRIX,), True),
    "tile": (lambda x: jnp.tile(x, (2, 3)), (MATRIX,), True),
    "unstack": (lambda x: jnp.unstack(x, axis=1)[2], (MATRIX,), True),
    "split": (lambda x: jnp.split(x, 3)[1], (MATRIX,), True),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.transpose(0, 2, 1)), (SQUARES,), True),
    "solve": (lambda x: jnp.linalg.solve(x, x[..., 0:1] + 1), (SQUARES,), True),
    "inverse": (jnp.linalg.inv, (SQUARES,), True),
    "determinant": (jnp.linalg.det, (SQUARES,), True),
    "qr": (lambda x: jnp.linalg.qr(x)[1], (SQUARES,), True),
    "svd": (lambda x: jnp.linalg.svd(x, compute_uv=False), (SQUARES,), False),
    "eigh": (lambda x: jnp.linalg.eigvalsh(x + x.transpose(0, 2, 1)), (SQUARES,), False),
    "attention": (attention, (MATRIX, MATRIX + 1, MATRIX * 2), True),
    "attention with itself": (lambda x: attention(x, x, x), (MATRIX,), True),
    "layer norm": (layer_norm, (MATRIX,), True),
    "special functions": (
        lambda x: jax.scipy.special.gammaln(jnp.abs(x) + 1) + jax.scipy.special.erf(x),
        (MATRIX,),
        True,
    ),
    "scan": (lambda x: lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), x[0], x), (MATRIX,), True),
    "while": (
        lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1],
        (MATRIX,),
        False,
    ),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (MATRIX,), True),
    "switch": (lambda x: lax.switch(2, [jnp.sin, jnp.cos, jnp.tanh], x), (MATRIX,), True),
    "random": (lambda x: x + jax.random.normal(jax.random.key(3), x.shape), (MATRIX,), True),
    "dropout": (lambda x: jnp.where(jax.random.bernoulli(jax.random.PRNGKey(0), 0.5, x.shape), x, 0), (MATRIX,), True),
    "random 16 bits": (lambda x: x + jax.random.uniform(jax.random.key(1), x.shape, "float16"), (MATRIX,), False),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int32) >> 3, (MATRIX,), False),
}
BUDGETS = {"roomy": 1 << 20, "tight": None}


def chunks_of(values):
    return tuple(max(1, n // 2) for n in values.shape)


def smallest_budget(run):
    """Run within the least budget that is not refused: the hardest case."""
    for budget in (8000, 16_000, 32_000, 64_000):
        jz.set_memory_budget(budget)
        try:
            return run()
        except jz.errors.MemoryBudgetError:
            continue
    raise AssertionError("no budget was enough")


def assert_same(got, want, tolerance=2e-4):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        values = np.asarray(g.to_numpy(allow_large=True) if isinstance(g, jz.DiskArray) else g)
        assert values.dtype == w.dtype
        np.testing.assert_allclose(values, np.asarray(w), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    function, operands, _ = CASES[name]
    want = function(*map(jnp.asarray, operands))

    def run():
        arrays = [jz.DiskArray.from_numpy(v, chunks=chunks_of(v)) for v in operands]
        got = jz.lift(function)(*arrays)
        jz.compute(got)
        return got

    assert_same(smallest_budget(run), want)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_gradient(name):
    function, operands, _ = CASES[name]

    def total(*arrays):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(*arrays)))

    want = jax.grad(total, tuple(range(len(operands))))(*map(jnp.asarray, operands))
    planned = jz.jit(jax.grad(total, tuple(range(len(operands)))))

    def run():
        return planned(*(jz.DiskArray.from_numpy(v, chunks=chunks_of(v)) for v in operands))

    assert_same(smallest_budget(run), want, tolerance=2e-3)


@pytest.mark.parametrize("chunks", [(1, 7), (4, 3), (9, 7)])
def test_random_numbers_do_not_depend_on_the_tiles(chunks, small_tiles):
    a = jz.DiskArray.from_numpy(MATRIX, chunks=chunks)
    noise = jz.lift(lambda x: jax.random.normal(jax.random.key(0), x.shape) + 0 * x)(a)
    np.testing.assert_array_equal(noise.to_numpy(), np.asarray(jax.random.normal(jax.random.key(0), MATRIX.shape)))


def test_a_loop_over_large_arrays_streams():
    x = jz.DiskArray.from_numpy(RNG.normal(size=(6, 1 << 17)).astype("float32"), chunks=(1, 1 << 14))
    jz.set_memory_budget("2MB")
    final, steps = jz.lift(lambda x: lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(x.shape[1]), x))(x)
    want = lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(x.shape[1]), jnp.asarray(x.to_numpy(allow_large=True)))
    assert_same((final, steps), want)


@pytest.mark.parametrize("times", [(2, 1), (1, 3), (2, 2), (40, 1), (0, 2)])
def test_copies_of_a_large_array_stream(times):
    values = np.random.default_rng(0).normal(size=(520, 512)).astype("float32")
    jz.set_memory_budget("2MB" if max(times) > 16 else "500kB")
    got = jz.lift(lambda x: jnp.tile(x, times))(jz.DiskArray.from_numpy(values, chunks=(50, 100)))
    np.testing.assert_array_equal(got.to_numpy(allow_large=True), np.tile(values, times))
