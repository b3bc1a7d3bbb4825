"""How the chunks of one array are read and written: two engines behind one small interface.

`FileEngine` opens chunk files and calls the codecs itself, in the calling thread, and decodes
into the caller's buffer. It takes an array if it understands the whole of it: a local directory,
no shards, and codecs that are a byte order, a transposition and at most one compressor of those
in `_COMPRESSORS`. `ZarrEngine` is zarr-python's own pipeline; it takes everything.

The choice is made once for each array, by `choose_engine`.
"""

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from threading import local
from typing import Any, Protocol

import numcodecs
import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, StorePath

from .._chunks import Index, block_box, blocks_touching, box_shape, box_slices, intersection
from .dtypes import storage_dtype

# Many tile threads call codecs at once; threads inside a codec would only get in their way.
numcodecs.blosc.use_threads = False


class BadChunk(Exception):
    """A chunk that cannot be decoded: its index and the reason."""

    def __init__(self, index: Index, reason: object) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


class Engine(Protocol):
    """Reads boxes and writes whole chunks; any number of threads may call it."""

    name: str

    def read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        """Fill ``out`` with the values of a box."""
        ...

    def write(self, start: Index, values: np.ndarray) -> None:
        """Write a box of whole write chunks."""
        ...

    def moved_to(self, root: Path) -> "Engine":
        """The same array with its chunks below another directory, nobody reading them yet."""
        ...


def choose_engine(array: zarr.Array, name: str | None = None) -> Engine:
    """The fastest engine that understands the array, or the one named."""
    layout = None if name == "zarr" else _layout(array)
    if layout is None:
        return ZarrEngine(_twin(array, array.store_path))
    root = Path(array.store_path.store.root, array.store_path.path)
    return FileEngine(layout, str(root), array.metadata.encode_chunk_key)


# --- zarr-python ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ZarrEngine:
    """zarr-python's pipeline."""

    array: zarr.Array
    name = "zarr"

    def read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        """See `Engine.read`."""
        try:
            self._read(start, stop, _bits(out))
        except (ValueError, RuntimeError, TypeError, EOFError) as error:
            raise self._find_bad_chunk(start, stop) or error from error

    def _read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        target = default_buffer_prototype().nd_buffer.from_ndarray_like(out)
        self.array.get_basic_selection(box_slices(start, stop), out=target)

    def _find_bad_chunk(self, start: Index, stop: Index) -> BadChunk | None:
        shape, chunks = self.array.shape, self.array.chunks
        for index in blocks_touching(start, stop, chunks):
            a, b = block_box(index, shape, chunks)
            try:
                self._read(a, b, np.empty(box_shape(a, b), self.array.dtype))
            except Exception as error:
                return BadChunk(index, error)
        return None

    def write(self, start: Index, values: np.ndarray) -> None:
        """See `Engine.write`."""
        stop = tuple(a + n for a, n in zip(start, values.shape, strict=True))
        self.array.set_basic_selection(box_slices(start, stop), _bits(values))

    def moved_to(self, root: Path) -> "ZarrEngine":
        """See `Engine.moved_to`."""
        return ZarrEngine(_twin(self.array, StorePath(LocalStore(root), "")))


def _twin(array: zarr.Array, place: StorePath) -> zarr.Array:
    """The array as the engine sees it: plain numbers, every chunk written, perhaps elsewhere."""
    metadata: Any = array.metadata
    if storage_dtype(array.dtype) != array.dtype:
        metadata = _metadata_of_bits(array)
    config = {"order": "C", "write_empty_chunks": True}
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=place, config=config))


def _metadata_of_bits(array: zarr.Array) -> dict[str, Any]:
    # Codecs refuse buffers of ml_dtypes; the same bytes as unsigned integers go everywhere.
    bits = storage_dtype(array.dtype)
    fill = None if array.fill_value is None else int(np.asarray(array.fill_value).view(bits))
    metadata = array.metadata.to_dict() | {"fill_value": fill}
    return metadata | ({"data_type": bits.name} if "data_type" in metadata else {"dtype": bits.str})


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(storage_dtype(values.dtype))


# --- files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a chunk's values become bytes: transposed, in a byte order, compressed."""

    shape: Index
    """Of the array."""
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

    @property
    def is_plain(self) -> bool:
        """Whether the decoded bytes are the chunk as numpy holds it."""
        return self.axes == tuple(range(len(self.axes))) and self.dtype.isnative

    def stored_view(self, buffer: np.ndarray) -> np.ndarray:
        """A buffer of decoded bytes, seen as the chunk."""
        stored = buffer.view(self.dtype).reshape([self.chunks[a] for a in self.axes])
        return stored.transpose(np.argsort(self.axes))


@dataclass(frozen=True)
class FileEngine:
    """Chunk files and codecs, called directly."""

    layout: Layout
    root: str
    key: Callable[[Index], str]
    exposed: bool = True
    """Whether others may read the files meanwhile, so that each must appear all at once."""
    name = "file"

    def read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        """See `Engine.read`."""
        out = _bits(out)
        for index in blocks_touching(start, stop, self.layout.chunks):
            self._read_chunk(index, start, stop, out)

    def _read_chunk(self, index: Index, start: Index, stop: Index, out: np.ndarray) -> None:
        origin, end = block_box(index, self.layout.shape, self.layout.chunks)
        a, b = intersection((origin, end), (start, stop))
        target = out[*box_slices(a, b, start), ...]  # a view even of a scalar
        try:
            with open(self._path(index), "rb", buffering=0) as file:
                self._decode(file, target, box_slices(a, b, origin))
        except FileNotFoundError:
            target[...] = self.layout.fill_value
        except (ValueError, RuntimeError, EOFError, MemoryError) as error:
            raise BadChunk(index, error) from error

    def _decode(self, file: Any, target: np.ndarray, part: tuple[slice, ...]) -> None:
        layout = self.layout
        direct = layout.is_plain and target.shape == layout.chunks and target.flags.c_contiguous
        buffer = target.reshape(-1).view("u1") if direct else _thread_buffer(layout.nbytes)
        if layout.compressor is None:
            _read_exactly(file, buffer)
        else:
            decompress(layout.compressor, file.read(), buffer)
        if not direct:
            target[...] = layout.stored_view(buffer)[part]

    def write(self, start: Index, values: np.ndarray) -> None:
        """See `Engine.write`."""
        values, layout = _bits(values), self.layout
        stop = tuple(a + n for a, n in zip(start, values.shape, strict=True))
        for index in blocks_touching(start, stop, layout.chunks):
            a, b = block_box(index, layout.shape, layout.chunks)
            self._put(self._path(index), self._encode(values[box_slices(a, b, start)]))

    def _encode(self, values: np.ndarray) -> Any:
        layout = self.layout
        if values.shape != layout.chunks:
            whole = np.full(layout.chunks, layout.fill_value, layout.dtype)
            whole[box_slices((0,) * values.ndim, values.shape)] = values
            values = whole
        stored = values.transpose(layout.axes)
        if not (stored.flags.c_contiguous and stored.dtype == layout.dtype):
            buffer = _thread_buffer(layout.nbytes).view(layout.dtype).reshape(stored.shape)
            buffer[...] = stored
            stored = buffer
        return stored if layout.compressor is None else layout.compressor.encode(stored)

    def _put(self, path: str, blob: Any) -> None:
        folder, name = os.path.split(path)
        partial = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.partial")
        place = partial if self.exposed else path
        try:
            _write_file(place, memoryview(blob).cast("B"))
            if self.exposed:
                os.replace(partial, path)
        except BaseException as error:
            _unlink(place)
            if isinstance(error, OSError):
                error.filename = path
            raise

    def _path(self, index: Index) -> str:
        return f"{self.root}/{self.key(index)}"

    def moved_to(self, root: Path) -> "FileEngine":
        """See `Engine.moved_to`."""
        return replace(self, root=str(root), exposed=False)


def _write_file(path: str, data: memoryview) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        # Pages that a scratch file has already are used again: truncating it first costs ten times.
        while data:
            data = data[os.write(descriptor, data) :]
        os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
    finally:
        os.close(descriptor)


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _read_exactly(file: Any, buffer: np.ndarray) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != buffer.nbytes:
        raise ValueError(f"{size} bytes stored, {buffer.nbytes} expected")
    data = memoryview(buffer)
    while data:
        count = file.readinto(data)
        if not count:
            raise EOFError("the file became shorter while it was read")
        data = data[count:]


_buffers = local()


def _thread_buffer(nbytes: int) -> np.ndarray:
    """Memory for one decoded chunk, the thread's own; fresh pages for each would cost more."""
    buffer = getattr(_buffers, "buffer", None)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = _buffers.buffer = np.empty(nbytes, "u1")
    return buffer[:nbytes]


# --- codecs ---------------------------------------------------------------------------------


def decompress(compressor: Any, blob: bytes, buffer: np.ndarray) -> None:
    """Decode into a buffer of exactly the right size, whatever the bytes are."""
    size = decoded_size(compressor.codec_id, blob)
    if size == buffer.nbytes:
        compressor.decode(blob, out=buffer)
        return
    decoded = np.frombuffer(compressor.decode(blob), "u1") if size is None else None
    if decoded is None or decoded.nbytes != buffer.nbytes:
        found = size if decoded is None else decoded.nbytes
        raise ValueError(f"{found} bytes after decoding, {buffer.nbytes} expected")
    buffer[:] = decoded


def decoded_size(codec_id: str, blob: bytes) -> int | None:
    """What the header says of the decoded size; None where it does not say."""
    if codec_id == "blosc":
        return _blosc_size(blob)
    return _zstd_size(blob) if codec_id == "zstd" else None


def _blosc_size(blob: bytes) -> int:
    # c-blosc trusts its header: a file cut short would be read beyond its end.
    if len(blob) < 16 or int.from_bytes(blob[12:16], "little") != len(blob):
        raise ValueError(f"a file of {len(blob)} bytes does not fit its blosc header")
    return int.from_bytes(blob[4:8], "little")


def _zstd_size(blob: bytes) -> int | None:
    if len(blob) < 6 or blob[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError(f"{len(blob)} bytes without a zstd header")
    flags = blob[4]
    single, width = flags >> 5 & 1, (1, 2, 4, 8)[flags >> 6]
    if width == 1 and not single:
        return None
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(blob[at : at + width], "little") + (256 if width == 2 else 0)


def _layout(array: zarr.Array) -> Layout | None:
    if type(array.store_path.store) is not LocalStore or array.shards is not None:
        return None
    if not getattr(array.config, "read_missing_chunks", True):
        return None
    metadata = array.metadata.to_dict()
    read = _layout_v2 if metadata["zarr_format"] == 2 else _layout_v3
    found = read(metadata, array)
    if found is None:
        return None
    order, axes, compressor = found
    dtype = storage_dtype(array.dtype).newbyteorder(order)
    fill = 0 if array.fill_value is None else array.fill_value
    fill = np.asarray(fill, array.dtype).view(storage_dtype(array.dtype))[()]
    return Layout(array.shape, array.chunks, dtype, fill, axes, compressor)


_COMPRESSORS = ("blosc", "zstd", "lz4", "gzip", "zlib")
_V2_ORDERS = {">": ">", "<": "<", "|": "=", "=": "="}


def _layout_v2(metadata: dict[str, Any], array: zarr.Array) -> tuple | None:
    compressor = array.metadata.compressor  # type: ignore[union-attr]
    if metadata.get("filters") or getattr(compressor, "codec_id", "zstd") not in _COMPRESSORS:
        return None
    axes = tuple(range(array.ndim))
    if metadata["order"] == "F":
        axes = axes[::-1]
    return _V2_ORDERS[array.dtype.byteorder], axes, compressor


def _layout_v3(metadata: dict[str, Any], array: zarr.Array) -> tuple | None:
    if metadata["chunk_grid"]["name"] != "regular" or metadata.get("storage_transformers"):
        return None
    codecs = [(c["name"], c.get("configuration", {})) for c in metadata["codecs"]]
    axes = tuple(range(array.ndim))
    while codecs and codecs[0][0] == "transpose":
        axes = tuple(axes[i] for i in codecs.pop(0)[1]["order"])
    if not codecs or codecs[0][0] != "bytes" or len(codecs) > 2:
        return None
    order = {"big": ">", "little": "<", None: "="}[codecs[0][1].get("endian")]
    if len(codecs) == 1:
        return order, axes, None
    compressor = _compressor_v3(*codecs[1], array.dtype.itemsize)
    return None if compressor is None else (order, axes, compressor)


_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


def _compressor_v3(name: str, options: dict[str, Any], itemsize: int) -> Any:
    if name == "zstd":
        return numcodecs.Zstd(options["level"], options.get("checksum", False))
    if name == "gzip":
        return numcodecs.GZip(options["level"])
    if name != "blosc" or options.get("typesize") not in (None, itemsize):
        return None
    shuffle = options["shuffle"]
    if shuffle not in _SHUFFLES:
        return None
    return numcodecs.Blosc(options["cname"], options["clevel"], _SHUFFLES[shuffle], options["blocksize"])
