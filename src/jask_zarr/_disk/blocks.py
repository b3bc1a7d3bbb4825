"""`BlockedArray`: a zarr array seen as a grid of blocks.

It is read by boxes, in units of its chunks, and written by boxes of whole write chunks: the
shards where it is sharded, else the chunks. Values are numpy arrays in C order and the machine's
byte order, whatever the store holds.
"""

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from math import prod
from operator import add
from typing import Any, Self

import numpy as np
import zarr
import zarr.codecs
import zarr.errors

from .. import _chunks, _config
from .._chunks import Index
from ..errors import (
    DamagedChunkError,
    DtypeMismatchError,
    MemoryBudgetError,
    NotAnArrayError,
    ReadOnlyStoreError,
    ShapeMismatchError,
    StaleArrayError,
)
from . import atomic, cost, grids, stores, swap
from .dtypes import check_supported, native_dtype
from .engines import BadChunk, Engine, choose_engine
from .packing import packing_text


class BlockedArray:
    """A zarr array as a grid of blocks; make one with `open`, `create` or `from_numpy`.

    Any number of threads may read, and write different write chunks, at once.

    Attributes
    ----------
    shape, dtype, ndim, size, nbytes
        As in numpy; the data type is in the machine's byte order.
    chunks : tuple of int
        What is decoded at once: the inner chunks of a sharded array.
    write_chunks : tuple of int
        What is written at once: the shards of a sharded array, else the chunks.
    fill_value
        The value of chunks that are not stored.
    read_only : bool
        Whether nothing can be written.
    identity : tuple
        Equal for two objects exactly if they are the same stored array, by whatever path.
    path : str or None
        Absolute path of the array's directory, if it is a local one.
    zarr_array : zarr.Array
        The same array for zarr.
    engine : str
        Name of the engine that reads and writes it.

    Examples
    --------
    >>> import zarr
    >>> a = BlockedArray.create(zarr.storage.MemoryStore(), (4, 3), "f4", chunks=(2, 2))
    >>> a.write_box((0, 0), np.ones((4, 2), "f4"))
    >>> a.read_box((1, 1), (3, 3))
    array([[1., 0.],
           [1., 0.]], dtype=float32)
    """

    def __init__(self, array: zarr.Array, place: stores.Place, mode: str, engine: Engine) -> None:
        self.zarr_array = array
        self.shape: Index = tuple(array.shape)
        self.dtype: np.dtype = native_dtype(array.dtype)
        self.chunks: Index = grids.chunk_shape(array)
        self.write_chunks: Index = grids.file_shape(array)
        self.fill_value: Any = _fill_value(array, self.dtype)
        self.mode = mode
        self._place = place
        self._engine = engine
        self._metadata_file = _metadata_file(place)
        self._seen = _signature(self._metadata_file)
        self._pinned = False
        self._staged_at: str | None = None
        self._padded_bytes = _padded_bytes(self.write_chunks, self.shape, self.dtype.itemsize)

    @classmethod
    def open(cls, source: Any, path: str | None = None, mode: str = "r+", *, engine: str | None = None) -> Self:
        """Open an array that exists; nothing is created and nothing is loaded.

        Parameters
        ----------
        source : path, URL, zarr store, zarr.Array or zarr.Group
            A local path is made absolute now. A zip file is read as a zip store.
        path : str, optional
            Where the array is inside the store.
        mode : {"r+", "r"}
            Whether writing is allowed. A store that cannot be written opens in either mode.
        engine : {"zarr"}, optional
            Read and write by zarr-python's pipeline even if a faster engine would do.

        Raises
        ------
        ArrayNotFoundError, NotAnArrayError, UnsupportedDtypeError, StoreBusyError
        """
        if mode not in ("r", "r+"):
            raise ValueError(f"mode is 'r' or 'r+', not {mode!r}.")
        place = stores.place_of(source, path, read_only=mode == "r")
        if place.directory is not None:
            swap.recover_missing(place.directory)
            atomic.recover(os.path.realpath(place.directory))
        seen = signature(place)
        array = stores.open_zarr(place, _zarr_mode(place, mode))
        check_supported(array.dtype, f"The array at {place}")
        _check_sizes(array, place)
        opened = cls(array, place, mode, choose_engine(array, engine))
        opened._seen = seen  # from before the metadata was read: whatever comes in between is noticed
        return opened

    @classmethod
    def create(
        cls,
        source: Any,
        shape: Sequence[int],
        dtype: Any,
        *,
        path: str | None = None,
        chunks: Sequence[int] | None = None,
        shards: Sequence[int] | None = None,
        compressors: Any = "auto",
        filters: Any = "auto",
        serializer: Any = "auto",
        fill_value: Any = 0,
        zarr_format: int = 3,
        overwrite: bool = False,
        attributes: dict[str, Any] | None = None,
        dimension_names: Sequence[str | None] | None = None,
        engine: str | None = None,
    ) -> Self:
        """Create an array; every element reads as ``fill_value`` until it is written.

        Parameters
        ----------
        source : path, URL or zarr store
        shape, dtype
            Of the array. A byte order in the data type is kept on disk.
        path : str, optional
            Where to put the array inside the store.
        chunks : tuple of int, optional
            By default nearly equal sides and about 4 MiB.
        shards : tuple of int, optional
            Multiples of the chunks.
        compressors, filters, serializer, attributes, dimension_names
            As in `zarr.create_array`.
        fill_value : scalar
        zarr_format : {3, 2}
        overwrite : bool
            Replace what is there; otherwise that is a ``FileExistsError``.
        """
        stored = np.dtype(dtype)
        check_supported(native_dtype(stored), "The new array")
        shape = tuple(int(n) for n in shape)
        place = stores.place_of(source, path)
        stores.check_creatable(place)
        if zarr_format not in (2, 3):
            raise ValueError(f"zarr_format is 2 or 3, not {zarr_format!r}.")
        chunks = _chunks_for(shape, chunks, stored.itemsize)
        written = chunks if shards is None else _chunks.normalize_chunks(shards, shape)
        _check_padding(_padded_bytes(written, shape, stored.itemsize), place)
        try:
            array = zarr.create_array(
                place.store,
                name=place.path or None,
                shape=shape,
                dtype=stored,
                chunks=chunks,
                shards=None if shards is None else tuple(shards),
                compressors=compressors,
                filters=filters,
                serializer=_serializer(serializer, stored, zarr_format),
                fill_value=fill_value,
                zarr_format=zarr_format,  # type: ignore[arg-type]
                overwrite=overwrite,
                attributes=attributes,
                dimension_names=dimension_names,
            )
        except zarr.errors.ContainsArrayError as error:
            raise FileExistsError(_exists(place, "an array")) from error
        except zarr.errors.ContainsGroupError as error:
            raise FileExistsError(_exists(place, "a group")) from error
        return cls(array, place, "r+", choose_engine(array, engine))

    @classmethod
    def from_numpy(cls, values: Any, source: Any, **options: Any) -> Self:
        """Create an array that holds the values; the options are those of `create`."""
        values = np.asarray(values)
        array = cls.create(source, values.shape, options.pop("dtype", values.dtype), **options)
        array.write_box((0,) * values.ndim, np.asarray(values, array.dtype))
        return array

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, decoded."""
        return self.size * self.dtype.itemsize

    @property
    def block_grid(self) -> Index:
        """Number of chunks along each dimension."""
        return _chunks.grid_shape(self.shape, self.chunks)

    @property
    def engine(self) -> str:
        """Name of the engine that reads and writes the array."""
        return self._engine.name

    @property
    def path(self) -> str | None:
        """Absolute path of the array's directory, if it is a local one."""
        directory = self._place.directory
        return None if directory is None else str(directory)

    @cached_property
    def identity(self) -> tuple:
        """Equal for two objects exactly if they are the same stored array."""
        opened: Any = self.zarr_array.store_path
        return stores.identity_of(stores.Place(opened.store, opened.path))

    @cached_property
    def read_only(self) -> bool:
        """Whether nothing can be written."""
        opened: Any = self.zarr_array.store_path
        place = stores.Place(opened.store, opened.path)
        return not grids.is_regular(self.zarr_array) or stores.is_read_only(place, self.mode)

    @property
    def codecs(self) -> str:
        """The codecs, for people: ``"bytes, zstd"``."""
        return _codec_names(self.zarr_array.metadata.to_dict()) + packing_text(self.zarr_array)

    def stored_bytes(self) -> int:
        """Bytes that the chunks take in the store now."""
        if self.path is None:
            return int(self.zarr_array.nbytes_stored())
        return atomic.directory_bytes(self.path, exclude=stores.METADATA_FILES)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype.name}, "
            f"chunks={self.chunks}, codecs={self.codecs!r}, at {self._place})"
        )

    def __reduce__(self) -> tuple:
        return _reopen, (self._place.store, self._place.path, self.mode, self._staged_at)

    def for_workers(self) -> "BlockedArray":
        """The form in which the array is sent to other processes, or `NotPortableError` if they could not open it."""
        _ = self._portable
        return self

    @cached_property
    def _portable(self) -> bool:
        stores.check_portable(self._place)
        return True

    # --- reading ---

    def read_box(self, start: Sequence[int], stop: Sequence[int], out: np.ndarray | None = None) -> np.ndarray:
        """The values of a box, into ``out`` if it is given.

        Raises
        ------
        ShapeMismatchError
            If the box is not inside the array, or ``out`` has another shape.
        DtypeMismatchError
            If ``out`` has another data type.
        DamagedChunkError
            If a chunk cannot be decoded.
        StaleArrayError
            If the array was resized or replaced by another kind of array since it was opened.
        """
        start, stop = tuple(start), tuple(stop)
        self._check_box(start, stop)
        shape = _chunks.box_shape(start, stop)
        if out is None:
            out = np.empty(shape, self.dtype)
        self._check_values(out, shape, "out")
        self.check_unchanged()
        if out.size:
            self._read(start, stop, out)
        return out

    def _read(self, start: Index, stop: Index, out: np.ndarray) -> None:
        _check_padding(self._padded_bytes, self._place)
        try:
            self._engine.read(start, stop, out)
        except BadChunk as error:
            raise DamagedChunkError(
                f"Chunk {error.index} of the array at {self._place} cannot be decoded: {error.reason}."
            ) from error
        except MemoryError as error:
            nbytes = prod(self.chunks) * self.dtype.itemsize
            raise MemoryBudgetError(
                f"There is not memory enough to decode chunks of the array at {self._place}: each takes {nbytes:,} "
                f"bytes, if its file is undamaged. Free memory, or rewrite the array with smaller chunks."
            ) from error
        if cost.counting():
            cost.count_read(*self._touched(start, stop, self.chunks))

    def read_block(self, index: Sequence[int]) -> np.ndarray:
        """The values of one chunk, by its index in `block_grid`."""
        return self.read_box(*_chunks.block_box(tuple(index), self.shape, self.chunks))

    def mapped(self, start: Index, stop: Index) -> np.ndarray | None:
        """The values of a box in one chunk where they lie, None if they must be read."""
        return None

    # --- writing ---

    def write_box(self, start: Sequence[int], values: np.ndarray) -> None:
        """Write a box that consists of whole write chunks (or reaches the array's end).

        Raises
        ------
        ReadOnlyStoreError, ShapeMismatchError, DtypeMismatchError
            Before anything is written.
        """
        start, values = tuple(start), np.asarray(values)
        self.check_writable()
        if not len(start) == values.ndim == self.ndim:
            raise ShapeMismatchError(f"A box of shape {values.shape} at {start} has another rank than {self.shape}.")
        stop = tuple(map(add, start, values.shape))
        self._check_box(start, stop)
        self._check_values(values, values.shape, "values")
        if not _chunks.is_whole(start, stop, self.shape, self.write_chunks):
            raise ShapeMismatchError(
                f"The box {start} to {stop} does not consist of whole chunks of "
                f"{self.write_chunks}: writing it would have to read and rewrite its edges."
            )
        if values.size:
            self._write(start, stop, values)

    def _write(self, start: Index, stop: Index, values: np.ndarray) -> None:
        _check_padding(self._padded_bytes, self._place)
        try:
            self._engine.write(start, values)
        except OSError as error:
            error.filename = error.filename or str(self._place)
            raise
        except (ValueError, RuntimeError, TypeError, ArithmeticError) as error:
            raise NotAnArrayError(
                f"The array at {self._place}, with codecs {self.codecs}, could not be written: {error}."
            ) from error
        if cost.counting():
            cost.count_written(*self._touched(start, stop, self.write_chunks))

    def write_block(self, index: Sequence[int], values: np.ndarray) -> None:
        """Write one write chunk, by its index in the grid of `write_chunks`."""
        start, stop = _chunks.block_box(tuple(index), self.shape, self.write_chunks)
        self._check_values(np.asarray(values), _chunks.box_shape(start, stop), "values")
        self.write_box(start, values)

    def staged_at(self, prefix: str) -> "BlockedArray":
        """The same array with its chunks in files of another name, which nobody reads meanwhile."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        twin._engine, twin._staged_at = self._engine.staged_at(prefix), prefix
        return twin

    # --- checks ---

    def check_writable(self) -> None:
        """Raise `ReadOnlyStoreError` if nothing can be written."""
        if self.read_only:
            raise ReadOnlyStoreError(
                f"The array at {self._place} {self._why_read_only()}; save the new values elsewhere with "
                ".save(path), or open a writable store with mode='r+'."
            )

    def _why_read_only(self) -> str:
        if not grids.is_regular(self.zarr_array):
            return "has chunks of unequal size, which are read but not written"
        return "was opened with mode='r'" if self.mode == "r" else "cannot be written"

    def pin(self) -> None:
        """Let any change of the metadata file, even to the same contents, count as another array."""
        self._pinned = True

    def check_unchanged(self) -> None:
        """Raise `StaleArrayError` if the array was resized or replaced since it was opened."""
        if self._metadata_file is None or self._seen == _signature(self._metadata_file):
            return
        seen = _signature(self._metadata_file)
        if self._pinned:
            raise StaleArrayError(
                f"The checkpoint that holds the array at {self._place} has been replaced since it was restored; "
                "restore it again."
            )
        now = stores.open_zarr(self._place, "r")
        if _layout_of(now) != _layout_of(self.zarr_array):
            raise StaleArrayError(
                f"The array at {self._place} has changed on disk since it was opened: it was "
                f"{_describe(self.zarr_array)} and is now {_describe(now)}. Open it again."
            )
        self._seen = seen

    def version(self) -> tuple | None:
        """What differs once another process has replaced values, of a local array; else None.

        Raises
        ------
        StoreBusyError
            While another process does so.
        """
        if self.path is None:
            return None
        target = os.path.realpath(self.path)
        atomic.recover(target)
        found = _signature(self._metadata_file)
        atomic.recover(target)  # what begins from here on gives another signature
        return found

    def was_updated(self) -> None:
        """Take note of an update of this process's own."""
        self._seen = _signature(self._metadata_file)

    def _check_box(self, start: Index, stop: Index) -> None:
        if not _chunks.is_inside(start, stop, self.shape):
            raise ShapeMismatchError(f"The box {start} to {stop} is not inside the array of shape {self.shape}.")

    def _check_values(self, values: np.ndarray, shape: Index, name: str) -> None:
        if values.shape != shape:
            raise ShapeMismatchError(f"{name} has shape {values.shape}, the box has {shape}.")
        if values.dtype != self.dtype:
            raise DtypeMismatchError(
                f"{name} is {values.dtype}, the array is {self.dtype}; convert it with .astype({self.dtype.name!r})."
            )

    def _touched(self, start: Index, stop: Index, chunks: Index) -> tuple[int, int]:
        count = _chunks.count_touching(start, stop, chunks)
        whole = _chunks.box_shape(*_chunks.covering_box(start, stop, self.shape, chunks))
        return count, prod(whole) * self.dtype.itemsize


def _reopen(store: Any, path: str, mode: str, prefix: str | None) -> BlockedArray:
    array = BlockedArray.open(store, path, mode)
    return array if prefix is None else array.staged_at(prefix)


def _check_sizes(array: zarr.Array, place: stores.Place) -> None:
    if prod(array.shape) * array.dtype.itemsize >= 2**63:
        raise NotAnArrayError(f"The array at {place} claims a shape of {array.shape}, more than can be addressed.")
    chunks = (array.shards or array.chunks) if grids.is_regular(array) else grids.chunk_shape(array)
    if any(n and c < 1 for n, c in zip(array.shape, chunks, strict=True)):
        raise NotAnArrayError(f"The array at {place} has chunks of {chunks}, which cannot make up {array.shape}.")


def _padded_bytes(chunks: Index, shape: Index, itemsize: int) -> int:
    """Bytes of a chunk that the array's size, by which plans are made, does not show; else 0."""
    nbytes = prod(chunks) * itemsize
    return nbytes if nbytes > 4 * prod(shape) * itemsize else 0


def _check_padding(padded_bytes: int, place: stores.Place) -> None:
    """Refuse such chunks if they are beyond the budget."""
    if padded_bytes > _config.memory_budget():
        raise MemoryBudgetError(
            f"A chunk of the array at {place} takes {padded_bytes:,} bytes when it is decoded, which the memory budget "
            f"of {_config.memory_budget():,} bytes has no room for; rewrite the array with smaller chunks."
        )


def _zarr_mode(place: stores.Place, mode: str) -> str:
    return "r" if getattr(place.store, "read_only", False) else mode


def _chunks_for(shape: Index, chunks: Sequence[int] | None, itemsize: int) -> Index:
    if chunks is None:
        return _chunks.default_chunks(shape, itemsize)
    return _chunks.normalize_chunks(chunks, shape)


def _serializer(serializer: Any, dtype: np.dtype, zarr_format: int) -> Any:
    # Format 3 has the byte order in a codec, which zarr does not take from the data type.
    if zarr_format == 3 and serializer == "auto" and not dtype.isnative:
        return zarr.codecs.BytesCodec(endian="big" if sys.byteorder == "little" else "little")
    return serializer


def _fill_value(array: zarr.Array, dtype: np.dtype) -> Any:
    return dtype.type(0 if array.fill_value is None else array.fill_value)


def _exists(place: stores.Place, what: str) -> str:
    return f"There is already {what} at {place}; pass overwrite=True to replace it."


def _metadata_file(place: stores.Place) -> str | None:
    if place.directory is None:
        return None
    candidates = (os.path.join(place.directory, name) for name in stores.METADATA_FILES)
    return next(filter(os.path.exists, candidates), None)


def signature(place: stores.Place) -> tuple | None:
    """What differs once the array or group at a local place has been replaced."""
    return _signature(_metadata_file(place))


def _signature(file: str | None) -> tuple | None:
    if file is None:
        return None
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _layout_of(array: zarr.Array) -> dict[str, Any]:
    document = dict(array.metadata.to_dict())
    document.pop("attributes", None)
    return document


def _describe(array: zarr.Array) -> str:
    return f"{array.dtype.name} {array.shape} in chunks of {grids.chunk_shape(array)}"


def _codec_names(metadata: dict[str, Any]) -> str:
    if metadata["zarr_format"] == 3:
        return ", ".join(_codec_name(c) for c in metadata["codecs"])
    filters = [f["id"] for f in metadata.get("filters") or ()]
    compressor = metadata.get("compressor")
    return ", ".join([*filters, *([_compressor_name(compressor)] if compressor else [])]) or "raw"


def _codec_name(codec: dict[str, Any]) -> str:
    inner = codec.get("configuration", {}).get("codecs")
    if inner:
        return f"{codec['name']}({', '.join(map(_codec_name, inner))})"
    cname = codec.get("configuration", {}).get("cname")
    return f"{codec['name']}-{cname}" if cname else codec["name"]


def _compressor_name(compressor: dict[str, Any]) -> str:
    cname = compressor.get("cname")
    return f"{compressor['id']}-{cname}" if cname else compressor["id"]
