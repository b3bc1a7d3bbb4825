"""What a `DiskArray` is, what forces it, and where arrays come from."""

import copy
import gc
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

import jask_zarr as jz
from jask_zarr._plan import tiles
from jask_zarr._tracing import force

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")


def on_disk(values: np.ndarray = X, chunks: tuple[int, ...] = (4, 3), **keywords: Any) -> Any:
    return jz.DiskArray.from_numpy(values, chunks=chunks, **keywords)


@pytest.fixture
def small_budget(tmp_path: Path) -> Iterator[int]:
    before = jz.memory_budget()
    jz.set_memory_budget(1_000_000, scratch_dir=tmp_path)
    yield 1_000_000
    jz.set_memory_budget(before)


# what it is


def test_it_has_the_attributes_of_an_array() -> None:
    x = on_disk()
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.itemsize) == ((8, 6), np.float32, 2, 48, 192, 4)
    assert x.chunks == (4, 3)
    assert len(x) == 8
    assert (x + 1.0).chunks is None


def test_its_repr_tells_chunks_codec_and_sizes(tmp_path: Path) -> None:
    text = repr(on_disk(np.zeros((100, 100), "float32"), (50, 50), path=tmp_path / "x.zarr", compressors="auto"))
    for part in ("shape=(100, 100)", "dtype=float32", "chunks=(50, 50)", "zstd", "bytes stored"):
        assert part in text


def test_its_repr_tells_whether_it_is_computed() -> None:
    y = on_disk() + 1.0
    assert "pending" in repr(y)
    assert "in memory" in repr(y.compute())


def test_it_is_hashed_by_identity() -> None:
    x, y = on_disk(), on_disk()
    assert {x: 1, y: 2}[x] == 1


SCALARS = [bool, float, int, complex, lambda a: a.item(), lambda a: [10, 20, 30][a.astype("int32")]]


@pytest.mark.parametrize("convert", SCALARS)
def test_one_element_is_a_python_scalar(convert: Callable[..., Any]) -> None:
    assert convert(jz.full((1, 1), 2.0)) == convert(np.array(2.0))


@pytest.mark.parametrize("convert", SCALARS[:5])
def test_many_elements_are_not(convert: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"\(8, 6\)"):
        convert(on_disk())


def test_it_cannot_be_made_of_values_by_accident() -> None:
    with pytest.raises(TypeError, match="from_numpy"):
        jz.DiskArray(X)


# pickling


def test_a_stored_array_is_pickled_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = on_disk(path="x.zarr")
    pickled = pickle.dumps(x)
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(pickle.loads(pickled).to_numpy(), X)
    np.testing.assert_array_equal(copy.deepcopy(x).to_numpy(), X)


@pytest.mark.parametrize("make", [lambda: on_disk(), lambda: on_disk() * 2.0, lambda: jz.zeros((2, 2)).compute()])
def test_an_array_without_a_store_is_not_pickled(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"a\.save\(path\)"):
        pickle.dumps(make())


# forcing


def test_operations_compute_nothing() -> None:
    x = on_disk()
    with jz.io_cost() as cost:
        y = jz.tanh(x * 2.0 + 1.0) @ x.T
        _ = y[2:5], y.T, jz.softmax(y)
    assert cost.blocks_read == 0


def test_an_array_is_computed_once() -> None:
    y = (on_disk() * 2.0).compute()
    with jz.io_cost() as cost:
        z = y + 1.0
        np.testing.assert_allclose(z.to_numpy(), X * 2 + 1)
        np.testing.assert_allclose(y.to_numpy(), X * 2)
    assert cost.blocks_read == 0


def test_arrays_computed_together_share_their_reading() -> None:
    x = on_disk()
    a, b, c = x + 1.0, x * 2.0, jz.sum(x, axis=0)
    with jz.io_cost() as cost:
        jz.compute(a, {"b": b}, [c])
    assert cost.blocks_read == 4
    np.testing.assert_allclose(a.to_numpy(), X + 1)
    np.testing.assert_allclose(b.to_numpy(), X * 2)
    np.testing.assert_allclose(c.to_numpy(), X.sum(0), rtol=1e-5)


def test_a_product_that_is_still_held_is_kept_by_the_pass_that_computes_it() -> None:
    product = on_disk() @ on_disk(X.T, (3, 4))
    total = jz.sum(product)
    with jz.io_cost() as cost:
        np.testing.assert_allclose(product.to_numpy(), X @ X.T, rtol=1e-5, atol=1e-5)
    assert cost.blocks_read == 0
    np.testing.assert_allclose(total, (X @ X.T).sum(), rtol=1e-4)


def test_a_forced_array_larger_than_its_share_goes_to_scratch(small_budget: int) -> None:
    x = on_disk(np.ones((400, 400), "float32"), (100, 100))
    gc.collect()
    before = jz.scratch_usage()
    y = (x * 2.0).compute()
    assert y.chunks is not None
    assert jz.scratch_usage() >= before + y.nbytes
    assert float(jz.sum(y)) == 2 * 400 * 400
    del y
    gc.collect()
    assert jz.scratch_usage() == before


def test_small_forced_arrays_do_not_fill_the_memory(small_budget: int) -> None:
    kept = [(jz.ones((100, 200)) * float(k)).compute() for k in range(10)]
    in_memory = sum(y.nbytes for y in kept if y.chunks is None)
    assert 0 < in_memory <= small_budget // force.RESIDENT_SHARE
    assert [float(y[3, 4].item()) for y in kept] == list(range(10))
    del kept
    gc.collect()
    assert (jz.ones((100, 200)) * 2.0).compute().chunks is None


def test_long_chains_are_cut() -> None:
    y = on_disk()
    for _ in range(400):
        y = y + 1.0
    assert y._value.depth < 200
    np.testing.assert_allclose(y.to_numpy(), X + 400, rtol=1e-5)


def test_an_array_in_memory_is_copied_when_it_is_recorded() -> None:
    values = X.copy()
    y = on_disk() + values
    values[:] = 0
    np.testing.assert_allclose(y.to_numpy(), X + X)


def test_materialize_gives_another_array_with_the_same_values(tmp_path: Path) -> None:
    w = on_disk(path=tmp_path / "w.zarr")
    kept = jz.materialize(w)
    _ = w.update_(w * 0.0)
    np.testing.assert_array_equal(kept.to_numpy(), X)
    assert jz.materialize(3.0) == 3.0
    np.testing.assert_allclose(jax.jit(lambda w: jz.materialize(w * 2.0) + 1.0)(on_disk()).to_numpy(), X * 2 + 1)


def test_too_much_for_the_memory_is_refused_with_numbers(small_budget: int) -> None:
    x = jz.ones((1000, 1000))
    with pytest.raises(jz.errors.MemoryBudgetError, match=r"4,000,000 bytes.*1,000,000.*allow_large=True"):
        x.to_numpy()
    with pytest.raises(jz.errors.MemoryBudgetError):
        np.asarray(x)
    x = on_disk(np.ones((1000, 1000), "float32"), (100, 100))
    assert x.to_numpy(allow_large=True).sum() == 1e6


def test_an_exact_dtype_conversion_by_numpy() -> None:
    assert np.asarray(on_disk(), dtype="float64").dtype == np.float64
    assert np.array(on_disk()).sum(dtype="float64") == X.sum(dtype="float64")
    with pytest.raises(ValueError, match="copy"):
        np.array(on_disk(), copy=False)


# storing


def test_save_streams_into_a_new_store(tmp_path: Path) -> None:
    y = (on_disk() * 2.0).save(tmp_path / "y.zarr", chunks=(2, 2), attributes={"units": "K"})
    stored = zarr.open_array(str(tmp_path / "y.zarr"), mode="r")
    assert stored.chunks == (2, 2)
    assert stored.attrs["units"] == "K"
    np.testing.assert_array_equal(stored[:], X * 2)
    np.testing.assert_array_equal(y.to_numpy(), X * 2)
    with pytest.raises(FileExistsError):
        on_disk().save(tmp_path / "y.zarr")


def test_to_zarr_is_the_stored_array(tmp_path: Path) -> None:
    x = on_disk(path=tmp_path / "x.zarr")
    assert isinstance(x.to_zarr(), zarr.Array)
    np.testing.assert_array_equal((x + 1.0).to_zarr()[:], X + 1)


# slices


def test_a_loop_over_slices_plans_once() -> None:
    x = on_disk(np.arange(600, dtype="float32").reshape(100, 6), (10, 6))
    for i in (0, 5):
        float(jz.sum(x[i : i + 20]))
    before = len(force._programs)
    for i in range(0, 80, 3):
        assert float(jz.sum(x[i : i + 20])) == np.arange(600).reshape(100, 6)[i : i + 20].sum()
    assert len(force._programs) == before


# creation

LIKE = jz.asarray(X)
CREATED = {
    "zeros": (lambda: jz.zeros((3, 2)), lambda: jnp.zeros((3, 2))),
    "zeros of a dtype": (lambda: jz.zeros(4, "int8"), lambda: jnp.zeros(4, "int8")),
    "ones": (lambda: jz.ones((2, 2), "bfloat16"), lambda: jnp.ones((2, 2), "bfloat16")),
    "full": (lambda: jz.full((2, 3), 7), lambda: jnp.full((2, 3), 7)),
    "full of a float": (lambda: jz.full(3, 0.5), lambda: jnp.full(3, 0.5)),
    "empty": (lambda: jz.empty((2, 3)), lambda: jnp.empty((2, 3))),
    "arange": (lambda: jz.arange(5), lambda: jnp.arange(5)),
    "arange with a step": (lambda: jz.arange(1, 9, 3), lambda: jnp.arange(1, 9, 3)),
    "arange of floats": (lambda: jz.arange(0.0, 1.0, 0.25), lambda: jnp.arange(0.0, 1.0, 0.25)),
    "arange backwards": (lambda: jz.arange(5, 0, -2), lambda: jnp.arange(5, 0, -2)),
    "eye": (lambda: jz.eye(3), lambda: jnp.eye(3)),
    "eye with a diagonal": (lambda: jz.eye(3, 4, 1, "int32"), lambda: jnp.eye(3, 4, 1, "int32")),
    "zeros_like": (lambda: jz.zeros_like(LIKE), lambda: jnp.zeros_like(X)),
    "ones_like of a dtype": (lambda: jz.ones_like(LIKE, "int32"), lambda: jnp.ones_like(X, "int32")),
    "full_like of a shape": (
        lambda: jz.full_like(LIKE, 2, shape=(2, 2)),
        lambda: jnp.full_like(X, 2, shape=(2, 2)),
    ),
    "no elements": (lambda: jz.zeros((0, 3)), lambda: jnp.zeros((0, 3))),
}


@pytest.mark.parametrize(("make", "expected"), CREATED.values(), ids=CREATED.keys())
def test_created_as_jax_does(make: Callable[[], Any], expected: Callable[[], Any]) -> None:
    before = jz.scratch_usage()
    made = make()
    assert isinstance(made, jz.DiskArray)
    assert jz.scratch_usage() == before
    assert made.dtype == expected().dtype
    np.testing.assert_array_equal(made.to_numpy(), expected())


def test_zeros_in_a_store_have_a_fill_value_and_no_chunks(tmp_path: Path) -> None:
    x = jz.full((100, 100), 3, "int16", chunks=(10, 10), path=tmp_path / "x.zarr")
    assert [p.name for p in (tmp_path / "x.zarr").rglob("*") if p.is_file()] == ["zarr.json"]
    assert x.chunks == (10, 10)
    assert int(jz.sum(x)) == 30_000


def test_like_an_ordinary_array_is_ordinary() -> None:
    assert isinstance(jz.zeros_like(jnp.ones(3)), jax.Array)


def test_an_array_in_memory_without_a_store() -> None:
    assert isinstance(jz.asarray(X), jz.DiskArray)
    np.testing.assert_array_equal(jz.asarray(X).to_numpy(), X)


# opening and dtypes


def _zarr(path: Path, values: np.ndarray) -> Path:
    zarr.create_array(str(path), data=values, chunks=(2,) * values.ndim)
    return path


def test_64_bit_data_is_refused_by_default_and_cast_on_purpose(tmp_path: Path) -> None:
    path = _zarr(tmp_path / "x.zarr", X.astype("float64"))
    with pytest.raises(jz.errors.X64DisabledError, match=r'dtype="float32"'):
        jz.open(path)
    x = jz.open(path, dtype="float32")
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x.to_numpy(), X)
    np.testing.assert_allclose(jax.grad(lambda x: jz.sum(x * x))(x).to_numpy(), 2 * X)


@pytest.mark.parametrize("make", [lambda: jz.DiskArray.from_numpy(np.ones(3)), lambda: jz.zeros(3, "float64")])
def test_new_64_bit_arrays_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(jz.errors.X64DisabledError):
        make()


def test_64_bit_data_is_opened_with_x64(x64: None, tmp_path: Path) -> None:
    x = jz.open(_zarr(tmp_path / "x.zarr", X.astype("float64") / 3))
    assert (x * 2).dtype == np.float64
    np.testing.assert_array_equal((x * 2).to_numpy(), X.astype("float64") / 3 * 2)


def test_integers_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    path = _zarr(tmp_path / "x.zarr", np.array([1, 2, 2**40], "int64"))
    x = jz.open(path, dtype="int32")
    assert x[:2].to_numpy().tolist() == [1, 2]
    with pytest.raises(jz.errors.IntegerOverflowError, match=r"1099511627776.*int32"):
        x.to_numpy()
    assert jz.open(path, dtype="float32").to_numpy()[2] == 2.0**40


def test_not_a_number_is_no_integer(tmp_path: Path) -> None:
    with pytest.raises(jz.errors.IntegerOverflowError):
        jz.open(_zarr(tmp_path / "x.zarr", np.array([1, np.nan], "float32")), dtype="int32").to_numpy()


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_opening_creates_nothing(mode: str, tmp_path: Path) -> None:
    with pytest.raises(jz.errors.ArrayNotFoundError):
        jz.open(tmp_path / "none.zarr", mode=mode)
    assert os.listdir(tmp_path) == []


def test_an_array_is_opened_from_an_open_zarr_array_and_from_a_group(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "g.zarr"))
    array = group.create_array("t", data=X, chunks=(4, 3))
    for x in (jz.open(array), jz.open(tmp_path / "g.zarr", path="t"), jz.open(group, path="t")):
        np.testing.assert_array_equal(x.to_numpy(), X)


# lift


def test_python_numbers_are_data_unless_they_are_static() -> None:
    traces = []

    def power(a: Any, scale: Any, n: int, axis: int = 0) -> Any:
        traces.append((n, axis))
        return jnp.sum(a * scale, axis=axis) ** n

    lifted = jz.lift(power, static_argnums=2, static_argnames="axis")
    x = on_disk()
    for scale in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(lifted(x, scale, 2).to_numpy(), (X * scale).sum(0) ** 2, rtol=1e-4)
    np.testing.assert_allclose(lifted(x, 1.0, 3, axis=1).to_numpy(), X.sum(1) ** 3, rtol=1e-3, atol=1e-5)
    assert traces == [(2, 0), (3, 1)]


def test_pytrees_go_in_and_out() -> None:
    lifted = jz.lift(lambda tree, flag: {"sum": tree["a"] + tree["b"][0], "flag": jnp.sum(tree["a"]) if flag else 0.0})
    out = lifted({"a": on_disk(), "b": [X, None]}, "yes")
    np.testing.assert_allclose(out["sum"].to_numpy(), X + X)
    assert isinstance(out["flag"], jax.Array)


def test_without_an_array_on_disk_a_lifted_function_is_the_function() -> None:
    assert isinstance(jz.lift(jnp.sin)(X), jax.Array)
    np.testing.assert_array_equal(jax.jit(jz.lift(jnp.sin))(X), jax.jit(jnp.sin)(X))


def test_constants_of_a_lifted_function_are_kept() -> None:
    table = np.arange(6, dtype="float32")
    lifted = jz.lift(lambda a: a * table + jnp.asarray(table))
    np.testing.assert_allclose(lifted(on_disk()).to_numpy(), X * table + table, rtol=1e-6)
    gradient = jax.grad(lambda a: jz.sum(lifted(a) * lifted(a)))(on_disk())
    np.testing.assert_allclose(gradient.to_numpy(), 2 * (X * table + table) * table, rtol=1e-5)


@pytest.mark.parametrize("change", [lambda a: a, lambda a: a + 1, lambda a: a.T, lambda a: a[::-1]])
@pytest.mark.parametrize("where", ["a", ".", "a/"])
def test_nothing_is_saved_over_the_store_it_is_computed_from(change, where, tmp_path):
    values = np.arange(16, dtype="float32").reshape(4, 4)
    a = jz.DiskArray.from_numpy(values, chunks=(2, 2), path=tmp_path / "a")
    with pytest.raises(ValueError, match="update_"):
        change(a).save(str(tmp_path / where), overwrite=True)
    np.testing.assert_array_equal(a.to_numpy(), values)


@pytest.mark.parametrize("as_store", [str, Path, zarr.storage.LocalStore])
def test_another_store_is_saved_over(as_store, tmp_path):
    a = jz.DiskArray.from_numpy(np.ones((4, 4), "float32"), chunks=(2, 2), path=tmp_path / "a")
    jz.zeros((4, 4), "float32").save(tmp_path / "b", chunks=(2, 2))
    (a + 1).save(as_store(tmp_path / "b"), overwrite=True)
    assert jz.open(tmp_path / "b").to_numpy().sum() == 32


def test_a_zarr_store_object_is_recognised_as_its_own(tmp_path):
    a = jz.DiskArray.from_numpy(np.ones((4, 4), "float32"), chunks=(2, 2), path=tmp_path / "a")
    with pytest.raises(ValueError, match="update_"):
        (a + 1).save(zarr.storage.LocalStore(tmp_path / "a"), overwrite=True)
    assert a.to_numpy().sum() == 16


@pytest.mark.parametrize(
    "write",
    [
        lambda path: jz.DiskArray.from_numpy(np.zeros((4, 4), "float32"), chunks=(2, 2), path=path, overwrite=True),
        lambda path: jz.zeros((4, 4), "float32").save(path, chunks=(2, 2), overwrite=True),
        lambda path: jz.full((4, 4), 0, "float32", chunks=(2, 2), path=path, overwrite=True),
    ],
)
def test_what_was_written_over_is_stale_even_if_it_looks_the_same(write, tmp_path):
    a = jz.DiskArray.from_numpy(np.ones((4, 4), "float32"), chunks=(2, 2), path=tmp_path / "a")
    pending = a * 2
    new = write(tmp_path / "a")
    for old in (a, pending):
        with pytest.raises(jz.errors.StaleArrayError):
            old.to_numpy()
    assert new.to_numpy().sum() == 0


@pytest.mark.parametrize("change", [lambda a: a, lambda a: a + 1, lambda a: a.T])
@pytest.mark.parametrize("kind", ["memory", "in a group", "fsspec"])
def test_nothing_is_saved_over_the_store_it_is_computed_from_wherever_that_is(change, kind, tmp_path):
    group = zarr.create_group(zarr.storage.MemoryStore())
    stores = {"memory": zarr.storage.MemoryStore(), "in a group": group, "fsspec": f"memory://{tmp_path}/a"}
    if kind == "fsspec":
        pytest.importorskip("fsspec")
    store = stores[kind]
    if kind == "in a group":
        store = group.create_array("a", shape=(4, 4), chunks=(2, 2), dtype="f4")
        store[...] = 1
        a = jz.open(store)
    else:
        a = jz.DiskArray.from_numpy(np.ones((4, 4), "float32"), chunks=(2, 2), path=store)
    with pytest.raises(ValueError, match="update_"):
        change(a).save(store, overwrite=True)
    assert a.to_numpy().sum() == 16


UNWRITABLE = {
    "read-only store": lambda path: zarr.storage.LocalStore(path, read_only=True),
    "read-only array": lambda path: zarr.open_array(zarr.storage.LocalStore(path), mode="r"),
}
CREATED = {
    "full": lambda place: jz.zeros((4, 4), path=place, overwrite=True),
    "save": lambda place: (jz.ones((4, 4)) + 1).save(place, overwrite=True),
    "checkpoint": lambda place: jz.checkpoint(place, {"a": 1}),
}


@pytest.mark.parametrize("create", CREATED.values(), ids=CREATED)
@pytest.mark.parametrize("place", UNWRITABLE.values(), ids=UNWRITABLE)
def test_nothing_is_created_in_a_store_that_is_read_only(create, place, tmp_path):
    a = jz.DiskArray.from_numpy(np.ones((4, 4), "float32"), chunks=(2, 2), path=tmp_path / "a")
    with pytest.raises(jz.errors.ReadOnlyStoreError):
        create(place(tmp_path / "a"))
    assert a.to_numpy().sum() == 16


@pytest.mark.parametrize("create", CREATED.values(), ids=CREATED)
def test_a_file_is_not_replaced(create, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        create(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_what_is_written_over_keeps_its_permissions_and_may_have_a_long_name(tmp_path, monkeypatch):
    place = tmp_path / ("a" * 240)
    jz.zeros((4, 4), path=place)
    place.chmod(0o2750)
    monkeypatch.chdir(place)
    assert (jz.ones((4, 4)) + 1).save(".", overwrite=True).to_numpy().sum() == 32
    assert place.stat().st_mode & 0o7777 == 0o2750
    assert os.listdir(tmp_path) == [place.name]


PARTS = {  # function, chunks that it reads of 40
    "a row": (lambda xp, a: a[7], 1),
    "the last row": (lambda xp, a: a[-1], 1),
    "a slice of one": (lambda xp, a: a[3:4], 1),
    "an element": (lambda xp, a: a[7, 3, 5], 1),
    "a row's mean": (lambda xp, a: xp.mean(a[7]), 1),
    "the difference of rows": (lambda xp, a: a[9] - a[7], 2),
    "some rows": (lambda xp, a: a[7:10] * 2, 3),
    "rows backwards": (lambda xp, a: a[3::-1], 4),
    "rows sorted": (lambda xp, a: xp.sort(a[:5], axis=0), 5),
    "rows added up": (lambda xp, a: xp.cumsum(a[:5], axis=0), 5),
    "a part, whole": (lambda xp, a: xp.max(a[4:6], axis=(0, 1)), 2),
    "what is split off": (lambda xp, a: xp.split(a, 10)[2], 4),
    "a row of a row's neighbours": (lambda xp, a: (a[5:8] * 2)[1], 3),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_reads_its_chunks_and_no_others(name, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 1 << 12)
    function, chunks = PARTS[name]
    values = np.random.default_rng(0).normal(size=(40, 16, 128)).astype("float32")
    a = jz.DiskArray.from_numpy(values, chunks=(1, 16, 128))
    jz.set_memory_budget("300kB")
    with jz.io_cost() as cost:
        found = np.asarray(function(jz, a))
    np.testing.assert_allclose(found, function(jnp, jnp.asarray(values)), rtol=1e-5, atol=1e-6)
    assert cost.blocks_read <= chunks


def test_microbatches_of_a_part_read_the_part_alone():
    values = np.random.default_rng(0).normal(size=(100_000, 16)).astype("float32")
    a = jz.DiskArray.from_numpy(values, chunks=(1000, 16))
    jz.set_memory_budget("3MB")
    total = jz.jit(lambda a: jax.lax.scan(lambda c, m: (c + jnp.mean(m**2), None), 0.0, a.reshape(10, 100, 16))[0])
    with jz.io_cost() as cost:
        found = float(total(a[2000:3000]))
    assert found == pytest.approx(np.square(values[2000:3000]).reshape(10, -1).mean(1).sum(), rel=1e-5)
    assert cost.blocks_read == 1
