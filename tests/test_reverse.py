"""Reversed arrays: each tile is read from the other end, once, and whatever is made of it is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz

ROWS, COLUMNS = 1003, 12
VALUES = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
OTHER = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype("float32")
NUMBERS = np.random.default_rng(2).integers(-ROWS, ROWS, size=700)

FUNCTIONS = {
    "reversed": lambda a, b: a[::-1] * 2,
    "twice": lambda a, b: a[::-1][::-1] + b,
    "both dims": lambda a, b: jnp.flip(a) + b,
    "beside itself": lambda a, b: a + a[::-1],
    "beside another": lambda a, b: a[::-1] * b,
    "its first rows": lambda a, b: a[::-1][:130] * 2,
    "its last rows": lambda a, b: a[::-1][-130:] * 2,
    "some rows, reversed": lambda a, b: a[77:555][::-1] * 2,
    "every second": lambda a, b: a[::-2] * 2,
    "every third, reversed": lambda a, b: a[5:900:3][::-1] * 2,
    "every second of every third": lambda a, b: a[::-3][::2] * 2,
    "padded": lambda a, b: jnp.pad(a[::-1], ((3, 40), (0, 1)), constant_values=7.0),
    "reversed padding": lambda a, b: jnp.pad(a, ((3, 40), (1, 0)), constant_values=7.0)[::-1],
    "joined": lambda a, b: jnp.concatenate([a[::-1], b, b[::-1]]),
    "joined, reversed": lambda a, b: jnp.concatenate([a, b])[::-1],
    "transposed": lambda a, b: a[::-1].T,
    "reshaped": lambda a, b: a[::-1].reshape(ROWS * 3, 4),
    "reversed after a reshape": lambda a, b: a.reshape(ROWS * 3, 4)[::-1],
    "rolled": lambda a, b: jnp.roll(a[::-1], 17, 0),
    "positions": lambda a, b: a[::-1] + jnp.arange(float(ROWS))[::-1, None],
    "sums over rows": lambda a, b: a[::-1].sum(0),
    "where the largest is": lambda a, b: jnp.argmax(a[::-1], 0),
    "a product": lambda a, b: a[::-1].T @ b,
    "a moving sum": lambda a, b: jnp.convolve(a[::-1, 0], jnp.arange(5.0), mode="same"),
    "differences": lambda a, b: jnp.diff(a[::-1], axis=0),
    "rows of it": lambda a, b: jnp.take(a[::-1], NUMBERS, axis=0, mode="wrap"),
    "rows, reversed": lambda a, b: jnp.take(a, NUMBERS, axis=0, mode="wrap")[::-1],
    "a slice whose start is known late": lambda a, b: jax.lax.dynamic_slice_in_dim(a[::-1], jnp.argmax(b[:, 0]), 300),
    "reversed slice of that kind": lambda a, b: jax.lax.dynamic_slice_in_dim(a, jnp.argmax(b[:, 0]), 300)[::-1],
    "a gradient": jax.grad(lambda a, b: jnp.sum((a[::-1] - b)[:200] ** 2)),
    "a gradient of both": jax.grad(lambda a, b: jnp.sum(jnp.flip(a * b) * a * b)),
}

WHOLE = {"reshaped", "reversed after a reshape", "rows, reversed"}
"""A tile may end within a row of the operand, so all of it is needed at once; rows are looked up in several chunks."""


@pytest.mark.parametrize("chunks", [(100, 12), (7, 5), (1003, 4)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees_with_jax(name, chunks):
    jz.set_memory_budget("1MB" if name in WHOLE else "60kB")
    function = FUNCTIONS[name]
    a, b = (jz.DiskArray.from_numpy(values, chunks=chunks) for values in (VALUES, OTHER))
    got, want = jz.lift(function)(a, b), function(jnp.asarray(VALUES), jnp.asarray(OTHER))
    got = got.to_numpy(allow_large=True) if isinstance(got, jz.DiskArray) else got
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("function", [lambda a: a[::-1] * 2, lambda a: jnp.flip(a) + 1, lambda a: a[::-1].sum()])
def test_each_chunk_is_read_once(function, tmp_path):
    jz.set_memory_budget("60kB")
    a = jz.DiskArray.from_numpy(VALUES[:1000], chunks=(100, 12))
    with jz.io_cost() as cost:
        got = jz.lift(function)(a)
        if got.ndim:
            got.save(tmp_path / "got", chunks=(100, 12))
    assert cost.bytes_read == a.nbytes


def test_the_first_rows_of_the_reverse_are_all_that_is_read():
    a = jz.DiskArray.from_numpy(VALUES[:1000], chunks=(100, 12))
    with jz.io_cost() as cost:
        got = jz.lift(lambda a: a[::-1][:150])(a).to_numpy()
    np.testing.assert_array_equal(got, VALUES[:1000][::-1][:150])
    assert cost.bytes_read == 200 * 12 * 4
