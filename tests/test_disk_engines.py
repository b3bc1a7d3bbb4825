"""Both engines read and write the same bytes, whatever the format, codec, order and byte order."""

import json
import re
import zlib
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore

from jask_zarr import _chunks
from jask_zarr._disk import BlockedArray
from jask_zarr._disk.codecs import decompress
from jask_zarr.errors import DamagedChunkError, MemoryBudgetError

SHAPE, CHUNKS, SHARDS = (7, 5, 4), (3, 2, 4), (6, 4, 4)
V2_COMPRESSORS = {
    "raw": None,
    "blosc-lz4": numcodecs.Blosc("lz4", 5, 1),
    "blosc-zstd-bit": numcodecs.Blosc("zstd", 3, 2),
    "zstd": numcodecs.Zstd(1),
    "zstd-checksum": numcodecs.Zstd(1, True),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "bz2": numcodecs.BZ2(1),
}
V3_COMPRESSORS = {
    "raw": None,
    "blosc-lz4": BloscCodec(cname="lz4", shuffle="shuffle"),
    "blosc-zstd-auto": BloscCodec(cname="zstd"),
    "blosc-typesize-1": BloscCodec(cname="lz4", typesize=1, shuffle="shuffle"),
    "zstd": ZstdCodec(level=1),
    "zstd-checksum": ZstdCodec(level=1, checksum=True),
    "gzip": GzipCodec(level=1),
    "crc32c": Crc32cCodec(),
    "two": [ZstdCodec(level=1), Crc32cCodec()],
}
ONLY_ZARR = ("bz2", "crc32c", "two", "blosc-typesize-1")
DTYPES = ("f4", ">f4", "f8", "i2", ">u4", "u1", "?", "f2", "c8", ">c16", "bfloat16")

V2 = [
    pytest.param({"zarr_format": 2, "compressors": c, "order": order}, id=f"v2-{name}-{order}")
    for name, c in V2_COMPRESSORS.items()
    for order in "CF"
]
V3 = [
    pytest.param({"compressors": c, "filters": filters, "shards": shards}, id=f"v3-{name}-{kind}")
    for name, c in V3_COMPRESSORS.items()
    for kind, filters, shards in (
        ("plain", None, None),
        ("transposed", [TransposeCodec(order=(2, 0, 1))], None),
        ("sharded", None, SHARDS),
    )
]


def values_of(dtype, seed=0):
    numbers = np.random.default_rng(seed).integers(0, 100, SHAPE)
    return numbers.astype(np.dtype(dtype).newbyteorder("=") if dtype != "bfloat16" else dtype)


def create(path, dtype="f4", fill_value=0, **options):
    if str(dtype).startswith(">") and options.get("zarr_format") != 2:
        options["serializer"] = BytesCodec(endian="big")
    return zarr.create_array(
        LocalStore(path), shape=SHAPE, chunks=CHUNKS, dtype=dtype, fill_value=fill_value, **options
    )


def both(path):
    return BlockedArray.open(path), BlockedArray.open(path, engine="zarr")


def everything(array):
    return array.read_box((0,) * array.ndim, array.shape)


@pytest.mark.parametrize("dtype", ["f4", ">f4"])
@pytest.mark.parametrize("options", V2 + V3)
def test_what_one_engine_writes_the_other_reads(tmp_path, options, dtype):
    create(tmp_path / "a", dtype, fill_value=7, **options)
    fast, plain = both(tmp_path / "a")
    for writer, reader in ((fast, plain), (plain, fast), (fast, fast)):
        values = values_of(dtype, seed=id(writer) % 97)
        writer.write_box((0, 0, 0), values)
        np.testing.assert_array_equal(everything(reader), values, strict=True)


@pytest.mark.parametrize("options", [*V2[:4], *V3[:6]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read_and_written_by_both(tmp_path, options, dtype):
    create(tmp_path / "a", dtype, **options)
    values = values_of(dtype)
    for array in both(tmp_path / "a"):
        array.write_box((0, 0, 0), values)
        for reader in both(tmp_path / "a"):
            np.testing.assert_array_equal(everything(reader), values, strict=True)


@pytest.mark.parametrize("options", V2 + V3)
def test_the_file_engine_takes_what_it_understands(tmp_path, options, request):
    create(tmp_path / "a", **options)
    slow = any(name in request.node.callspec.id for name in ONLY_ZARR)
    assert BlockedArray.open(tmp_path / "a").engine == ("zarr" if slow else "file")


@pytest.mark.parametrize("options", [V2[2], V2[3], V3[3], V3[4], V3[5]])
def test_missing_chunks_are_the_fill_value_and_edges_are_clipped(tmp_path, options):
    stored = create(tmp_path / "a", fill_value=np.nan, **options)
    expected = np.full(SHAPE, np.nan, "f4")
    expected[:3, :2] = stored[:3, :2] = 1
    expected[6:, 4:] = stored[6:, 4:] = 2
    for array in both(tmp_path / "a"):
        np.testing.assert_array_equal(everything(array), expected)


PATHS = {f"{o.id}": o.values[0] for o in (V2[0], V2[3], V3[0], V3[3], V3[4], V3[5])}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores")
    for name, options in PATHS.items():
        create(root / name, ">f4" if "transposed" in name else "f4", **options)[:] = values_of("f4")
    return {name: both(root / name) for name in PATHS}


@st.composite
def boxes(draw):
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in SHAPE]
    return tuple(a for a, _ in ends), tuple(b for _, b in ends)


@settings(deadline=None)
@given(box=boxes(), name=st.sampled_from(sorted(PATHS)))
def test_any_box_is_read_by_both_into_any_memory(stores, box, name):
    start, stop = box
    expected = values_of("f4")[_chunks.box_slices(start, stop)]
    for array in stores[name]:
        np.testing.assert_array_equal(array.read_box(start, stop), expected, strict=True)
        strided = np.zeros((*expected.shape, 2), "f4")[..., 0]
        assert array.read_box(start, stop, out=strided) is strided
        np.testing.assert_array_equal(strided, expected)


@settings(deadline=None)
@given(st.data())
def test_written_chunk_by_chunk_in_any_order_the_array_is_whole(stores, data):
    array = stores["v3-blosc-lz4-sharded"][0]
    grid = _chunks.grid_shape(array.shape, array.write_chunks)
    values = values_of("f4", seed=data.draw(st.integers(0, 9)))
    for index in data.draw(st.permutations(list(np.ndindex(*grid)))):
        box = _chunks.block_box(index, array.shape, array.write_chunks)
        array.write_block(index, values[_chunks.box_slices(*box)])
    np.testing.assert_array_equal(everything(stores["v3-blosc-lz4-sharded"][1]), values)
    array.write_box((0, 0, 0), values_of("f4"))


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_a_shard_has_its_index_at_either_end(tmp_path, location, compressors):
    shards = {"shape": SHARDS, "index_location": location}
    create(tmp_path / "a", shards=shards, compressors=compressors, fill_value=3)
    fast, plain = both(tmp_path / "a")
    assert fast.engine == "file"
    fast.write_box((0, 0, 0), values_of("f4"))
    np.testing.assert_array_equal(everything(plain), values_of("f4"))
    plain.write_box((0, 0, 0), values_of("f4", 1))
    np.testing.assert_array_equal(everything(fast), values_of("f4", 1))


def test_a_shard_with_holes_is_filled(tmp_path):
    stored = create(tmp_path / "a", shards=SHARDS, fill_value=3)
    stored[0, 0, 0] = 9
    expected = np.full(SHAPE, 3, "f4")
    expected[0, 0, 0] = 9
    for array in both(tmp_path / "a"):
        np.testing.assert_array_equal(everything(array), expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("engine", [None, "zarr"])
def test_a_chunk_of_minus_zero_is_not_dropped_as_the_fill_value(tmp_path, zarr_format, engine):
    create(tmp_path / "a", zarr_format=zarr_format)
    array = BlockedArray.open(tmp_path / "a", engine=engine)
    array.write_box((0, 0, 0), np.full(SHAPE, -0.0, "f4"))
    assert np.signbit(everything(array)).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_keep_their_bits_and_their_fill_value(tmp_path, zarr_format, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    BlockedArray.create(tmp_path / "a", (5,), dtype, chunks=(2,), fill_value=1.5, zarr_format=zarr_format)
    bits = np.array([1, 2, 0x7F, 0x80], f"u{dtype.itemsize}").view(dtype)
    for array in both(tmp_path / "a"):
        array.write_box((0,), bits)
        found = everything(array)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found[:4].view("u1"), bits.view("u1"))
        assert float(found[4]) == 1.5


def _spoil_cut(data):
    return data[: len(data) // 2]


def _spoil_head(data):
    return bytes(40) + data[40:]


def _spoil_longer(data):
    return data + b"\0" * 8


def _spoil_empty(data):
    return b""


def _reads(array, values):
    try:
        return np.array_equal(everything(array), values)
    except DamagedChunkError:
        return False


SPOILS = (_spoil_cut, _spoil_empty, _spoil_longer)


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("engine", [None, "zarr"])
@pytest.mark.parametrize("options", [V2[0], V2[2], V2[6], V2[12], V3[0], V3[3], V3[12], V3[18]])
def test_a_damaged_chunk_is_named_or_read_right(tmp_path, options, engine, spoil):
    stored = create(tmp_path / "a", **options)
    values = np.random.default_rng(0).random(SHAPE, dtype="f4")
    stored[:] = values
    file = tmp_path / "a" / stored.metadata.encode_chunk_key((1, 2, 0))
    file.write_bytes(spoil(file.read_bytes()))
    array = BlockedArray.open(tmp_path / "a", engine=engine)
    if engine == "zarr" and spoil is not _spoil_empty and "blosc" in array.codecs:
        pytest.skip("the blosc library trusts the length in its header")
    if spoil is _spoil_longer and _reads(array, values):
        return  # some decoders stop at the end of what they know
    with pytest.raises(DamagedChunkError, match=r"Chunk \(1, 2, 0\)") as caught:
        everything(array)
    assert str(tmp_path / "a") in str(caught.value)
    good = array.read_block((0, 0, 0))
    np.testing.assert_array_equal(good, values[:3, :2, :4])


@pytest.mark.parametrize("spoil", [_spoil_cut, _spoil_empty, _spoil_head])
@pytest.mark.parametrize("location", ["start", "end"])
def test_a_damaged_shard_is_an_error(tmp_path, spoil, location):
    stored = create(tmp_path / "a", shards={"shape": SHARDS, "index_location": location})
    stored[:] = np.random.default_rng(0).random(SHAPE, dtype="f4")
    file = tmp_path / "a" / "c" / "0" / "0" / "0"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DamagedChunkError, match=r"Chunk \([01], [01], 0\)"):
        everything(BlockedArray.open(tmp_path / "a"))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("place", [(2**40, 8), (0, 2**40), (0, 2**62), (2**62, 2**62), (2**64 - 2, 2**64 - 1)])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("engine", [None, "zarr"])
def test_a_shard_whose_index_leads_elsewhere_is_an_error(tmp_path, engine, checked, place):
    create(tmp_path / "a", shards=SHARDS)
    metadata = tmp_path / "a" / "zarr.json"
    document = json.loads(metadata.read_text())
    index_codecs = document["codecs"][0]["configuration"]["index_codecs"]
    del index_codecs[2 if checked else 1 :]
    metadata.write_text(json.dumps(document))
    zarr.open_array(LocalStore(tmp_path / "a"))[:] = 1
    index = np.array([place] * 4, "<u8").tobytes()
    index += google_crc32c.value(index).to_bytes(4, "little") if checked else b""
    file = tmp_path / "a" / "c" / "0" / "0" / "0"
    file.write_bytes(file.read_bytes()[: -len(index)] + index)
    with pytest.raises((DamagedChunkError, MemoryBudgetError), match=re.escape(str(tmp_path / "a"))):
        everything(BlockedArray.open(tmp_path / "a", engine=engine))


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["blosc", "zstd", "lz4", "gzip", "zlib"]))
def test_arbitrary_bytes_never_decode_to_a_chunk(blob, name):
    codec = {"blosc": numcodecs.Blosc, "zstd": numcodecs.Zstd, "lz4": numcodecs.LZ4}.get(
        name, {"gzip": numcodecs.GZip, "zlib": numcodecs.Zlib}.get(name)
    )
    buffer = np.zeros(333, "u1")
    with pytest.raises((ValueError, RuntimeError, EOFError, OSError, zlib.error)):
        decompress(codec(), blob, buffer)


@pytest.mark.parametrize("options", [V2[2], V3[3], V3[5]])
def test_threads_read_and_write_different_chunks_at_once(tmp_path, options):
    create(tmp_path / "a", **options)
    for array in both(tmp_path / "a"):
        values = values_of("f4", seed=3)
        indices = list(np.ndindex(*_chunks.grid_shape(SHAPE, array.write_chunks)))

        def write(index, array=array, values=values):
            box = _chunks.block_box(index, SHAPE, array.write_chunks)
            array.write_block(index, values[_chunks.box_slices(*box)])
            return array.read_box(*box), values[_chunks.box_slices(*box)]

        with ThreadPoolExecutor(8) as pool:
            for found, expected in pool.map(write, indices):
                np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(everything(array), values)


def test_missing_chunks_are_an_error_where_zarr_is_told_so(tmp_path):
    if "read_missing_chunks" not in zarr.config.get("array"):
        pytest.skip("this zarr has no such setting")
    create(tmp_path / "a")
    with zarr.config.set({"array.read_missing_chunks": False}):
        array = BlockedArray.open(tmp_path / "a")
        with pytest.raises(Exception, match=r"c/0/0/0|[Cc]hunk"):
            everything(array)


def test_the_chunk_key_is_zarrs_own(tmp_path):
    for number, encoding in enumerate(({"name": "default", "separator": "."}, {"name": "v2", "separator": "/"})):
        path = tmp_path / str(number)
        create(path, chunk_key_encoding=encoding)[:] = values_of("f4")
        for array in both(path):
            np.testing.assert_array_equal(everything(array), values_of("f4"))


def test_a_codec_is_written_as_zarr_writes_it(tmp_path):
    """Byte for byte, so that the store does not show which engine wrote it."""
    for name, options in {"v2": V2[2], "v3": V3[3], "zstd": V3[12]}.items():
        stored = create(tmp_path / name, **options.values[0])
        fast, plain = both(tmp_path / name)
        key = stored.metadata.encode_chunk_key((0, 0, 0))
        written = []
        for array in (fast, plain):
            array.write_box((0, 0, 0), values_of("f4"))
            written.append((tmp_path / name / key).read_bytes())
        assert written[0] == written[1]
