"""`BlockedArray`: what opens, what is refused and how, what reading and writing promise."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore, ZipStore

import jask_zarr as jz
from jask_zarr._disk import BlockedArray, SpillFile, dtypes, io_cost, stores
from jask_zarr.errors import (
    ArrayNotFoundError,
    DtypeMismatchError,
    NotAnArrayError,
    ReadOnlyStoreError,
    ShapeMismatchError,
    StaleArrayError,
    UnsupportedDtypeError,
)

VALUES = np.arange(35, dtype="f4").reshape(7, 5)


def make(place, values=VALUES, /, **options):
    return BlockedArray.from_numpy(values, place, **({"chunks": (3, 2)} | options))


def everything(array):
    return array.read_box((0,) * array.ndim, array.shape)


@pytest.fixture
def array(tmp_path):
    return make(tmp_path / "a.zarr")


# --- what it is -----------------------------------------------------------------------------


def test_the_attributes_are_those_of_numpy_and_of_the_grid(array):
    assert (array.shape, array.dtype, array.ndim) == ((7, 5), np.dtype("f4"), 2)
    assert (array.size, array.nbytes) == (35, 140)
    assert (array.chunks, array.write_chunks, array.block_grid) == ((3, 2), (3, 2), (3, 3))
    assert array.fill_value == 0
    assert array.read_only is False
    np.testing.assert_array_equal(array.zarr_array[:], VALUES)


def test_a_sharded_array_is_read_by_chunks_and_written_by_shards(tmp_path):
    array = make(tmp_path / "a", shards=(6, 4))
    assert (array.chunks, array.write_chunks) == ((3, 2), (6, 4))
    with pytest.raises(ShapeMismatchError, match=r"whole chunks of \(6, 4\)"):
        array.write_box((0, 0), np.ones((3, 2), "f4"))


def test_the_description_names_shape_dtype_chunks_codecs_and_place(array):
    text = repr(array)
    for part in ("(7, 5)", "float32", "(3, 2)", "bytes, zstd", str(array.path)):
        assert part in text


@pytest.mark.parametrize(
    ("options", "codecs"),
    [
        ({"compressors": None}, "bytes"),
        ({"shards": (6, 4)}, "sharding_indexed(bytes, zstd)"),
        ({"compressors": zarr.codecs.BloscCodec(cname="lz4")}, "bytes, blosc-lz4"),
        ({"zarr_format": 2, "compressors": None}, "raw"),
        ({"zarr_format": 2}, "zstd"),
    ],
)
def test_codecs_are_named(tmp_path, options, codecs):
    assert make(tmp_path / "a", **options).codecs == codecs


def test_stored_bytes_are_those_of_the_chunk_files(tmp_path):
    assert make(tmp_path / "a", compressors=None, chunks=(7, 5)).stored_bytes() == VALUES.nbytes
    assert BlockedArray.create(tmp_path / "b", (9,), "f4").stored_bytes() == 0
    assert make(MemoryStore(), compressors=None).stored_bytes() > 0


# --- paths ----------------------------------------------------------------------------------

ODD_NAMES = ["x.zarr#1", "a?b", "100%20", "[1]*", "file.zip", "mit leer", "ü", "a:b", "a//b/", "n\nl"]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_a_path_whatever_characters_it_has(tmp_path, name, kind):
    other = make(tmp_path / "x.zarr", VALUES + 1)
    array = make(kind(f"{tmp_path}/{name}"))
    opened = BlockedArray.open(kind(f"{tmp_path}/{name}"))
    np.testing.assert_array_equal(everything(opened), VALUES)
    np.testing.assert_array_equal(everything(other), VALUES + 1)
    assert os.path.isdir(opened.path)
    assert opened.identity == array.identity


def test_a_relative_path_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make("r.zarr")
    from_path = BlockedArray.open("r.zarr")
    from_array = BlockedArray.open(zarr.open_array("r.zarr", mode="r+"))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for array in (from_path, from_array):
        np.testing.assert_array_equal(everything(array), VALUES)
        array.write_box((0, 0), VALUES + 1)
        array.write_box((0, 0), VALUES)
    assert os.listdir() == []


def test_the_same_array_has_one_identity_by_every_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    array = make(tmp_path / "g" / "a")
    os.symlink("g", tmp_path / "link")
    ways = ["g/a", "./g/a", "g/a/", "link/a", LocalStore("g/a"), array.zarr_array, ("g", "a")]
    opened = [BlockedArray.open(*(w if isinstance(w, tuple) else (w,))) for w in ways]
    assert {other.identity for other in opened} == {array.identity}
    assert make(tmp_path / "b").identity != array.identity


def test_arrays_in_memory_are_known_by_their_store(tmp_path):
    store = MemoryStore()
    array = make(store, path="a")
    again = BlockedArray.open(zarr.open_array(store, path="a", mode="r"))
    assert array.identity == again.identity
    assert make(store, path="b").identity != array.identity
    assert make(MemoryStore(), path="a").identity != array.identity


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_everything_that_names_an_array_opens_it(tmp_path, zarr_format):
    path = tmp_path / "g.zarr"
    make(path, path="in/a", zarr_format=zarr_format)
    group = zarr.open_group(LocalStore(path), mode="r")
    for source, inner in (
        (path, "in/a"),
        (str(path), "/in/a/"),
        (path / "in", "a"),
        (path / "in" / "a", None),
        (LocalStore(path), "in/a"),
        (group, "in/a") if zarr_format == 3 else (path, "in/a"),
        (zarr.open_array(LocalStore(path), path="in/a", mode="r+"), None),
    ):
        np.testing.assert_array_equal(everything(BlockedArray.open(source, inner)), VALUES)


def test_what_names_nothing_is_a_type_error():
    with pytest.raises(TypeError, match="path, a zarr store or a zarr array"):
        BlockedArray.open(17)


def test_a_url_is_left_to_zarr():
    place = stores.place_of("memory://somewhere/a", "b")
    assert (place.store, place.path, place.directory) == ("memory://somewhere/a", "b", None)


def test_a_zip_file_is_read_and_cannot_be_written(tmp_path):
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, name="x", shape=(7, 5), chunks=(3, 2), dtype="f4")[:] = VALUES
    array = BlockedArray.open(tmp_path / "a.zip", path="x")
    np.testing.assert_array_equal(everything(array), VALUES)
    assert array.read_only
    assert array.identity == BlockedArray.open(str(tmp_path / "a.zip"), "x").identity
    with pytest.raises(ReadOnlyStoreError, match=r"a\.zip"):
        array.write_box((0, 0), VALUES)
    with pytest.raises(ReadOnlyStoreError, match="created"):
        make(tmp_path / "a.zip", path="y")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_an_array_is_read_by_its_own_metadata_not_by_the_groups_copy(tmp_path):
    store = LocalStore(tmp_path / "g")
    group = zarr.create_group(store)
    group.create_array("v", shape=(4,), chunks=(2,), dtype="f4")[:] = 1
    zarr.consolidate_metadata(store)
    stored = zarr.open_array(store, path="v", mode="r+")
    stored.resize((6,))
    stored[4:] = 5
    stale = zarr.open_group(store, mode="r", use_consolidated=True)
    for source, path in ((tmp_path / "g", "v"), (stale, "v"), (stale["v"], None)):
        assert everything(BlockedArray.open(source, path)).sum() == 14


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("path", [None, "inner"])
def test_a_missing_path_is_an_error_and_nothing_is_created(tmp_path, mode, path):
    with pytest.raises(ArrayNotFoundError, match=r"nothing at .*typo"):
        BlockedArray.open(tmp_path / "typo.zarr", path=path, mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_member_is_an_error_that_lists_the_others(tmp_path):
    make(tmp_path / "g", path="t2m")
    with pytest.raises(ArrayNotFoundError, match=r"no array at .*'t2m'"):
        BlockedArray.open(tmp_path / "g", path="typo")


def test_an_empty_directory_is_no_array(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(ArrayNotFoundError, match="no array at"):
        BlockedArray.open(tmp_path / "d")
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("memory", [False, True])
def test_a_group_is_an_error_that_lists_its_arrays(tmp_path, zarr_format, memory):
    store = MemoryStore() if memory else LocalStore(tmp_path / "g")
    group = zarr.create_group(store, zarr_format=zarr_format)
    for name in ("img/0", "img/1"):
        group.create_array(name, shape=(2,), dtype="f4")
    with pytest.raises(NotAnArrayError, match=r"group.*'img/0', 'img/1'.*path="):
        BlockedArray.open(store if memory else tmp_path / "g")


def test_many_members_are_not_all_listed(tmp_path):
    group = zarr.create_group(LocalStore(tmp_path / "g"))
    for number in range(25):
        group.create_array(f"{number:02}", shape=(2,), dtype="f4")
    with pytest.raises(NotAnArrayError, match=r"'19' and 5 more"):
        BlockedArray.open(tmp_path / "g")


def test_a_file_of_another_kind_is_an_error(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    with pytest.raises(NotAnArrayError, match="from_numpy"):
        BlockedArray.open(tmp_path / "a.npy")


@pytest.mark.parametrize("text", ['{"zarr_format": 3, "nod', "[]", "{}", '{"zarr_format": 3}'])
def test_broken_metadata_is_an_error_that_names_the_place(tmp_path, text):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "zarr.json").write_text(text)
    with pytest.raises((NotAnArrayError, ArrayNotFoundError), match=str(tmp_path / "a")):
        BlockedArray.open(tmp_path / "a")


def test_an_unknown_codec_is_an_error_that_names_it(array):
    file = Path(array.path, "zarr.json")
    file.write_text(file.read_text().replace('"zstd"', '"mystery"'))
    with pytest.raises((NotAnArrayError, UnsupportedDtypeError), match="mystery"):
        BlockedArray.open(array.path)


REFUSED = [
    ("datetime64[s]", "NaT"),
    ("timedelta64[ms]", "NaT"),
    ("S4", "integer codes"),
    ("<U3", "integer codes"),
    ([("a", "f4"), ("b", "i4")], "numbers|field"),
    ("V6", "uint8"),
]


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("dtype", "remedy"), REFUSED, ids=[str(d) for d, _ in REFUSED])
def test_data_that_jax_does_not_have_is_refused_with_its_name_and_a_remedy(tmp_path, zarr_format, dtype, remedy):
    zarr.create_array(LocalStore(tmp_path / "a"), shape=(2,), dtype=dtype, zarr_format=zarr_format)
    with pytest.raises(UnsupportedDtypeError, match=remedy) as caught:
        BlockedArray.open(tmp_path / "a")
    name = dtypes.dtype_name(np.dtype(dtype))
    assert name in str(caught.value) or "'f4'" in str(caught.value) or "float32" in str(caught.value)
    with pytest.raises(UnsupportedDtypeError, match="The new array"):
        BlockedArray.create(tmp_path / "b", (2,), dtype)
    assert not (tmp_path / "b").exists()


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_variable_length_text_is_refused(tmp_path, zarr_format):
    zarr.create_array(LocalStore(tmp_path / "a"), shape=(2,), dtype=str, zarr_format=zarr_format)
    with pytest.raises(UnsupportedDtypeError, match="integer codes"):
        BlockedArray.open(tmp_path / "a")


@pytest.mark.parametrize(
    ("dtype", "wide", "narrow"),
    [("f8", True, "f4"), ("i8", True, "i4"), ("u8", True, "u4"), ("c16", True, "c8")]
    + [(d, False, d) for d in ("f4", "i4", "u1", "?", "c8", "f2", "bfloat16")],
)
def test_data_of_64_bits_is_known(dtype, wide, narrow):
    assert dtypes.is_64_bit(np.dtype(dtype)) is wide
    assert dtypes.narrowed(np.dtype(dtype)) == np.dtype(narrow)


@pytest.mark.parametrize("mode", ["w", "a", "x", ""])
def test_only_modes_that_create_nothing_are_taken(array, mode):
    with pytest.raises(ValueError, match="'r' or 'r\\+'"):
        BlockedArray.open(array.path, mode=mode)


# --- reading and writing --------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop"), [((0, 0), (8, 5)), ((-1, 0), (2, 2)), ((3, 0), (2, 5)), ((0,), (7,))])
def test_a_box_outside_the_array_is_an_error(array, start, stop):
    with pytest.raises(ShapeMismatchError, match=r"not inside .*\(7, 5\)"):
        array.read_box(start, stop)


def test_out_must_fit(array):
    with pytest.raises(ShapeMismatchError, match="out has shape"):
        array.read_box((0, 0), (2, 2), out=np.empty((2, 3), "f4"))
    with pytest.raises(DtypeMismatchError, match="out is float64"):
        array.read_box((0, 0), (2, 2), out=np.empty((2, 2)))


def test_values_are_never_cast_silently(array):
    with pytest.raises(DtypeMismatchError, match=r"float64.*astype\('float32'\)"):
        array.write_box((0, 0), VALUES.astype("f8"))
    np.testing.assert_array_equal(everything(array), VALUES)


@pytest.mark.parametrize(("start", "shape"), [((0, 0), (3, 3)), ((1, 0), (3, 2)), ((6, 0), (1, 3))])
def test_a_write_that_cuts_a_chunk_is_an_error(array, start, shape):
    with pytest.raises(ShapeMismatchError, match="whole chunks"):
        array.write_box(start, np.ones(shape, "f4"))
    np.testing.assert_array_equal(everything(array), VALUES)


def test_a_write_reaches_the_arrays_end(array):
    array.write_box((6, 4), np.full((1, 1), 9, "f4"))
    assert array.read_block((2, 2)) == 9
    array.write_block((2, 2), np.full((1, 1), 8, "f4"))
    assert array.read_block((2, 2)) == 8
    with pytest.raises(ShapeMismatchError, match="values has shape"):
        array.write_block((2, 2), np.full((3, 2), 8, "f4"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4)])
def test_scalars_and_empty_arrays(tmp_path, shape, zarr_format):
    values = np.full(shape, 3, "f4")
    array = BlockedArray.from_numpy(values, tmp_path / "a", zarr_format=zarr_format)
    np.testing.assert_array_equal(everything(array), values, strict=True)
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), values)
    assert array.nbytes == values.nbytes


def test_a_billion_absent_chunks_open_at_once(tmp_path):
    shape = (1000, 1000, 1000)
    array = BlockedArray.create(tmp_path / "a", shape, "u1", chunks=(1, 1, 1), fill_value=2)
    array = BlockedArray.open(tmp_path / "a")
    assert array.block_grid == shape
    assert array.read_box((5, 5, 5), (7, 7, 7)).tolist() == [[[2, 2], [2, 2]]] * 2


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_byte_order_of_the_store_is_kept_and_not_shown(tmp_path, zarr_format):
    array = make(tmp_path / "a", dtype=">f4", zarr_format=zarr_format)
    assert array.dtype == np.dtype("f4")
    assert array.dtype.isnative
    assert everything(array).dtype.isnative
    document = (tmp_path / "a" / (".zarray" if zarr_format == 2 else "zarr.json")).read_text()
    assert ">f4" in document or '"big"' in document
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), VALUES)


@pytest.mark.parametrize("fill", [0, 7, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_was_not_written_is_the_fill_value(tmp_path, fill, zarr_format):
    BlockedArray.create(tmp_path / "a", (3,), "f4", fill_value=fill, zarr_format=zarr_format)
    array = BlockedArray.open(tmp_path / "a")
    np.testing.assert_array_equal(everything(array), np.full(3, fill, "f4"))
    np.testing.assert_array_equal(array.fill_value, np.float32(fill))


def test_a_null_fill_value_is_zero(tmp_path):
    zarr.create_array(LocalStore(tmp_path / "a"), shape=(3,), dtype="f4", zarr_format=2, fill_value=None)
    array = BlockedArray.open(tmp_path / "a")
    assert array.fill_value == 0
    assert everything(array).tolist() == [0, 0, 0]


def test_attributes_and_dimension_names_are_stored(tmp_path):
    make(tmp_path / "a", attributes={"units": "K"}, dimension_names=("y", "x"))
    stored = zarr.open_array(LocalStore(tmp_path / "a"), mode="r")
    assert dict(stored.attrs) == {"units": "K"}
    assert stored.metadata.dimension_names == ("y", "x")


def test_what_exists_is_not_overwritten_unasked(tmp_path):
    make(tmp_path / "a")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        make(tmp_path / "a", VALUES + 1)
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), VALUES)
    array = make(tmp_path / "a", VALUES[:4] + 1, overwrite=True)
    np.testing.assert_array_equal(everything(array), VALUES[:4] + 1)


def test_chunks_must_have_the_arrays_rank(tmp_path):
    with pytest.raises(ShapeMismatchError, match="one length for each dimension"):
        BlockedArray.create(tmp_path / "a", (4, 4), "f4", chunks=(2,))


def test_an_array_resized_behind_our_back_is_stale(array):
    zarr.open_array(LocalStore(array.path), mode="r+").resize((9, 5))
    with pytest.raises(StaleArrayError, match=r"\(7, 5\).*\(9, 5\).*Open it again"):
        array.read_box((0, 0), (7, 5))


def test_new_attributes_do_not_make_an_array_stale(array):
    zarr.open_array(LocalStore(array.path), mode="r+").attrs["units"] = "K"
    np.testing.assert_array_equal(everything(array), VALUES)


def test_a_deleted_array_is_not_read_as_its_fill_value(array):
    shutil.rmtree(array.path)
    with pytest.raises(ArrayNotFoundError):
        everything(array)


def test_an_array_is_pickled_by_its_place(array):
    again = pickle.loads(pickle.dumps(array))
    assert again.identity == array.identity
    np.testing.assert_array_equal(everything(again), VALUES)


def test_chunks_outside_the_grid_are_not_read(array):
    shutil.copy(Path(array.path, "c/0/0"), Path(array.path, "c/0/9"))
    np.testing.assert_array_equal(everything(BlockedArray.open(array.path)), VALUES)


# --- read-only ------------------------------------------------------------------------------


def read_only_ways(tmp_path):
    array = make(tmp_path / "a")
    yield BlockedArray.open(tmp_path / "a", mode="r")
    yield BlockedArray.open(LocalStore(tmp_path / "a", read_only=True))
    yield BlockedArray.open(zarr.open_array(LocalStore(tmp_path / "a"), mode="r"))
    yield BlockedArray.open(array.zarr_array, mode="r")


def test_read_only_arrays_refuse_to_be_written_and_say_what_to_do(tmp_path):
    for array in read_only_ways(tmp_path):
        assert array.read_only
        with pytest.raises(ReadOnlyStoreError, match=r"\.save\(path\)"):
            array.write_box((0, 0), VALUES + 1)
        np.testing.assert_array_equal(everything(array), VALUES)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_directory_of_somebody_else_opens_read_only(tmp_path):
    array = make(tmp_path / "a")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and len(folder.parts) > 2:
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        opened = BlockedArray.open(array.path)
        assert opened.read_only
        np.testing.assert_array_equal(everything(opened), VALUES)
    finally:
        os.seteuid(0)


# --- disk full ------------------------------------------------------------------------------

FULL = """if True:
    import resource, sys
    import numpy as np
    from jask_zarr._disk import BlockedArray
    array = BlockedArray.open(sys.argv[1], engine=sys.argv[2] or None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        array.write_box((0, 0), np.random.default_rng(0).random(array.shape, dtype="f4"))
    except OSError as error:
        sys.exit(0 if error.filename and sys.argv[1] in str(error) else f"no path: {error!r}")
    sys.exit("nothing was raised")
"""


@pytest.mark.parametrize("engine", ["", "zarr"])
def test_a_file_that_does_not_fit_is_an_oserror_with_its_path_and_leaves_no_part(tmp_path, engine):
    make(tmp_path / "a", np.ones((8, 1024), "f4"), chunks=(8, 1024), compressors=None)
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "a"), engine], check=True)
    assert everything(BlockedArray.open(tmp_path / "a")).sum() == 8 * 1024
    assert [p.name for p in (tmp_path / "a" / "c" / "0").iterdir()] == ["0"]


# --- counting -------------------------------------------------------------------------------


def test_each_chunk_once_costs_the_bytes_of_the_array(array):
    with io_cost() as cost:
        everything(array)
        array.write_box((0, 0), VALUES)
    assert (cost.blocks_read, cost.bytes_read) == (9, VALUES.nbytes)
    assert (cost.blocks_written, cost.bytes_written) == (9, VALUES.nbytes)


def test_a_part_of_a_chunk_costs_the_whole_of_it(array):
    with io_cost() as cost:
        array.read_box((2, 1), (4, 2))
        array.read_box((2, 1), (2, 2))
    assert (cost.blocks_read, cost.bytes_read) == (2, 2 * 3 * 2 * 4)


def test_writes_of_shards_count_shards(tmp_path):
    array = make(tmp_path / "a", shards=(6, 4))
    with io_cost() as cost:
        array.write_box((0, 0), VALUES)
        array.read_block((0, 0))
    assert (cost.blocks_written, cost.blocks_read) == (4, 1)


def test_counts_nest_and_end_and_see_other_threads(array):
    with io_cost() as outer:
        with io_cost() as inner:
            worker = threading.Thread(target=everything, args=(array,))
            worker.start()
            worker.join()
        everything(array)
    everything(array)
    assert (inner.blocks_read, outer.blocks_read) == (9, 18)


def test_a_failed_read_costs_nothing(array):
    with io_cost() as cost, pytest.raises(ShapeMismatchError):
        array.read_box((0, 0), (99, 99))
    assert cost.blocks_read == 0


# --- the shared cases -----------------------------------------------------------------------


def test_metadata_of_both_formats_side_by_side_opens_as_the_newer(tmp_path):
    make(tmp_path / "a", VALUES)
    make(tmp_path / "b", VALUES + 1, zarr_format=2)
    shutil.copy(tmp_path / "b" / ".zarray", tmp_path / "a" / ".zarray")
    with pytest.warns(UserWarning, match="Both zarr"):
        array = BlockedArray.open(tmp_path / "a")
    np.testing.assert_array_equal(everything(array), VALUES)


def test_a_bare_nan_in_the_metadata_is_read(tmp_path):
    make(tmp_path / "a", zarr_format=2)
    file = tmp_path / "a" / ".zarray"
    document = json.loads(file.read_text()) | {"fill_value": float("nan")}
    file.write_text(json.dumps(document))
    assert "NaN" in file.read_text()
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), VALUES)


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="leaves a trace elsewhere")
def test_opening_leaves_no_trace(array):
    before = sorted(p.name for p in Path(array.path).iterdir())
    status = os.stat(array.path)
    opened = BlockedArray.open(array.path)
    everything(opened)
    assert opened.read_only is False
    assert sorted(p.name for p in Path(array.path).iterdir()) == before
    assert os.stat(array.path).st_mtime_ns == status.st_mtime_ns


def test_scratch_arrays_are_blocked_arrays():
    spill = SpillFile.create((7, 5), "f4", (3, 2))
    spill.write_box((0, 0), VALUES)
    np.testing.assert_array_equal(everything(BlockedArray.open(spill.path)), VALUES)


REFUSED = {
    "a chunk beyond the budget": dict(chunks=(1000, 1000)),
    "a shard beyond the budget": dict(chunks=(5, 5), shards=(1000, 1000)),
    "no length": dict(chunks=(0, 5)),
    "a negative length": dict(chunks=(-2, 5)),
    "a fraction": dict(chunks=(2.7, 5)),
    "too few lengths": dict(chunks=(5,)),
    "another format": dict(zarr_format=4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_what_was_to_be_replaced(name, tmp_path):
    before = BlockedArray.from_numpy(np.full((50, 40), 7, "f4"), tmp_path / "a")
    jz.set_memory_budget("64kB")
    for where in ("a", "b"):
        with pytest.raises((ValueError, TypeError, MemoryError)):
            BlockedArray.create(tmp_path / where, (50, 40), "f4", overwrite=True, **REFUSED[name])
    np.testing.assert_array_equal(before.read_box((0, 0), (50, 40)), 7)
    assert not (tmp_path / "b").exists()


def test_a_whole_dimension_is_minus_one(tmp_path):
    assert BlockedArray.create(tmp_path / "a", (50, 40), "f4", chunks=(-1, 8)).chunks == (50, 8)
    assert BlockedArray.create(tmp_path / "b", (50, 40), "f4", chunks=10).chunks == (10, 10)
