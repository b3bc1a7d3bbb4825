"""Look-ups and additions of rows: exact whatever the tiles, and only chunks that hold a wanted row are read."""

from contextlib import nullcontext
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from jax import lax

import jask_zarr as jz
from jask_zarr._plan import passes
from jask_zarr._plan.tiles import choose_tiles
from jask_zarr._run.buffers import BufferPool
from jask_zarr._run.rows import read_listed
from jask_zarr._run.tile import Listed

RNG = np.random.default_rng(0)
TABLE = RNG.integers(-99, 99, size=(23, 6)).astype("float32")
WHOLE = RNG.integers(-99, 99, size=(23, 6)).astype("int32")
CUBE = RNG.integers(-99, 99, size=(5, 11, 4)).astype("float32")
MANY = RNG.integers(0, 23, size=40).astype("int32")
BEYOND = np.array([0, 22, 23, 99, -1, -23, -24, -99, 5, 5], "int32")
SHAPED = RNG.integers(-23, 23, size=(4, 3, 2)).astype("int32")

# name: function of a table and row numbers, the table, the numbers
LOOKUPS = {
    "repeated": (lambda t, r: jnp.take(t, r, axis=0), TABLE, MANY),
    "clipped": (lambda t, r: jnp.take(t, r, axis=0, mode="clip"), TABLE, BEYOND),
    "wrapped": (lambda t, r: jnp.take(t, r, axis=0, mode="wrap"), TABLE, BEYOND),
    "filled": (lambda t, r: jnp.take(t, r, axis=0, mode="fill"), TABLE, BEYOND),
    "filled with a number": (lambda t, r: jnp.take(t, r, axis=0, mode="fill", fill_value=7.0), TABLE, BEYOND),
    "filled, integers": (lambda t, r: jnp.take(t, r, axis=0, mode="fill"), WHOLE, BEYOND),
    "indexed": (lambda t, r: t[r], TABLE, BEYOND),
    "indexed, dropped": (lambda t, r: t.at[r].get(mode="drop"), TABLE, BEYOND),
    "along the second dim": (lambda t, r: jnp.take(t, r, axis=1), CUBE, MANY % 11),
    "along the last dim": (lambda t, r: t[..., r], CUBE, MANY % 4),
    "by numbers in three dims": (lambda t, r: jnp.take(t, r, axis=0), TABLE, SHAPED),
    "by numbers in three dims, in the middle": (lambda t, r: jnp.take(t, r % 11, axis=1), CUBE, SHAPED),
    "by one number": (lambda t, r: jnp.take(t, r, axis=0), TABLE, np.int32(-2)),
    "by a vector of one": (lambda t, r: t[r], TABLE, np.array([-2], "int32")),
    "of what is computed": (lambda t, r: jnp.take(jnp.exp(t / 99) + 1, r, axis=0), TABLE, MANY),
    "of a product": (lambda t, r: jnp.take(t @ t.T, r, axis=0), TABLE, MANY),
    "of a transpose": (lambda t, r: jnp.take(t.T, r % 6, axis=0), TABLE, MANY),
    "of a slice": (lambda t, r: jnp.take(t[3:20:1], r % 17, axis=0), TABLE, MANY),
    "of a strided slice": (lambda t, r: jnp.take(t[1::2], r % 11, axis=0), TABLE, MANY),
    "of what is padded": (lambda t, r: jnp.take(jnp.pad(t, ((2, 3), (0, 0))), r + 2, axis=0), TABLE, MANY),
    "of what is joined": (lambda t, r: jnp.take(jnp.concatenate([t, -t]), r * 2, axis=0), TABLE, MANY),
    "of what is reshaped": (lambda t, r: jnp.take(t.reshape(46, 3), r * 2, axis=0), TABLE, MANY),
    "of what is sorted": (lambda t, r: jnp.take(jnp.sort(t, axis=0), r, axis=0), TABLE, MANY),
    "of what is convolved": (lambda t, r: jnp.take(jnp.cumsum(t, axis=0), r, axis=0), TABLE, MANY),
    "of a sum": (lambda t, r: jnp.take(t.sum(1), r, axis=0), TABLE, MANY),
    "of row numbers": (lambda t, r: jnp.take(t, jnp.take(r, r, axis=0), axis=0), TABLE, MANY),
    "of a look-up": (lambda t, r: jnp.take(jnp.take(t, r, axis=0), r[::-1], axis=0), TABLE, MANY),
    "of rows and of columns": (lambda t, r: jnp.take(jnp.take(t, r, axis=0), r % 6, axis=1), TABLE, MANY),
    "of rows with numbers": (lambda t, r: jnp.take(t + jnp.arange(23.0)[:, None], r, axis=0), TABLE, MANY),
    "of rows added to": (lambda t, r: jnp.take(t.at[r].add(1.0), r, axis=0), TABLE, MANY),
    "of a window": (lambda t, r: jnp.take(lax.dynamic_slice(t, (r[0] % 4, 0), (19, 6)), r % 19, axis=0), TABLE, MANY),
    "beside the table": (lambda t, r: t + jnp.take(t, r[:23], axis=0), TABLE, MANY),
    "sliced": (lambda t, r: jnp.take(t, r, axis=0)[5:31:2], TABLE, MANY),
    "padded": (lambda t, r: jnp.pad(jnp.take(t, r, axis=0), ((3, 2), (1, 0))), TABLE, MANY),
    "reshaped": (lambda t, r: jnp.take(t, r, axis=0).reshape(20, 12), TABLE, MANY),
    "sorted": (lambda t, r: jnp.sort(jnp.take(t, r, axis=0), axis=0), TABLE, MANY),
    "summed": (lambda t, r: jnp.take(t, r, axis=0).sum(0), TABLE, MANY),
    "multiplied": (lambda t, r: jnp.take(t, r, axis=0) @ t.T, TABLE, MANY),
    "along an axis": (lambda t, r: jnp.take_along_axis(t, r[:23, None] % 6, axis=1), TABLE, MANY),
    "by pairs": (lambda t, r: t[r, r % 6], TABLE, MANY),
    "of nothing": (lambda t, r: jnp.take(t, r[:0], axis=0), TABLE, MANY),
    "added": (lambda t, r: t.at[r].add(jnp.ones((r.shape[0], 6))), TABLE, MANY),
    "added, dropped": (lambda t, r: t.at[r].add(2.0, mode="drop"), TABLE, BEYOND),
    "added, clipped": (lambda t, r: t.at[r].add(2.0, mode="clip"), TABLE, BEYOND),
    "added by numbers in three dims": (lambda t, r: t.at[r].add(jnp.ones((*r.shape, 6))), TABLE, SHAPED),
    "gradient": (jax.grad(lambda t, r: jnp.sum(jnp.take(t, r, axis=0) ** 2)), TABLE, MANY),
    "gradient, filled": (jax.grad(lambda t, r: jnp.nansum(jnp.take(t, r, axis=0) ** 2)), TABLE, BEYOND),
    "gradient, three dims": (jax.grad(lambda t, r: jnp.sum(jnp.take(t, r, axis=0) ** 2)), TABLE, SHAPED),
}  # fmt: skip


def on_disk(values, chunk):
    values = np.asarray(values)
    return jz.DiskArray.from_numpy(values, chunks=tuple(min(chunk, max(n, 1)) for n in values.shape))


@pytest.fixture
def smallest_tiles(monkeypatch):
    """Every label is cut as far as it can be."""

    def smallest(model, budget, tile_bytes):
        return replace(choose_tiles(model, 0, tile_bytes), fits=True)

    monkeypatch.setattr(passes, "choose_tiles", smallest)


ALWAYS = (
    "clipped", "filled", "indexed", "along the second dim", "by numbers in three dims", "by one number",
    "of what is padded", "of what is sorted", "of a look-up", "of rows and of columns", "of rows added to", "sliced",
    "sorted", "along an axis", "added, dropped", "gradient, three dims",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.soak) for n in LOOKUPS])
def test_agrees_with_jax(name, smallest_tiles):
    function, table, numbers = LOOKUPS[name]
    for r in (jnp.asarray(numbers), *([on_disk(numbers, 7)] if np.ndim(numbers) else [])):
        got = jz.lift(function)(on_disk(table, 4), r)
        np.testing.assert_allclose(np.asarray(got), function(jnp.asarray(table), numbers), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("rows", [[3], [3, 4, 5, 3], [0, 99, 50, 51], [*range(100)], [7] * 1000])
def test_only_chunks_with_a_wanted_row_are_read_once(rows):
    table = on_disk(np.arange(1000.0, dtype="float32").reshape(100, 10), 10)
    numbers = jnp.asarray(rows)
    with jz.io_cost() as cost:
        got = np.asarray(jz.take(table, numbers, axis=0))
    np.testing.assert_array_equal(got[:, 0], 10.0 * np.asarray(rows))
    assert cost.blocks_read == len({row // 10 for row in rows})


def test_a_look_up_that_does_not_fit_is_read_in_parts(monkeypatch):
    jz.set_memory_budget("1MB")
    table = on_disk(np.arange(400_000, dtype="float32").reshape(4000, 100), 100)
    rows = RNG.integers(0, 4000, size=20_000)
    got = float(jz.sum(jz.sqrt(jz.take(table, jnp.asarray(rows), axis=0))))
    want = np.sqrt(np.arange(400_000, dtype="float64")).reshape(4000, 100)[rows].sum()
    assert got == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(("mode", "fits"), [("clip", True), ("promise_in_bounds", True), ("fill", False)])
def test_rows_that_are_the_result_are_not_held_twice(tmp_path, mode, fits):
    values = np.arange(512 * 64, dtype="float32").reshape(512, 64)
    table, rows = jz.DiskArray.from_numpy(values, chunks=(16, 64)), RNG.integers(0, 512, size=256)
    jz.set_memory_budget(120_000)
    with nullcontext() if fits else pytest.raises(jz.errors.MemoryBudgetError):
        found = jz.lift(lambda table, rows: table.at[rows].get(mode=mode))(table, rows)
        found.save(tmp_path / "rows.zarr", chunks=(64, 64))
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "rows.zarr")[...], values[rows])


@pytest.mark.parametrize("length", [1, 3, 7, 12])
@pytest.mark.parametrize("start", range(-13, 25))
def test_a_box_of_rows_may_lie_beyond_the_array(start, length):
    """As the tiles of a joined array do, of each of its parts."""
    values = np.arange(5 * 9, dtype="float32").reshape(5, 9)
    source, rows = jz.DiskArray.from_numpy(values, chunks=(2, 7))._stored, [3, 0, 4]
    found = np.full((3, length), -1, "float32")
    read_listed(source, (Listed(np.asarray(rows)), start), found, BufferPool())
    inside = [k for k in range(length) if 0 <= start + k < 9]
    np.testing.assert_array_equal(found[:, inside], values[rows][:, [start + k for k in inside]])


FAR = np.array([0, 5, 99, -99, -6], "int32")


@pytest.mark.parametrize("mode", [None, "clip", "drop", "promise_in_bounds"])
@pytest.mark.parametrize("method", ["add", "set", "max"])
def test_rows_beyond_the_table_are_added_where_jax_adds_them(mode, method):
    table = TABLE[:6]
    add = lambda t: getattr(t.at[jnp.asarray(FAR)], method)(200.0, mode=mode)  # noqa: E731
    np.testing.assert_array_equal(np.asarray(jz.lift(add)(on_disk(table, 4))), add(jnp.asarray(table)))


def test_gradients_of_rows_beyond_the_table_are_those_of_jax():
    table = TABLE[:6]
    gradient = jax.grad(lambda t: jnp.sum(t[jnp.asarray(FAR)]))
    for run in (jz.lift, jz.jit):
        np.testing.assert_array_equal(np.asarray(run(gradient)(on_disk(table, 4))), gradient(jnp.asarray(table)))
