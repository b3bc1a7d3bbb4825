"""Every op gives what `jax.numpy` gives: values, dtype, shape, and the kind of array."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import helpers
import jask_zarr as jz
import jask_zarr.numpy
from helpers import GRIDS, REFERENCE, SMALLEST_BUDGET, Op, check, check_in_tiles, disk, in_memory
from table import CORE, OPS, rows


@pytest.mark.parametrize("op", OPS, ids=str)
def test_op(op: Op) -> None:
    check(op, "forward")


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("op", CORE, ids=str)
def test_op_cut_into_tiles(op: Op, grid: str) -> None:
    check_in_tiles(op, "forward", grid)


@pytest.mark.parametrize("op", rows("add", "softmax", "T", "matmul_batched", "concatenate"), ids=str)
def test_a_small_budget_does_cut(op: Op) -> None:
    jz.set_memory_budget(2 * SMALLEST_BUDGET)
    plan = jz.explain(op.call(jz, *op.on_disk(grid="thin"))).plan
    assert max(step.tiles for step in plan.passes) > 1


INTEGER_OPS = [(op, "int32") for op in OPS if "int32" in op.dtypes]
BFLOAT16_OPS = [(op, "bfloat16") for op in CORE if "bfloat16" in op.dtypes]


@pytest.mark.parametrize(("op", "dtype"), INTEGER_OPS + BFLOAT16_OPS, ids=str)
def test_op_in_dtype(op: Op, dtype: str) -> None:
    check(op, "forward", dtype)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("op", [op for op in CORE if "float64" in op.dtypes], ids=str)
def test_op_in_float64(op: Op) -> None:
    check(op, "forward", "float64", "mixed")


def test_float64_by_the_context_manager() -> None:
    """The setting is that of one thread; tiles are computed in others."""
    values = np.random.default_rng(0).normal(size=(40, 20))
    with jax.enable_x64(True):
        jz.set_memory_budget(20_000)
        a = jz.DiskArray.from_numpy(values, chunks=(3, 4))
        pending = jz.exp(a)
        gradient = jax.grad(lambda a: jz.sum(jz.square(a)))(a)
        np.testing.assert_allclose(float(jz.sum(a)), values.sum(), rtol=1e-13)
        np.testing.assert_array_equal(in_memory(gradient), 2 * values)
    np.testing.assert_allclose(in_memory(pending), np.exp(values), rtol=1e-13)


# ---------------------------------------------------------------------------------- the namespace
def test_every_public_op_is_listed() -> None:
    made = {n for n, v in vars(jz.numpy).items() if callable(v) and not n.startswith("_")}
    made -= {"Any", "Callable", "Iterator", "getitem", "lift"}
    assert made == set(jz.numpy.__all__)


@pytest.mark.parametrize("name", jz.numpy.__all__)
def test_op_keeps_the_documentation_of_jax(name: str) -> None:
    assert inspect.getdoc(getattr(jz.numpy, name))


def test_ordinary_arrays_stay_ordinary() -> None:
    x = jnp.linspace(-1, 1, 5)
    assert isinstance(jz.tanh(x), jax.Array)
    assert isinstance(jz.tanh(np.ones(3)), jax.Array)
    np.testing.assert_array_equal(jax.jit(jz.softmax)(x), jax.nn.softmax(x))
    np.testing.assert_array_equal(jax.vmap(jz.square)(x), jnp.square(x))


def test_methods_are_the_ops() -> None:
    values = np.arange(35, dtype=np.float32).reshape(7, 5)
    a = disk(values)
    for name in ("sum", "mean", "var", "std", "max", "min", "prod", "argmax", "argmin", "ptp"):
        actual, expected = getattr(a, name)(axis=1), getattr(jnp, name)(values, axis=1)
        helpers.assert_close(actual, expected)
    for got, want in [
        (a.reshape(5, 7), values.reshape(5, 7)),
        (a.reshape((5, 7)), values.reshape(5, 7)),
        (a.reshape(-1), values.reshape(-1)),
        (a.transpose(), values.T),
        (a.transpose(0, 1), values),
        (a.transpose((1, 0)), values.T),
        (a.T, values.T),
        (a.flatten(), values.ravel()),
        (a.swapaxes(0, 1), values.T),
        (a.astype("int32"), values.astype("int32")),
        (a.clip(3, 9), values.clip(3, 9)),
        (round(a / 3, 1), np.round(values / 3, 1)),
    ]:
        np.testing.assert_allclose(in_memory(got), want, rtol=1e-6)


def test_reflected_operators() -> None:
    values = np.arange(1, 8, dtype=np.int32)
    a = disk(values)
    for other in (2, np.int32(3), np.full(7, 5, np.int32), jnp.full(7, 4)):
        for operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or",
                         "xor", "lshift", "rshift"):  # fmt: skip
            forwards, backwards = f"__{operator}__", f"__r{operator}__"
            helpers.assert_same(getattr(a, forwards)(other), _apply(operator, values, other))
            helpers.assert_same(getattr(a, backwards)(other), _apply(operator, other, values))
    helpers.assert_same(np.full(7, 5, np.int32) - a, jnp.full(7, 5) - values)
    helpers.assert_same(jnp.full(7, 4) @ a.reshape(7, 1), jnp.full(7, 4) @ values.reshape(7, 1))
    helpers.assert_same(jnp.full(7, 4) < a, jnp.full(7, 4) < values)


def _apply(operator: str, left: object, right: object) -> jax.Array:
    left = jnp.asarray(left) if isinstance(left, np.ndarray) else left
    right = jnp.asarray(right) if isinstance(right, np.ndarray) else right
    if isinstance(left, jax.Array):
        return getattr(left, f"__{operator}__")(right)
    return getattr(right, f"__r{operator}__")(left)


def test_rows_are_iterated() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = list(disk(values))
    np.testing.assert_array_equal([in_memory(row) for row in rows], values)


# ---------------------------------------------------------------------------------- dtypes
@pytest.mark.parametrize("left", ["bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("right", ["bool", "int32", "uint16", "bfloat16", "float32"])
def test_promotion_is_that_of_jax(left: str, right: str) -> None:
    a, b = np.ones((2, 3), jnp.dtype(left)), np.ones(3, jnp.dtype(right))
    assert (disk(a) + disk(b)).dtype == (jnp.asarray(a) + jnp.asarray(b)).dtype


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "bfloat16", "float32"])
@pytest.mark.parametrize("scalar", [True, 2, 2.5, np.int32(2), np.float32(2), 1j])
def test_promotion_with_scalars_is_that_of_jax(dtype: str, scalar: object) -> None:
    a = np.ones((2, 3), jnp.dtype(dtype))
    assert (disk(a) * scalar).dtype == (jnp.asarray(a) * scalar).dtype
    assert (scalar * disk(a)).dtype == (scalar * jnp.asarray(a)).dtype


def test_complex() -> None:
    values = (np.arange(12) + 1j * np.arange(12)[::-1]).astype(np.complex64).reshape(3, 4)
    a, x = disk(values), jnp.asarray(values)
    helpers.assert_same(jz.conj(a) * a, jnp.conj(x) * x)
    helpers.assert_same(jz.real(a) + a.imag, x.real + x.imag)
    helpers.assert_same(jz.abs(a), jnp.abs(x))
    np.testing.assert_allclose(jz.sum(a), values.sum(), rtol=1e-6)
    np.testing.assert_allclose(in_memory(a @ a.T), values @ values.T, rtol=1e-5)


# ---------------------------------------------------------------------------------- errors
BAD_CALLS = {
    "shapes": lambda xp, a: xp.add(a, a[0, :3]),
    "transposed": lambda xp, a: a + a.T,
    "matmul": lambda xp, a: a @ a,
    "axis": lambda xp, a: xp.sum(a, axis=2),
    "axis_twice": lambda xp, a: xp.sum(a, axis=(0, 0)),
    "axis_twice_negative": lambda xp, a: xp.sum(a, axis=(1, -1)),
    "axis_float": lambda xp, a: xp.sum(a, axis=1.0),
    "argmax_axis": lambda xp, a: xp.argmax(a, axis=5),
    "reshape": lambda xp, a: a.reshape(6, 6),
    "concatenate": lambda xp, a: xp.concatenate([a, a.T]),
    "einsum": lambda xp, a: xp.einsum("ij,ik->j", a),
    "bits_of_floats": lambda xp, a: xp.bitwise_and(a, a),
    "squeeze": lambda xp, a: xp.squeeze(a, 0),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_raise_what_jax_raises_before_any_io(name: str) -> None:
    values = np.ones((7, 5), np.float32)
    call = BAD_CALLS[name]
    with pytest.raises((ValueError, TypeError, IndexError)) as expected:
        call(REFERENCE, jnp.asarray(values))
    with jz.io_cost() as cost, pytest.raises(expected.type):
        call(jz, disk(values))
    assert cost.blocks_read == 0


@pytest.mark.parametrize("index", [7, -8, (0, 5), (0, 0, 0), (..., ...), (0, 0, None, 0)])
def test_index_out_of_bounds(index: object) -> None:
    with pytest.raises(IndexError):
        disk(np.ones((7, 5), np.float32))[index]


def test_masks_on_disk_are_refused() -> None:
    a = disk(np.ones((7, 5), np.float32))
    with pytest.raises(TypeError, match=r"jz\.where"):
        a[a > 0]
    with pytest.raises(IndexError, match=r"\(6,\)"):
        a[np.ones(6, bool)]


# ---------------------------------------------------------------------------------- indexing
INDICES = [
    np.s_[2], np.s_[-1], np.s_[2:5], np.s_[:, 1], np.s_[..., 2], np.s_[::2, ::-1], np.s_[5:1:-2],
    np.s_[None], np.s_[:, None, 1:4], np.s_[3:3], np.s_[-3:, -2:], np.s_[1, 2], np.s_[[0, 6, -1]],
    np.s_[[]], np.s_[:, [1, 1]], np.s_[[1, 2], [3, 4]], np.s_[np.arange(7) > 3], np.s_[1:3, [0, 2]],
    np.s_[np.ones((7, 5), bool)], np.s_[np.array([[0, 1], [2, 3]])], np.s_[()], np.s_[np.int64(3)],
    np.s_[..., None], np.s_[-100:100],
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_index_is_that_of_numpy(index: object) -> None:
    values = np.arange(35, dtype=np.float32).reshape(7, 5)
    result = disk(values)[index]
    assert result.shape == values[index].shape
    np.testing.assert_array_equal(in_memory(result), values[index])


def test_a_window_reads_only_its_own_chunks() -> None:
    a = disk(np.arange(70, dtype=np.float32).reshape(14, 5), "thin")
    with jz.io_cost() as cost:
        in_memory(a[3:5, 1:4])
    assert cost.blocks_read == 6


def test_a_loop_over_windows_compiles_once() -> None:
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if "backend_compile" in event else None
    )
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    a = disk(values, "mixed")
    float(jz.sum(a[0:4] * 2))
    assert compiled
    compiled.clear()
    for start in range(1, 16):
        assert float(jz.sum(a[start : start + 4] * 2)) == values[start : start + 4].sum() * 2
    assert not compiled


def test_index_by_a_traced_number() -> None:
    values = np.arange(35, dtype=np.float32).reshape(7, 5)
    row = jax.jit(lambda a, i: a[i] * 2)(disk(values), 3)
    np.testing.assert_array_equal(in_memory(row), values[3] * 2)
