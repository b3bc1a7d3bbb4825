"""Every combination of format, codec, order, byte order, shards and edge is as numpy.

Each store is made by plain zarr, read, computed with, differentiated and updated here, and read
again by other software.
"""

from itertools import product

import jax
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore

import jask_zarr as jz
from elsewhere import HAS_ZARRS, by_tensorstore, by_zarr, by_zarrs, metadata_files

CHUNKS = (3, 4)
SHAPES = {"whole": (6, 8), "edge": (7, 10)}
V2 = {
    "raw": {"compressors": None},
    "blosc-lz4": {"compressors": numcodecs.Blosc("lz4", 5, 1)},
    "blosc-zstd": {"compressors": numcodecs.Blosc("zstd", 1, 2)},
    "zstd": {"compressors": numcodecs.Zstd(3)},
    "gzip": {"compressors": numcodecs.GZip(1)},
    "zlib": {"compressors": numcodecs.Zlib(1)},
    "lz4": {"compressors": numcodecs.LZ4()},
    "bz2": {"compressors": numcodecs.BZ2(1)},
    "lzma": {"compressors": numcodecs.LZMA()},
    "shuffle": {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.Zstd(1)},
    "delta": {"filters": [numcodecs.Delta("f4")], "compressors": numcodecs.Zstd(1)},
}
V3 = {
    "raw": (),
    "blosc": (BloscCodec(cname="lz4", typesize=4, shuffle="shuffle"),),
    "zstd": (ZstdCodec(level=1),),
    "gzip": (GzipCodec(level=1),),
    "crc32c": (Crc32cCodec(),),
    "gzip and crc32c": (GzipCodec(level=1), Crc32cCodec()),
}
ONLY_NUMCODECS = ("lz4", "lzma", "shuffle", "delta")

MATRIX = [
    *(pytest.param(2, *rest, None, id="v2 " + " ".join(rest)) for rest in product(V2, "CF", "<>", SHAPES)),
    *(
        pytest.param(3, *rest, shards, id=f"v3 {' '.join(rest)} {'shards' if shards else 'chunks'}")
        for *rest, shards in product(V3, "CF", "<>", SHAPES, (None, (6, 8)))
    ),
]


def create(path, shape, zarr_format, codec, order, endian, shards):
    options = V2[codec] | {"order": order} if zarr_format == 2 else _options_v3(codec, order, endian)
    dtype = f"{endian}f4" if zarr_format == 2 else "f4"
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape) - 20
    array = zarr.create_array(
        LocalStore(path), shape=shape, dtype=dtype, chunks=CHUNKS, shards=shards, zarr_format=zarr_format, **options
    )
    array[...] = values
    return values


def _options_v3(codec, order, endian):
    serializer = BytesCodec(endian="little" if endian == "<" else "big")
    filters = [TransposeCodec(order=(1, 0))] if order == "F" else None
    return {"compressors": V3[codec] or None, "serializer": serializer, "filters": filters}


@pytest.mark.filterwarnings("ignore:.*not in the Zarr version 3 specification")
@pytest.mark.parametrize(("zarr_format", "codec", "order", "endian", "edge", "shards"), MATRIX)
def test_reads_computes_differentiates_and_updates_as_numpy(
    tmp_path, zarr_format, codec, order, endian, edge, shards
):  # fmt: skip
    path = tmp_path / "a"
    values = create(path, SHAPES[edge], zarr_format, codec, order, endian, shards)
    before, array = metadata_files(path), jz.open(path)
    assert (array.shape, array.dtype, array.chunks) == (values.shape, np.float32, CHUNKS)
    np.testing.assert_array_equal(array.to_numpy(), values)
    np.testing.assert_array_equal((array * 2 + array).to_numpy(), values * 3)
    assert float(jz.sum(array)) == values.sum()
    np.testing.assert_array_equal(jax.grad(lambda x: jz.sum(x**2))(array).to_numpy(), 2 * values)

    updated = array.update_(array * 2 - 1)
    for found in (updated.to_numpy(), jz.open(path).to_numpy(), by_zarr(path)):
        np.testing.assert_array_equal(found, 2 * values - 1)
    if codec not in ONLY_NUMCODECS:
        np.testing.assert_array_equal(by_tensorstore(path), 2 * values - 1)
    if zarr_format == 3 and HAS_ZARRS:
        np.testing.assert_array_equal(by_zarrs(path), 2 * values - 1)
    assert metadata_files(path) == before
