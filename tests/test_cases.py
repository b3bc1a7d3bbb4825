"""Situations that zarr stores in the wild have: each reads, computes and updates as in numpy.

`SITUATIONS` makes each store with another writer (plain zarr, TensorStore, or bytes laid out by
hand) and gives the values that it holds.
"""

import json
import os
import shutil
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from zarr.storage import LocalStore, ZipStore

import jask_zarr as jz
from elsewhere import by_tensorstore, by_zarr, metadata_files
from jask_zarr import errors

pytestmark = pytest.mark.filterwarnings("ignore:.*(Numcodecs codecs|Zarr v3 will be used)")

GRID = np.arange(35, dtype="f4").reshape(7, 5) - 12
CUBE = np.arange(120, dtype="f4").reshape(4, 5, 6)
NAN, INF = np.nan, np.inf


def create(path, values=GRID, /, written=None, **options):
    """A store by plain zarr; ``written`` is what is put into it, by default all values."""
    values = np.asarray(values)
    options = {"chunks": (3, 2), "dtype": values.dtype} | options
    array = zarr.create_array(LocalStore(path), shape=values.shape, **options)
    for box in [...] if written is None else written:
        array[box] = values[box]
    return values


def by_hand(path, values, chunks, *, order="C", overhang=0, write=(), **changes):
    """A version 2 store, its bytes laid out here: whole chunks, ``overhang`` beyond the end."""
    document = {"zarr_format": 2, "shape": values.shape, "chunks": chunks, "dtype": values.dtype.str}
    document |= {"fill_value": 0, "order": order, "compressor": None, "filters": None, "dimension_separator": "."}
    path.mkdir()
    (path / ".zarray").write_text(json.dumps({k: v for k, v in (document | changes).items() if v != "absent"}))
    for index in np.ndindex(*(-(-n // max(c, 1)) for n, c in zip(values.shape, chunks, strict=True))):
        chunk = np.full(chunks, overhang, values.dtype)
        part = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))]
        chunk[tuple(map(slice, part.shape))] = part
        (path / (".".join(map(str, index)) or "0")).write_bytes(chunk.tobytes(order))
    return values


def by_other_writer(path, values, driver):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}, "create": True}
    store = tensorstore.open(spec, dtype=values.dtype.name, shape=values.shape).result()
    store.write(values).result()
    return values


def filled(path, fill, zarr_format, dtype="f4"):
    """Only the first of three chunks is stored."""
    values = np.array([1, 2, 3, 4, *[fill] * 6], dtype)
    return create(path, values, written=[slice(4)], chunks=(4,), fill_value=fill, zarr_format=zarr_format)


def two_chunks_of(path, name, zarr_format, **options):
    return create(path, GRID, zarr_format=zarr_format, fill_value=9, **options)


def keys(path, zarr_format, encoding):
    return create(path, np.arange(1, 21, dtype="f4").reshape(4, 5), zarr_format=zarr_format, fill_value=9,
                  chunk_key_encoding=encoding)  # fmt: skip


def without_separator(path):
    return by_hand(path, np.arange(1, 21, dtype="f4").reshape(4, 5), (3, 2), dimension_separator="absent")


def default_keys_without_configuration(path):
    values = create(path, GRID)
    document = json.loads((path / "zarr.json").read_text())
    document["chunk_key_encoding"] = {"name": "default"}
    (path / "zarr.json").write_text(json.dumps(document))
    return values


def bare_nan(path):
    create(path, GRID[:4, 0], chunks=(2,), written=[slice(2)], zarr_format=2, fill_value=1)
    document = (path / ".zarray").read_text()
    (path / ".zarray").write_text(document.replace('"fill_value": 1.0', '"fill_value": NaN'))
    assert "NaN" in (path / ".zarray").read_text()
    return np.array([*GRID[:2, 0], NAN, NAN], "f4")


def hex_nan(path):
    create(path, GRID[:4, 0], chunks=(2,), written=[slice(2)], fill_value=1)
    document = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps(document | {"fill_value": "0x7fc00000"}))
    return np.array([*GRID[:2, 0], NAN, NAN], "f4")


def negative_zero(path):
    values = np.array([-0.0, -0.0, 1, -0.0], "f4")
    create(path, values, chunks=(2,), config={"write_empty_chunks": True})
    return values


def shrunk_then_grown(path):
    array = zarr.create_array(LocalStore(path), shape=(6,), chunks=(2,), dtype="f4")
    array[...] = np.arange(1, 7)
    array.resize((3,))
    array.resize((6,))
    return by_zarr(path)


def orphans(path):
    values = create(path, GRID)
    shutil.copy(path / "c/0/0", path / "c/0/9")
    (path / "c/9").mkdir()
    shutil.copy(path / "c/0/0", path / "c/9/0")
    (path / "c/0/0.abc.partial").write_bytes(b"half")
    return values


def stale_copy(path, zarr_format):
    group = zarr.open_group(LocalStore(path), mode="w", zarr_format=zarr_format)
    group.create_array("v", shape=(4,), chunks=(2,), dtype="f4")[:] = 1
    zarr.consolidate_metadata(LocalStore(path))
    array = zarr.open_array(LocalStore(path), path="v", mode="r+")
    array.resize((6,))
    array[:] = np.arange(1, 7)
    return np.arange(1, 7, dtype="f4")


def shard_index_at_start(path):
    codec = ShardingCodec(chunk_shape=(2, 2), index_location="start")
    return create(path, np.arange(100, dtype="f4").reshape(10, 10), chunks=(4, 4), serializer=codec, compressors=None)


def shard_with_holes(path):
    values = np.full((8, 8), 7, "f4")
    values[2:4, 2:4] = [[1, 2], [3, 4]]
    return create(path, values, written=[(slice(2, 4), slice(2, 4))], chunks=(2, 2), shards=(4, 4), fill_value=7)


def bfloat16_by_other_writer(path, driver):
    return by_other_writer(path, np.tile([1, 2], 500).astype(ml_dtypes.bfloat16), driver)


def both_formats(path):
    create(path, GRID + 1, zarr_format=2)
    shutil.move(path / ".zarray", path.parent / "old")
    values = create(path, GRID)
    shutil.move(path.parent / "old", path / ".zarray")
    return values


def linked_chunk(path):
    values = create(path, GRID)
    os.replace(path / "c/0/0", path.parent / "chunk")
    os.symlink("../../../chunk", path / "c/0/0")
    return values


def tiny_chunks(path):
    return create(path, (np.arange(1000) % 100).astype("u1"), chunks=(1,), zarr_format=2, compressors=None)


BIG_U2 = np.arange(100, dtype=">u2").reshape(10, 10)
GZIP = {"compressors": numcodecs.GZip(3)}
SITUATIONS = {
    # C1: what lies beyond the array's end in a chunk
    "edge, garbage in v2": lambda p: by_hand(p, GRID - 40, (3, 2), overhang=9e30),
    "edge, nan in v2": lambda p: by_hand(p, GRID - 40, (3, 2), overhang=NAN),
    "edge, nan as v3 fill": lambda p: create(p, GRID - 40, fill_value=NAN),
    "edge, three primes": lambda p: create(p, CUBE[:3] - 200, chunks=(2, 3, 5)),
    # C2: missing chunks
    **{f"fill {f}, v{v}": lambda p, f=f, v=v: filled(p, f, v) for f in (NAN, INF, -INF, 7, 0) for v in (2, 3)},
    "nothing written": lambda p: create(p, np.full((5, 4), 7, "f4"), written=[], fill_value=7),
    "null fill, all written": lambda p: by_hand(p, GRID, (3, 2), fill_value=None),
    "bare nan": bare_nan,
    "hex nan": hex_nan,
    "negative zero": negative_zero,
    # C3: chunk keys
    "keys v2 .": lambda p: keys(p, 2, {"name": "v2", "separator": "."}),
    "keys v2 /": lambda p: keys(p, 2, {"name": "v2", "separator": "/"}),
    "keys v2, no separator named": without_separator,
    "keys v3 /": lambda p: keys(p, 3, {"name": "default", "separator": "/"}),
    "keys v3 .": lambda p: keys(p, 3, {"name": "default", "separator": "."}),
    "keys v3 as v2 .": lambda p: keys(p, 3, {"name": "v2", "separator": "."}),
    "keys v3 as v2 /": lambda p: keys(p, 3, {"name": "v2", "separator": "/"}),
    "keys v3, no configuration": default_keys_without_configuration,
    # C4: filters and compressors that lose nothing
    "gzip v2": lambda p: create(p, zarr_format=2, **GZIP),
    "bz2 v2": lambda p: create(p, zarr_format=2, compressors=numcodecs.BZ2(2)),
    "blosc v2": lambda p: create(p, zarr_format=2, compressors=numcodecs.Blosc("zstd", 3, 2)),
    "delta v2": lambda p: create(p, zarr_format=2, filters=[numcodecs.Delta("<f4")]),
    "crc32c v3": lambda p: create(p, compressors=[GzipCodec(), Crc32cCodec()]),
    # C6: byte order
    **{f"big-endian {t} v{v}": lambda p, t=t, v=v: create(p, GRID.astype(t) + 12 * (t[1] == "u"), zarr_format=v)
       for t in (">f4", ">i2", ">f2", ">c8") for v in (2,)},
    "big-endian v3": lambda p: create(p, serializer=BytesCodec(endian="big")),
    "big-endian shard": lambda p: create(p, BIG_U2, chunks=(2, 2), shards=(4, 4), serializer=BytesCodec(endian="big")),
    # C7: memory order
    "F order": lambda p: create(p, zarr_format=2, order="F"),
    "F order by hand": lambda p: by_hand(p, CUBE, (3, 2, 4), order="F"),
    "transpose": lambda p: create(p, CUBE, chunks=(3, 2, 4), filters=[TransposeCodec(order=(2, 0, 1))]),
    "transpose in shards": lambda p: create(p, CUBE, chunks=(2, 1, 2), shards=(4, 2, 4),
                                            filters=[TransposeCodec(order=(2, 0, 1))]),
    # C8: shards
    "shards": lambda p: create(p, np.arange(100, dtype="f4").reshape(10, 10), chunks=(2, 2), shards=(4, 4)),
    "shards, index at start": shard_index_at_start,
    "shards with holes": shard_with_holes,
    "one shard": lambda p: create(p, np.arange(256, dtype="f4"), chunks=(2,), shards=(256,)),
    # C9: what the metadata and the files disagree on
    "orphan chunks": orphans,
    "shrunk then grown": shrunk_then_grown,
    # C11, C12, C13
    "both formats": both_formats,
    "scalar v2": lambda p: create(p, np.float32(3.5), chunks=(), zarr_format=2),
    "scalar v3": lambda p: create(p, np.float32(3.5), chunks=()),
    "chunk larger than array": lambda p: create(p, GRID, chunks=(64, 64)),
    "chunk larger than array v2": lambda p: by_hand(p, GRID, (64, 64), overhang=5),
    "tiny chunks": tiny_chunks,
    # C16: dtypes
    "bool": lambda p: create(p, GRID > 0),
    "bfloat16 v2": lambda p: bfloat16_by_other_writer(p, "zarr"),
    "bfloat16 v3": lambda p: bfloat16_by_other_writer(p, "zarr3"),
    "complex64": lambda p: create(p, GRID + 1j * GRID[::-1]),
    "float16": lambda p: create(p, np.full(1000, 100, "f2"), chunks=(100,)),
    # C19, C20
    "nan in the edge chunk": lambda p: create(p, np.where(np.arange(7) == 6, NAN, 1).astype("f4"), chunks=(4,)),
    "two nans": lambda p: create(p, np.where((GRID == 3) | (GRID == 6), NAN, GRID)),
    "all nan": lambda p: create(p, np.where(np.arange(35).reshape(7, 5) < 10, NAN, GRID)),
    "ties": lambda p: create(p, np.where((np.arange(36).reshape(6, 6) % 5) == 0, 9, 0).astype("f4"), chunks=(4, 4)),
    "integer ties": lambda p: create(p, -np.ones((5, 5), "i4")),
    # C26, C30
    "left-over partial": lambda p: orphans(p),
    "linked chunk": linked_chunk,
}  # fmt: skip
NOT_FOR_TENSORSTORE = {"delta v2", "bare nan", "both formats"}


@pytest.fixture(params=SITUATIONS)
def situation(request, tmp_path):
    path = tmp_path / "a.zarr"
    values = SITUATIONS[request.param](path)
    return request.param, path, np.asarray(values).astype(values.dtype.newbyteorder("="))


def test_reads_as_numpy(situation):
    _, path, values = situation
    array = jz.open(path)
    assert (array.shape, array.dtype) == (values.shape, values.dtype)
    np.testing.assert_array_equal(array.to_numpy(), values)
    np.testing.assert_array_equal(np.signbit(array.to_numpy().real), np.signbit(values.real))


def test_reduces_as_numpy(situation):
    _, path, values = situation
    array = jz.open(path)
    wide = values.astype("c16" if values.dtype.kind == "c" else "f8")
    np.testing.assert_allclose(complex(jz.mean(array)), wide.mean(), rtol=1e-2 if values.itemsize == 2 else 2e-6)
    if values.dtype != np.float16:  # the sum of its values does not fit it
        np.testing.assert_allclose(complex(jz.sum(array)), wide.sum(), rtol=1e-2 if values.itemsize == 2 else 1e-6)
    if values.dtype.kind != "c":
        np.testing.assert_array_equal(float(jz.max(array)), wide.max())
        assert int(jz.argmax(array)) == wide.argmax()
        assert int(jz.argmin(array)) == wide.argmin()


def test_gradients_as_in_memory(situation):
    _, path, values = situation
    if not jnp.issubdtype(values.dtype, jnp.floating):
        with pytest.raises(TypeError):
            jax.grad(lambda x: jz.sum(x * x))(jz.open(path))
        return
    gradient = jax.grad(lambda x: jz.sum(x**2))(jz.open(path))
    assert gradient.dtype == values.dtype
    np.testing.assert_allclose(gradient.to_numpy(), 2 * values)


def test_updates_keep_the_store_readable_by_others(situation):
    name, path, values = situation
    before = metadata_files(path)
    array = jz.open(path)
    new = ~values if values.dtype == bool else (values * values.dtype.type(2)).astype(values.dtype)
    updated = array.update_(~array if values.dtype == bool else array * 2)
    np.testing.assert_array_equal(updated.to_numpy(), new)
    np.testing.assert_array_equal(jz.open(path).to_numpy(), new)
    assert metadata_files(path) == before
    if values.dtype.kind != "V":
        np.testing.assert_array_equal(by_zarr(path), new)
    if name not in NOT_FOR_TENSORSTORE:
        np.testing.assert_array_equal(by_tensorstore(path), new)
    with pytest.raises(errors.StaleArrayError, match="update_"):
        array.to_numpy()


def test_updates_to_the_fill_value(situation):
    _, path, values = situation
    fill = zarr.open_array(LocalStore(path), mode="r").fill_value or 0
    array = jz.open(path)
    array.update_(jz.full(values.shape, fill, values.dtype))
    expected = np.full(values.shape, fill, values.dtype)
    np.testing.assert_array_equal(jz.open(path).to_numpy(), expected)
    np.testing.assert_array_equal(by_zarr(path), expected)


# --- C4: codecs that lose digits ------------------------------------------------------------

SCALED = numcodecs.FixedScaleOffset(offset=273.15, scale=100, dtype="<f4", astype="<i2")


def test_lossy_codecs_hold_what_they_can(tmp_path):
    values = np.array([280.1273, 273.15, 300, 250], "f4")
    create(tmp_path / "a", values, chunks=(2,), zarr_format=2, filters=[SCALED])
    array = jz.open(tmp_path / "a")
    np.testing.assert_allclose(array.to_numpy(), [280.13, 273.15, 300, 250], rtol=1e-6)
    updated = array.update_(array + 0.001)
    np.testing.assert_allclose(updated.to_numpy(), [280.13, 273.15, 300, 250], rtol=1e-6)
    np.testing.assert_array_equal(updated.to_numpy(), by_zarr(tmp_path / "a"))


def test_results_do_not_inherit_lossy_codecs(tmp_path):
    create(tmp_path / "a", np.ones(4, "f4"), chunks=(2,), zarr_format=2, filters=[SCALED])
    saved = (jz.open(tmp_path / "a") + 1e-6).save(tmp_path / "b")
    np.testing.assert_array_equal(saved.to_numpy(), jz.open(tmp_path / "a").to_numpy() + np.float32(1e-6))


def test_rounded_bits(tmp_path):
    create(tmp_path / "a", GRID / 3, zarr_format=2, filters=[numcodecs.BitRound(6)], compressors=None)
    array = jz.open(tmp_path / "a")
    np.testing.assert_array_equal(array.to_numpy(), by_zarr(tmp_path / "a"))
    np.testing.assert_allclose(array.to_numpy(), GRID / 3, rtol=1e-2)


# --- C9 to C11: which array is meant --------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_arrays_own_metadata_is_right_and_the_groups_copy_stale(tmp_path, zarr_format):
    values = stale_copy(tmp_path / "g", zarr_format)
    np.testing.assert_array_equal(jz.open(tmp_path / "g", path="v").to_numpy(), values)
    np.testing.assert_array_equal(jz.open(tmp_path / "g/v").to_numpy(), values)


def test_a_resized_array_is_not_read_short(tmp_path):
    create(tmp_path / "a")
    array = jz.open(tmp_path / "a")
    zarr.open_array(LocalStore(tmp_path / "a"), mode="r+").resize((3, 5))
    with pytest.raises(errors.StaleArrayError, match="Open it again"):
        array.to_numpy()
    with pytest.raises(errors.StaleArrayError, match="Open it again"):
        array.update_(1.0)
    np.testing.assert_array_equal(jz.open(tmp_path / "a").to_numpy(), GRID[:3])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zip_file_is_read_and_never_updated(tmp_path, zarr_format):
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        array = zarr.create_array(store, shape=(4, 3), chunks=(2, 2), dtype="f4", zarr_format=zarr_format)
        array[...] = np.arange(12).reshape(4, 3)
    before = (tmp_path / "a.zip").read_bytes()
    array = jz.open(tmp_path / "a.zip")
    assert float(jz.sum(array)) == 66
    with pytest.raises(errors.ReadOnlyStoreError, match=r"save.*path"):
        array.update_(array + 1)
    assert (tmp_path / "a.zip").read_bytes() == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_last_of_two_zip_entries_counts(tmp_path):
    create(tmp_path / "a", np.zeros((4, 3), "f4"), chunks=(4, 3), compressors=None, zarr_format=2)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.write(tmp_path / "a/.zarray", ".zarray")
        file.writestr("0.0", np.ones(12, "f4").tobytes())
        file.writestr("0.0", np.arange(12, dtype="f4").tobytes())
    assert float(jz.sum(jz.open(tmp_path / "a.zip"))) == 66


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("group", errors.NotAnArrayError, "'img/0', 'img/1'"),
        ("missing", errors.ArrayNotFoundError, "nothing at"),
        ("empty", errors.ArrayNotFoundError, "no array at"),
        ("a.npy", errors.NotAnArrayError, "from_numpy"),
        ("broken", errors.NotAnArrayError, "not valid JSON"),
    ],
)
def test_what_is_no_array_is_said_to_be_what_it_is(tmp_path, name, error, words, mode):
    group = zarr.open_group(LocalStore(tmp_path / "group"), mode="w")
    for level in range(2):
        group.create_array(f"img/{level}", shape=(4, 4), dtype="u2")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "a.npy", GRID)
    create(tmp_path / "broken")
    (tmp_path / "broken/zarr.json").write_text('{"zarr_format": 3, "node_')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=words):
        jz.open(tmp_path / name, mode=mode)
    assert sorted(tmp_path.rglob("*")) == before
    assert jz.open(tmp_path / "group" / "img/0", mode=mode).shape == (4, 4)


# --- C12 to C14: odd sizes ------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_empty_arrays(tmp_path, shape, zarr_format):
    create(tmp_path / "a", np.zeros(shape, "f4"), chunks=(2,) * len(shape), zarr_format=zarr_format)
    array = jz.open(tmp_path / "a")
    assert float(jz.sum(array)) == 0
    assert float(jz.prod(array)) == 1
    assert np.isnan(float(jz.mean(array)))
    np.testing.assert_array_equal(np.asarray(jz.sum(array, axis=0)), np.zeros(shape[1:]))
    for reduction in (jz.max, jz.min, jz.argmax):
        with pytest.raises(ValueError, match=r"zero-size|empty"):
            reduction(array)
    assert jax.grad(lambda x: jz.sum(x * x))(array).shape == shape
    assert (array + 1).save(tmp_path / "b").shape == shape
    assert by_zarr(tmp_path / "b").shape == shape


def test_chunks_of_length_zero_as_old_writers_left_them(tmp_path):
    by_hand(tmp_path / "a", np.zeros(0, "f4"), (0,))
    assert float(jz.sum(jz.open(tmp_path / "a"))) == 0


def test_matmul_over_nothing_is_zero(tmp_path):
    create(tmp_path / "a", np.zeros((3, 0), "f4"), chunks=(2, 2))
    create(tmp_path / "b", np.zeros((0, 4), "f4"), chunks=(2, 2))
    product = jz.open(tmp_path / "a") @ jz.open(tmp_path / "b")
    np.testing.assert_array_equal(np.asarray(product), np.zeros((3, 4)))


def test_a_billion_chunks_cost_nothing_to_open_and_a_part_is_read(tmp_path):
    zarr.create_array(LocalStore(tmp_path / "a"), shape=(10**9,), chunks=(1,), dtype="f4", fill_value=2)
    jz.set_memory_budget("64MB")
    array = jz.open(tmp_path / "a")
    assert float(jz.sum(array[10**8 : 10**8 + 100])) == 200
    with pytest.raises(errors.MemoryBudgetError, match="4,000,000,000 bytes"):
        array.to_numpy()


READS_UNEQUAL = hasattr(zarr.Array, "read_chunk_sizes")
ROWS, COLUMNS = [3, 1, 3], [4, 1]


def unequal(path, dtype="<f4"):
    """Chunks of several sizes; the document and the chunks are laid out here."""
    values = GRID.astype(dtype)
    create(path, values, serializer=BytesCodec(), compressors=None, written=[])
    document = json.loads((path / "zarr.json").read_text())
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [ROWS, COLUMNS]}}
    (path / "zarr.json").write_text(json.dumps(document | {"chunk_grid": grid}))
    for i, j in np.ndindex(len(ROWS), len(COLUMNS)):
        rows, columns = (slice(sum(s[:k]), sum(s[: k + 1])) for s, k in ((ROWS, i), (COLUMNS, j)))
        (path / f"c/{i}").mkdir(parents=True, exist_ok=True)
        (path / f"c/{i}/{j}").write_bytes(values[rows, columns].tobytes())
    return values


def test_chunks_of_unequal_size_are_refused_with_the_remedy(tmp_path):
    unequal(tmp_path / "a")
    with pytest.raises(errors.NotAnArrayError, match=r"rectilinear_chunks.*chunks of one size"):
        jz.open(tmp_path / "a")


@pytest.fixture
def told_to_read_unequal_chunks():
    if not READS_UNEQUAL:
        pytest.skip("this zarr reads no chunks of unequal size")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


@pytest.mark.usefixtures("told_to_read_unequal_chunks")
@pytest.mark.parametrize("dtype", ["<f4", "<i2"])
def test_chunks_of_unequal_size_are_read_where_zarr_is_told_to(tmp_path, dtype):
    values = unequal(tmp_path / "a", dtype)
    array = jz.open(tmp_path / "a")
    assert array.chunks == (3, 4)
    np.testing.assert_array_equal(array.to_numpy(), values)
    np.testing.assert_array_equal(array[2:5, 3:].to_numpy(), values[2:5, 3:])
    assert float(jz.sum(array * array)) == (values * values).sum()
    with pytest.raises(errors.ReadOnlyStoreError, match="unequal size"):
        array.update_(array * 2)
    saved = array.save(tmp_path / "b", chunks=(2, 2))
    np.testing.assert_array_equal(by_zarr(tmp_path / "b"), values)
    np.testing.assert_array_equal(saved.to_numpy(), values)


@pytest.mark.usefixtures("told_to_read_unequal_chunks")
def test_a_damaged_chunk_among_unequal_ones_is_named(tmp_path):
    unequal(tmp_path / "a")
    (tmp_path / "a/c/2/1").write_bytes(b"short")
    with pytest.raises(errors.DamagedChunkError, match=r"Chunk \(2, 1\)"):
        jz.open(tmp_path / "a").to_numpy()


@pytest.mark.parametrize("shards", [None, (1024, 2048)])
def test_a_chunk_larger_than_the_budget_is_an_error_with_both_sizes(tmp_path, shards):
    create(tmp_path / "a", np.ones((1024, 2048), "f4"), chunks=(1024, 2048), shards=shards)
    jz.set_memory_budget("1MB")
    with pytest.raises(errors.MemoryBudgetError, match=r"(?s)1,000,000|750,000"):
        jz.sum(jz.open(tmp_path / "a"))


def test_a_chunk_far_larger_than_its_array_is_not_made_room_for(tmp_path):
    by_hand(tmp_path / "a", GRID, (64, 64))
    document = json.loads((tmp_path / "a/.zarray").read_text())
    (tmp_path / "a/.zarray").write_text(json.dumps(document | {"chunks": [3, 2**31]}))
    array = jz.open(tmp_path / "a")
    with pytest.raises(errors.MemoryBudgetError, match="25,769,803,776 bytes"):
        array.to_numpy()
    with pytest.raises(errors.MemoryBudgetError, match="25,769,803,776 bytes"):
        array.update_(1.0)


# --- C5, C15, C17, C18: numbers that are not what they seem ---------------------------------

REFUSED = {
    "datetime64[s]": np.array(["2020-01-01", "NaT"], "M8[s]"),
    "timedelta64[ms]": np.array([1, 2], "m8[ms]"),
    "|S4": np.array([b"ab", b"abcd"]),
    "<U3": np.array(["ab", "abc"]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", REFUSED)
def test_dates_and_text_are_refused_by_name(tmp_path, dtype, zarr_format):
    create(tmp_path / "a", REFUSED[dtype], chunks=(2,), zarr_format=zarr_format)
    with pytest.raises(errors.UnsupportedDtypeError) as caught:
        jz.open(tmp_path / "a")
    assert dtype in str(caught.value)


@pytest.mark.parametrize("dtype", ["<V2", [["a", "<f4"], ["b", "<i4"]], "|O"])
def test_bytes_without_a_meaning_are_refused(tmp_path, dtype):
    by_hand(tmp_path / "a", np.zeros(4, "u2"), (2,), dtype=dtype, fill_value=None)
    with pytest.raises((errors.UnsupportedDtypeError, errors.NotAnArrayError)):
        jz.open(tmp_path / "a")


WIDE = {
    "f8": [1e300, -1e-300, 1 + 1e-12, 16777217],
    "i8": [2**40 + 3, -(2**31) - 1, 5, 0],
    "u8": [2**63, 1, 2, 3],
    "c16": [1e300, 2j, 3, 4],
}


@pytest.mark.parametrize("dtype", WIDE)
def test_numbers_of_64_bits_are_never_narrowed_unasked(tmp_path, dtype):
    create(tmp_path / "a", np.array(WIDE[dtype], dtype), chunks=(2,))
    with pytest.raises(errors.X64DisabledError, match="jax_enable_x64"):
        jz.open(tmp_path / "a")


@pytest.mark.parametrize("dtype", WIDE)
def test_numbers_of_64_bits_with_x64(tmp_path, dtype, x64):
    values = create(tmp_path / "a", np.array(WIDE[dtype], dtype), chunks=(2,))
    array = jz.open(tmp_path / "a")
    assert array.dtype == values.dtype
    np.testing.assert_array_equal(array.to_numpy(), values)
    array.update_(array - 1)
    np.testing.assert_array_equal(by_zarr(tmp_path / "a"), values - values.dtype.type(1))


def test_numbers_are_narrowed_on_request_and_integers_only_if_they_fit(tmp_path):
    create(tmp_path / "f", np.array([0.5, 2.5, -3]), chunks=(2,))
    array = jz.open(tmp_path / "f", dtype="float32")
    assert (array.dtype, float(jz.sum(array))) == (np.float32, 0.0)
    create(tmp_path / "i", np.array(WIDE["i8"]), chunks=(2,))
    with pytest.raises(errors.IntegerOverflowError, match="do not fit dtype int32"):
        jz.open(tmp_path / "i", dtype="int32").to_numpy()


@pytest.mark.parametrize("dtype", ["i4", "u4"])
def test_an_integer_sum_that_does_not_fit_is_an_error(tmp_path, dtype):
    create(tmp_path / "a", np.full(6, np.iinfo(dtype).max, dtype), chunks=(2,))
    array = jz.open(tmp_path / "a")
    with pytest.raises(errors.IntegerOverflowError, match="does not fit"):
        jz.sum(array)
    assert float(jz.mean(array)) == pytest.approx(np.iinfo(dtype).max)


@pytest.mark.parametrize(("dtype", "total"), [("u1", 255_000), ("i1", -128_000), ("i2", 32_767_000)])
def test_small_integers_add_up(tmp_path, dtype, total):
    create(tmp_path / "a", np.full(1000, total // 1000, dtype), chunks=(300,))
    assert int(jz.sum(jz.open(tmp_path / "a"))) == total


def test_long_float_sums_are_exact_where_a_running_total_is_not(tmp_path):
    create(tmp_path / "a", np.array([1e8, *[1] * 30, -1e8], "f4"), chunks=(4,))
    assert float(jz.sum(jz.open(tmp_path / "a"))) == 30
    create(tmp_path / "b", np.array([2**24, *[1] * 3000], "f4"), chunks=(500,))
    assert float(jz.sum(jz.open(tmp_path / "b"))) == 2**24 + 3000


# --- C21: gradients -------------------------------------------------------------------------


def test_a_gradient_is_shared_by_ties_in_different_chunks(tmp_path):
    values = create(tmp_path / "a", np.array([1, 5, 0, 5, 2, 5], "f4"), chunks=(2,))
    gradient = jax.grad(jz.max)(jz.open(tmp_path / "a"))
    np.testing.assert_allclose(gradient.to_numpy(), jax.grad(jnp.max)(values))


def test_a_missing_chunk_has_a_gradient(tmp_path):
    filled(tmp_path / "a", 7, 3)
    gradient = jax.grad(lambda x: jz.sum(x**2))(jz.open(tmp_path / "a")).save(tmp_path / "g")
    np.testing.assert_array_equal(gradient.to_numpy(), [2, 4, 6, 8, *[14] * 6])
    assert zarr.open_array(LocalStore(tmp_path / "g"), mode="r").fill_value == 0


def test_a_complex_gradient_follows_jax(tmp_path):
    values = create(tmp_path / "a", np.array([3 + 4j, 1 - 2j], "c8"), chunks=(1,))
    gradient = jax.grad(lambda x: jz.sum(jz.abs(x) ** 2))(jz.open(tmp_path / "a"))
    np.testing.assert_allclose(gradient.to_numpy(), jax.grad(lambda x: jnp.sum(jnp.abs(x) ** 2))(values), rtol=1e-6)


# --- C25, C27: updates that read what they write --------------------------------------------

SQUARE = np.arange(36, dtype="f4").reshape(6, 6)
INPLACE = {
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "less its mean": lambda x: x - x.mean(),
    "squared": lambda x: x @ x,
    "plus its first row": lambda x: x + x[0],
    "less its sums": lambda x: x - x.sum(axis=0),
}


@pytest.mark.parametrize("name", INPLACE)
@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_an_update_may_read_what_it_writes(tmp_path, name, shards):
    create(tmp_path / "a", SQUARE, chunks=(2, 2) if shards else (4, 4), shards=shards)
    array = jz.open(tmp_path / "a")
    before, updated = array + 1, array.update_(INPLACE[name](array))
    np.testing.assert_allclose(updated.to_numpy(), INPLACE[name](SQUARE), rtol=1e-6)
    np.testing.assert_allclose(by_zarr(tmp_path / "a"), INPLACE[name](SQUARE), rtol=1e-6)
    np.testing.assert_array_equal(before.to_numpy(), SQUARE + 1)


def test_arrays_on_one_store_are_known_to_be_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "a", SQUARE, chunks=(4, 4))
    os.symlink("a", tmp_path / "link")
    ways = [jz.open(way) for way in ("a", "./a", "a/", "link", tmp_path / "a")]
    ways[0].update_(ways[1].T)
    for way in ways:
        with pytest.raises(errors.StaleArrayError):
            way.to_numpy()
    assert (tmp_path / "link").is_symlink()
    np.testing.assert_array_equal(by_zarr(tmp_path / "a"), SQUARE.T)


def test_a_read_only_array_stays_so_beside_a_writable_one(tmp_path):
    create(tmp_path / "a")
    for order in (("r", "r+"), ("r+", "r")):
        arrays = {mode: jz.open(tmp_path / "a", mode=mode) for mode in order}
        with pytest.raises(errors.ReadOnlyStoreError, match="mode='r'"):
            arrays["r"].update_(arrays["r"] + 1)
        arrays["r+"].update_(arrays["r+"] + 0)
        with pytest.raises(errors.StaleArrayError):
            arrays["r"].to_numpy()


# --- C26: damage ----------------------------------------------------------------------------


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("length", [0, 8])
def test_a_chunk_cut_short_is_named_and_nothing_is_overwritten(tmp_path, compressors, length):
    create(tmp_path / "a", compressors=compressors)
    file = tmp_path / "a/c/1/0"
    file.write_bytes(file.read_bytes()[:length])
    others = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    array = jz.open(tmp_path / "a")
    with pytest.raises(errors.DamagedChunkError, match=r"Chunk \(1, 0\)"):
        array.to_numpy()
    with pytest.raises(errors.DamagedChunkError, match=r"Chunk \(1, 0\)"):
        array.update_(array + 1)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == others


@pytest.mark.parametrize("shards", [None, (6, 4)])
def test_a_flipped_bit_under_a_checksum_is_named(tmp_path, shards):
    create(tmp_path / "a", shards=shards, compressors=Crc32cCodec())
    file = tmp_path / "a/c/0/0"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    array = jz.open(tmp_path / "a")
    with pytest.raises(errors.DamagedChunkError, match=r"Chunk \(0, 0\).*checksum"):
        array.to_numpy()
    with pytest.raises(errors.DamagedChunkError, match=r"Chunk \(0, 0\).*checksum"):
        array.update_(array + 1)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


# --- C28: values that were handed out stay --------------------------------------------------


def test_arrays_that_were_read_do_not_change_afterwards(tmp_path):
    values = np.repeat(np.arange(64, dtype="f4") ** 2, 1024)
    create(tmp_path / "a", values, chunks=(1024,))
    array = jz.open(tmp_path / "a")
    kept = [jnp.asarray(array[i * 1024 : (i + 1) * 1024].to_numpy()) for i in range(64)]
    assert [float(k[0]) for k in kept] == [i**2 for i in range(64)]
    assert all(float(k.min()) == float(k.max()) for k in kept)


# --- C30: paths -----------------------------------------------------------------------------

ODD_NAMES = ["mit leer", "ü", "run#1", "a?b", "100%20", "[1]*", "file.zip", "n\nl", "x" * 184]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_path_is_a_path_whatever_characters_it_has(tmp_path, name):
    create(tmp_path / name)
    array = jz.open(str(tmp_path / name))
    updated = array.update_(array * 2)
    np.testing.assert_array_equal(updated.to_numpy(), GRID * 2)
    np.testing.assert_array_equal(by_zarr(tmp_path / name), GRID * 2)
    assert os.listdir(tmp_path) == [name]


def test_a_relative_path_is_that_of_the_moment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "a")
    array = jz.open("a")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    array.update_(array * 2)
    assert os.listdir() == []
    np.testing.assert_array_equal(by_zarr(tmp_path / "a"), GRID * 2)


def test_a_linked_chunk_is_replaced_and_what_it_pointed_to_stays(tmp_path):
    linked_chunk(tmp_path / "a")
    before = (tmp_path / "chunk").read_bytes()
    array = jz.open(tmp_path / "a")
    array.update_(array * 2)
    assert (tmp_path / "chunk").read_bytes() == before
    assert not Path(tmp_path, "a/c/0/0").is_symlink()
