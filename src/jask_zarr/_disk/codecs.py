"""How one chunk's values become bytes and back: transposed, in a byte order, compressed.

Only what is understood completely is described here (`chunk_codec` gives None for the rest):
a byte order, transpositions, and at most one compressor of those in `_COMPRESSORS`, alone or
inside shards.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from threading import local
from typing import Any

import numcodecs
import numpy as np
import zarr

from .._chunks import Index, box_slices
from .dtypes import storage_dtype

# Many tile threads call codecs at once; threads inside a codec would only get in their way.
numcodecs.blosc.use_threads = False

_COMPRESSORS = ("blosc", "zstd", "lz4", "gzip", "zlib")
_V2_ORDERS = {">": ">", "<": "<", "|": "=", "=": "="}
_V3_ORDERS = {"big": ">", "little": "<", None: "="}
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_INDEX_CODECS = [("bytes", {"endian": "little"}), ("crc32c", {})]


@dataclass(frozen=True)
class ChunkCodec:
    """Encodes and decodes chunks of one array."""

    chunks: Index
    dtype: np.dtype
    """As stored, byte order included; unsigned integers for ``ml_dtypes``."""
    fill_value: Any
    axes: tuple[int, ...]
    """The stored chunk is ``chunk.transpose(axes)`` in C order."""
    compressor: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return prod(self.chunks) * self.dtype.itemsize

    @cached_property
    def _is_plain(self) -> bool:
        return self.axes == tuple(range(len(self.axes))) and self.dtype.isnative

    def buffer_for(self, target: np.ndarray) -> np.ndarray:
        """Where to decode to: the target itself, if its memory is the stored chunk's."""
        if self._is_plain and target.shape == self.chunks and target.flags.c_contiguous:
            return target.reshape(-1).view("u1")
        return thread_buffer(self.nbytes)

    def chunk_in(self, buffer: np.ndarray) -> np.ndarray:
        """Decoded bytes, seen as the chunk."""
        stored = buffer.view(self.dtype).reshape([self.chunks[a] for a in self.axes])
        return stored.transpose(np.argsort(self.axes))

    def encode(self, values: np.ndarray) -> memoryview:
        """Bytes of a chunk; what is missing at the array's end is filled.

        The bytes may lie in memory that the thread's next call uses again.
        """
        if values.shape != self.chunks:
            values = self._filled(values)
        stored = values.transpose(self.axes)
        if not (stored.flags.c_contiguous and stored.dtype == self.dtype):
            buffer = thread_buffer(self.nbytes).view(self.dtype).reshape(stored.shape)
            buffer[...] = stored
            stored = buffer
        if self.compressor is None:
            return stored.reshape(-1).view("u1").data
        return memoryview(self.compressor.encode(stored)).cast("B")

    def _filled(self, values: np.ndarray) -> np.ndarray:
        whole = np.full(self.chunks, self.fill_value, self.dtype)
        whole[box_slices((0,) * values.ndim, values.shape)] = values
        return whole


_buffers = local()


def thread_buffer(nbytes: int, use: str = "decoded") -> np.ndarray:
    """Memory for one chunk, the thread's own for each use; fresh pages for each chunk would cost more."""
    buffer = getattr(_buffers, use, None)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes, "u1")
        setattr(_buffers, use, buffer)
    return buffer[:nbytes]


# --- decompression, whatever the bytes are --------------------------------------------------


def decompress(compressor: Any, blob: bytes | memoryview, buffer: np.ndarray) -> None:
    """Decode into a buffer, or raise if the decoded bytes are not exactly as many."""
    size = _decoded_size(compressor.codec_id, blob)
    if size == buffer.nbytes:
        compressor.decode(blob, out=buffer)
        return
    decoded = np.frombuffer(compressor.decode(blob), "u1") if size is None else None
    if decoded is None or decoded.nbytes != buffer.nbytes:
        found = size if decoded is None else decoded.nbytes
        raise ValueError(f"{found} bytes after decoding, {buffer.nbytes} expected")
    buffer[:] = decoded


def _decoded_size(codec_id: str, blob: bytes | memoryview) -> int | None:
    """What the header says of the decoded size; None where it does not say."""
    if codec_id == "blosc":
        return _blosc_size(blob)
    if codec_id == "lz4":
        return int.from_bytes(blob[:4], "little")
    return _zstd_size(blob) if codec_id == "zstd" else None


def _blosc_size(blob: bytes | memoryview) -> int:
    # c-blosc trusts its header: a file cut short would be read beyond its end.
    if len(blob) < 16 or int.from_bytes(blob[12:16], "little") != len(blob):
        raise ValueError(f"{len(blob)} bytes do not fit their blosc header")
    return int.from_bytes(blob[4:8], "little")


def _zstd_size(blob: bytes | memoryview) -> int | None:
    if len(blob) < 6 or blob[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError(f"{len(blob)} bytes without a zstd header")
    flags = blob[4]
    single, width = flags >> 5 & 1, (1, 2, 4, 8)[flags >> 6]
    if width == 1 and not single:
        return None
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(blob[at : at + width], "little") + (256 if width == 2 else 0)


# --- reading the metadata -------------------------------------------------------------------


def chunk_codec(array: zarr.Array) -> tuple[ChunkCodec, bool | None] | None:
    """The codec of an array's chunks; with it, whether a shard's index is at the end.

    The second is None for an array without shards, and the whole None if anything is not
    understood.
    """
    metadata: dict[str, Any] = array.metadata.to_dict()  # type: ignore[assignment]
    if metadata["zarr_format"] == 2:
        codec, at_end = _codec_v2(metadata, array), None
    elif metadata["chunk_grid"]["name"] != "regular" or metadata.get("storage_transformers"):
        return None
    else:
        codec, at_end = _codec_v3(_named(metadata["codecs"]), array)
    return None if codec is None else (codec, at_end)


def _codec(array: zarr.Array, order: Any, axes: Index, compressor: Any) -> ChunkCodec:
    bits = storage_dtype(array.dtype)
    fill = np.asarray(0 if array.fill_value is None else array.fill_value, array.dtype)
    chunks = tuple(max(c, 1) for c in array.chunks)
    return ChunkCodec(chunks, bits.newbyteorder(order), fill.view(bits)[()], axes, compressor)


def _codec_v2(metadata: dict[str, Any], array: zarr.Array) -> ChunkCodec | None:
    compressor = array.metadata.compressor  # type: ignore[union-attr]
    if metadata.get("filters") or getattr(compressor, "codec_id", "zstd") not in _COMPRESSORS:
        return None
    axes = tuple(range(array.ndim))
    axes = axes[::-1] if metadata["order"] == "F" else axes
    return _codec(array, _V2_ORDERS[array.dtype.byteorder], axes, compressor)


def _named(codecs: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(c["name"], c.get("configuration", {})) for c in codecs]


def _codec_v3(codecs: list, array: zarr.Array) -> tuple[ChunkCodec | None, bool | None]:
    if len(codecs) != 1 or codecs[0][0] != "sharding_indexed":
        return _codec_v3_unsharded(codecs, array), None
    options = codecs[0][1]
    if _named(options["index_codecs"]) != _INDEX_CODECS:
        return None, None
    at_end = options.get("index_location", "end") == "end"
    return _codec_v3_unsharded(_named(options["codecs"]), array), at_end


def _codec_v3_unsharded(codecs: list, array: zarr.Array) -> ChunkCodec | None:
    axes, codecs = tuple(range(array.ndim)), list(codecs)
    while codecs and codecs[0][0] == "transpose":
        axes = tuple(axes[i] for i in codecs.pop(0)[1]["order"])
    if not codecs or codecs[0][0] != "bytes" or len(codecs) > 2:
        return None
    order = _V3_ORDERS[codecs[0][1].get("endian")]
    if len(codecs) == 1:
        return _codec(array, order, axes, None)
    name, options = codecs[1]
    compressor = _compressor_v3(name, options, array.dtype.itemsize)
    return None if compressor is None else _codec(array, order, axes, compressor)


def _compressor_v3(name: str, options: dict[str, Any], itemsize: int) -> Any:
    if name == "zstd":
        return numcodecs.Zstd(options["level"], options.get("checksum", False))
    if name == "gzip":
        return numcodecs.GZip(options["level"])
    if name != "blosc" or options.get("typesize") not in (None, itemsize):
        return None
    shuffle = _SHUFFLES.get(options["shuffle"])
    if shuffle is None:
        return None
    return numcodecs.Blosc(options["cname"], options["clevel"], shuffle, options["blocksize"])
