"""How the chunks of one array are read and written: two engines behind one small interface.

`FileEngine` opens chunk files and calls the codecs itself, in the calling thread, and decodes
into the caller's buffer. It takes an array if that is in a local directory and `chunk_codec`
understands the whole of it. `ZarrEngine` is zarr-python's own pipeline; it takes everything.
The choice is made once for each array, by `choose_engine`.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from operator import mul
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, StorePath

from .._chunks import (
    Index,
    block_box,
    blocks_touching,
    box_shape,
    box_slices,
    grid_shape,
    intersection,
)
from .atomic import staged_name
from .codecs import ChunkCodec, chunk_codec, decompress, thread_buffer
from .dtypes import storage_dtype
from .grids import chunks_touching


class BadChunk(Exception):
    """A chunk that cannot be decoded: its index, or where it is, and the reason."""

    def __init__(self, index: Index | str, reason: object) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


class Engine(Protocol):
    """Reads boxes and writes whole write chunks; any number of threads may call it."""

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

    def staged_at(self, prefix: str) -> "Engine":
        """The same array, each chunk in a file of the name `staged_name` after a prefix, nobody reading it yet."""
        ...


def choose_engine(array: zarr.Array, name: str | None = None) -> Engine:
    """The faster engine if it understands the array, or the one named."""
    place = array.store_path
    strict = not getattr(array.config, "read_missing_chunks", True)
    if name == "zarr" or strict or type(place.store) is not LocalStore:
        return ZarrEngine(_twin(array, place))
    found = chunk_codec(array)
    if found is None:
        return ZarrEngine(_twin(array, place))
    codec, index_at_end = found
    files = tuple(array.shards or codec.chunks)
    root = str(Path(place.store.root, place.path))
    return FileEngine(tuple(array.shape), files, codec, index_at_end, root, array.metadata.encode_chunk_key)


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(storage_dtype(values.dtype))


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
        except (ValueError, RuntimeError, TypeError, ArithmeticError, EOFError) as error:
            raise self._bad_chunk(start, stop, error) from error

    def _read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        values: Any = out
        target = default_buffer_prototype().nd_buffer.from_ndarray_like(values)
        try:
            self.array.get_basic_selection(box_slices(start, stop), out=target)
        except ExceptionGroup as group:  # of the parts of one shard
            raise _first(group) from group

    def _bad_chunk(self, start: Index, stop: Index, reason: Exception) -> BadChunk:
        for index, (a, b) in chunks_touching(self.array, start, stop):
            try:
                self._read(a, b, np.empty(box_shape(a, b), self.array.dtype))
            except Exception as error:
                return BadChunk(index, error)
        return BadChunk(f"in {start} to {stop}", reason)  # by itself each can be read

    def write(self, start: Index, values: np.ndarray) -> None:
        """See `Engine.write`."""
        stop = tuple(a + n for a, n in zip(start, values.shape, strict=True))
        self.array.set_basic_selection(box_slices(start, stop), _bits(values))

    def moved_to(self, root: Path) -> "ZarrEngine":
        """See `Engine.moved_to`."""
        return ZarrEngine(_twin(self.array, StorePath(LocalStore(root), "")))

    def staged_at(self, prefix: str) -> "ZarrEngine":
        """See `Engine.staged_at`."""
        return ZarrEngine(_twin(self.array, StorePath(_FlatStore(prefix), "")))


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


class _FlatStore(LocalStore):
    """A directory whose files have names for keys."""

    def __init__(self, prefix: str) -> None:
        folder, self._stem = os.path.split(prefix)
        super().__init__(Path(folder))

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        return await super().get(self._stem + staged_name(key), *args, **options)

    async def set(self, key: str, value: Any) -> None:
        await super().set(self._stem + staged_name(key), value)

    async def delete(self, key: str) -> None:
        await super().delete(self._stem + staged_name(key))


def _twin(array: zarr.Array, place: StorePath) -> zarr.Array:
    """The array as the engine sees it: plain numbers, every chunk written, perhaps elsewhere."""
    metadata: Any = array.metadata
    if storage_dtype(array.dtype) != array.dtype:
        metadata = _metadata_of_bits(array)
    config: Any = {"order": "C", "write_empty_chunks": True}
    twin: Any = zarr.AsyncArray(metadata=metadata, store_path=place, config=config)
    return zarr.Array(twin)


def _metadata_of_bits(array: zarr.Array) -> dict[str, Any]:
    # Codecs refuse buffers of ml_dtypes; the same bytes as unsigned integers go everywhere.
    bits = storage_dtype(array.dtype)
    fill = None if array.fill_value is None else int(np.asarray(array.fill_value).view(bits))
    metadata = array.metadata.to_dict() | {"fill_value": fill}
    return metadata | ({"data_type": bits.name} if "data_type" in metadata else {"dtype": bits.str})


# --- files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileEngine:
    """Chunk files and codecs, called directly."""

    shape: Index
    files: Index
    """What one file holds: a shard, else a chunk."""
    codec: ChunkCodec
    index_at_end: bool | None
    """Where a shard's index is; None without shards."""
    root: str
    key: Callable[[Index], str]
    exposed: bool = True
    """Whether others may read the files meanwhile, so that each must appear all at once."""
    name = "file"

    def read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        """See `Engine.read`."""
        out = _bits(out)
        for index in blocks_touching(start, stop, self.files):
            a, b = intersection(block_box(index, self.shape, self.files), (start, stop))
            target = out[*box_slices(a, b, start), ...]  # a view even of a scalar
            self._read_file(index, a, b, target)

    def _read_file(self, index: Index, start: Index, stop: Index, out: np.ndarray) -> None:
        try:
            file = os.open(f"{self.root}/{self.key(index)}", os.O_RDONLY)
        except FileNotFoundError:
            out[...] = self.codec.fill_value
            return
        except NotADirectoryError as error:
            raise BadChunk(index, "a file is on the way to it") from error
        read = self._read_chunk if self.index_at_end is None else self._read_shard
        try:
            read(file, index, start, stop, out)
        finally:
            os.close(file)

    def _read_chunk(self, file: int, index: Index, start: Index, stop: Index, out: np.ndarray) -> None:
        try:
            self._decode(file, 0, os.fstat(file).st_size, out, (start, stop, tuple(map(mul, index, self.files))))
        except _BAD as error:
            raise BadChunk(index, error) from error

    def _read_shard(self, file: int, _: Index, start: Index, stop: Index, out: np.ndarray) -> None:
        size, places, chunks = os.fstat(file).st_size, None, self.codec.chunks
        for index in blocks_touching(start, stop, chunks):
            box = block_box(index, self.shape, chunks)
            a, b = intersection(box, (start, stop))
            target = out[*box_slices(a, b, start), ...]
            try:
                if places is None:
                    places = self._places(file, size)
                place = places[*(i % n for i, n in zip(index, places.shape, strict=False))]
                self._decode(file, *_inside(size, *map(int, place)), target, (a, b, box[0]))
            except _BAD as error:
                raise BadChunk(index, error) from error

    def _places(self, file: int, size: int) -> np.ndarray:
        """Offset and length of each chunk in a shard: (*chunks per shard, 2)."""
        grid = grid_shape(self.files, self.codec.chunks)
        length = _index_bytes(grid)
        if size < length:
            raise ValueError(f"{size} bytes are too few for the shard's index of {length}")
        raw = _pread(file, length, size - length if self.index_at_end else 0)
        if google_crc32c.value(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
            raise ValueError("the checksum of the shard's index is wrong")
        return np.frombuffer(raw[:-4], "<u8").reshape(*grid, 2)

    def _decode(self, file: int, offset: int, length: int, target: np.ndarray, part: tuple[Index, ...]) -> None:
        """Decode a chunk, or a part of it: where that starts and stops, and where the chunk starts."""
        if (offset, length) == _ABSENT:
            target[...] = self.codec.fill_value
            return
        buffer = self.codec.buffer_for(target)
        if self.codec.compressor is None:
            _read_exactly(file, offset, length, buffer)
        else:
            compressed = thread_buffer(length, "compressed")
            _read_exactly(file, offset, length, compressed)
            decompress(self.codec.compressor, compressed.data, buffer)
        if not np.may_share_memory(buffer, target):
            target[...] = self.codec.chunk_in(buffer)[box_slices(*part)]

    def write(self, start: Index, values: np.ndarray) -> None:
        """See `Engine.write`."""
        values = _bits(values)
        stop = tuple(a + n for a, n in zip(start, values.shape, strict=True))
        for index in blocks_touching(start, stop, self.files):
            a, b = block_box(index, self.shape, self.files)
            part = values[*box_slices(a, b, start), ...]
            pieces = self._pieces if self.index_at_end is None else self._shard_pieces
            self._put(f"{self.root}/{self.key(index)}", pieces(part))

    def _pieces(self, values: np.ndarray) -> Iterator[tuple[int, memoryview]]:
        """What to write where in a file."""
        yield 0, self.codec.encode(values)

    def _shard_pieces(self, values: np.ndarray) -> Iterator[tuple[int, memoryview]]:
        grid = grid_shape(self.files, self.codec.chunks)
        places = np.full((*grid, 2), _MISSING, "<u8")
        offset = 0 if self.index_at_end else _index_bytes(grid)
        for index in blocks_touching((0,) * values.ndim, values.shape, self.codec.chunks):
            a, b = block_box(index, values.shape, self.codec.chunks)
            data = self.codec.encode(values[*box_slices(a, b), ...])
            places[index] = offset, len(data)
            yield offset, data
            offset += len(data)
        raw = places.tobytes()
        raw += google_crc32c.value(raw).to_bytes(4, "little")
        yield offset if self.index_at_end else 0, memoryview(raw)

    def _put(self, path: str, pieces: Iterator[tuple[int, memoryview]]) -> None:
        folder, name = os.path.split(path)
        partial = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.partial")
        place = partial if self.exposed else path
        try:
            _write_file(place, pieces)
            if self.exposed:
                os.replace(partial, path)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(place)
            if isinstance(error, OSError):
                error.filename = path
            raise

    def moved_to(self, root: Path) -> "FileEngine":
        """See `Engine.moved_to`."""
        return replace(self, root=str(root), exposed=False)

    def staged_at(self, prefix: str) -> "FileEngine":
        """See `Engine.staged_at`."""
        folder, stem = os.path.split(prefix)
        return replace(self, root=folder, key=lambda index: stem + staged_name(self.key(index)), exposed=False)


_BAD = (ValueError, RuntimeError, TypeError, ArithmeticError, EOFError, IsADirectoryError)
_MISSING = 2**64 - 1
_ABSENT = (_MISSING, _MISSING)


def _index_bytes(grid: Index) -> int:
    return 16 * prod(grid) + 4


def _inside(size: int, offset: int, length: int) -> tuple[int, int]:
    if (offset, length) != _ABSENT and offset + length > size:
        raise ValueError(f"the shard has {size} bytes, and the chunk would be {length} bytes from {offset} on")
    return offset, length


def _write_file(path: str, pieces: Iterator[tuple[int, memoryview]]) -> None:
    flags, end = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, flags, 0o666)
    try:
        # Pages that a scratch file has already are used again: truncating first costs ten times.
        for offset, data in pieces:
            end = max(end, offset + len(data))
            _pwrite(file, data, offset)
        os.ftruncate(file, end)
    finally:
        os.close(file)


def _pwrite(file: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count


def _pread(file: int, length: int, offset: int) -> bytes:
    data = os.pread(file, length, offset)
    while len(data) < length:
        more = os.pread(file, length - len(data), offset + len(data))
        if not more:
            raise EOFError(f"the file ends at byte {offset + len(data)}")
        data += more
    return data


def _read_exactly(file: int, offset: int, length: int, buffer: np.ndarray) -> None:
    if length != buffer.nbytes:
        raise ValueError(f"{length} bytes stored, {buffer.nbytes} expected")
    data = buffer.data
    while data:
        count = os.preadv(file, [data], offset)
        if not count:
            raise EOFError(f"the file ends at byte {offset}")
        data, offset = data[count:], offset + count
