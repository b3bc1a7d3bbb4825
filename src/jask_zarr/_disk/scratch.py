"""Temporary arrays: who owns their files, and when they go.

Each process has one directory in the scratch directory, named after it, and each `SpillFile` a
directory in that. The files go when the `SpillFile` is unreachable, or when the process ends.
After a kill they are removed by the next process that uses the same scratch directory.
"""

import errno
import os
import shutil
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore, StorePath

from .. import _config
from .._chunks import Index, box_slices
from ..errors import ScratchFullError
from . import atomic, owners, stores
from .blocks import BlockedArray
from .engines import FileEngine, choose_engine

_PREFIX = "jask_zarr-"
_CODECS = {"raw": None, "lz4": BloscCodec(cname="lz4", shuffle="shuffle")}
_numbers = count()
_in_use: dict[tuple[int, Path], Path] = {}


class SpillFile(BlockedArray):
    """A temporary array on disk, for as long as it is reachable.

    Examples
    --------
    >>> import numpy as np
    >>> spill = SpillFile.create((4, 3), "f4", chunks=(2, 3))
    >>> spill.write_box((0, 0), np.ones((2, 3), "f4"))
    >>> float(spill.read_box((0, 0), (4, 3)).sum())
    6.0
    """

    @classmethod
    def create(  # type: ignore[override]
        cls,
        shape: Sequence[int],
        dtype: Any,
        chunks: Sequence[int] | None = None,
        fill_value: Any = 0,
        codec: str = "raw",
    ) -> Self:
        """Create a temporary array.

        Parameters
        ----------
        shape, dtype, chunks, fill_value
            As in `BlockedArray.create`.
        codec : {"raw", "lz4"}
            Values as they are, which is faster wherever the page cache holds them, or compressed
            by blosc-lz4, for slow disks and for data that becomes much smaller.
        """
        shape = tuple(int(n) for n in shape)
        if chunks is not None:
            chunks = tuple(int(n) for n in chunks)
        dtype = np.dtype(dtype)
        fill = np.asarray(fill_value, dtype).tobytes()  # NaN is not equal to itself
        template = _template(shape, dtype, chunks, fill, codec)
        directory = str(_own_directory() / f"{next(_numbers)}.zarr")
        os.mkdir(directory)
        Path(directory, "zarr.json").write_bytes(_metadata_bytes(template))
        place = stores.place_of(directory)
        store_path = StorePath(place.store, "")
        moved: Any = zarr.AsyncArray(template.metadata, store_path, template.config)
        array = zarr.Array(moved)
        spill = cls(array, place, "r+", choose_engine(array).moved_to(Path(directory)))
        spill._metadata_file = None
        spill._room = _Room(spill.nbytes if codec == "raw" else 0, spill.nbytes)
        weakref.finalize(spill, _remove, directory, os.getpid(), spill._room)
        return spill

    _room: "_Room"

    def _write(self, start: Index, stop: Index, values: np.ndarray) -> None:
        self._room.take()
        try:
            super()._write(start, stop, values)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise _full(f"the disk of {str(self.path)!r} is full") from error

    def mapped(self, start: Index, stop: Index) -> np.ndarray | None:
        """The values of a box in one chunk where they lie; nobody else shortens these files."""
        engine = self._engine
        if not isinstance(engine, FileEngine) or engine.codec.compressor is not None:
            return None
        index = tuple(a // c for a, c in zip(start, self.chunks, strict=True))
        origin = tuple(i * c for i, c in zip(index, self.chunks, strict=True))
        try:
            stored = np.memmap(f"{engine.root}/{engine.key(index)}", np.uint8, "r")
        except FileNotFoundError:
            return None
        return engine.codec.chunk_in(np.asarray(stored)).view(self.dtype)[box_slices(start, stop, origin)]

    def version(self) -> None:
        """No other process replaces its values."""
        return None

    def for_workers(self) -> BlockedArray:
        """The form in which the array is sent to other processes; its files stay this process's own."""
        self._room.take()
        return BlockedArray.open(self.path)

    def __reduce__(self) -> tuple:
        raise TypeError("A temporary array cannot be pickled; save it into a store.")


class _Room:
    """What a temporary array takes of the scratch limit, from its first write until it goes."""

    taken = 0
    # A finalizer may run, and take it, while this thread holds it.
    _lock = threading.RLock()

    def __init__(self, on_disk: int, nbytes: int) -> None:
        self.on_disk, self.nbytes = on_disk, nbytes
        self._held = False

    def take(self) -> None:
        if self._held:
            return
        with _Room._lock:
            if not self._held:
                self._check()
                _Room.taken += self.nbytes
                self._held = True

    def _check(self) -> None:
        limit = _config.scratch_limit()
        if limit is not None and _Room.taken + self.nbytes > limit:
            raise _full(
                f"an array of {self.nbytes:,} bytes does not fit the scratch limit of {limit:,} bytes, of which "
                f"{_Room.taken:,} are taken"
            )
        free = shutil.disk_usage(_config.scratch_directory()).free
        if self.on_disk > free:
            raise _full(
                f"an array of {self.nbytes:,} bytes does not fit {str(_config.scratch_directory())!r}, "
                f"where {free:,} bytes are free"
            )

    def leave(self) -> None:
        with _Room._lock:
            _Room.taken -= self.nbytes * self._held
            self._held = False


def _full(what: str) -> ScratchFullError:
    return ScratchFullError(
        errno.ENOSPC,
        f"No room for a temporary array: {what}. Let go of arrays that are not needed, save results with "
        ".save(path), or name a larger disk or limit with set_memory_budget(..., scratch_dir=..., scratch_limit=...)",
    )


@lru_cache(maxsize=256)
def _template(
    shape: tuple[int, ...],
    dtype: np.dtype,
    chunks: tuple[int, ...] | None,
    fill: bytes,
    codec: str,
) -> zarr.Array:
    """An array of the kind, nowhere: a temporary array is made once a step, its kind once."""
    array = BlockedArray.create(
        MemoryStore(),
        shape,
        dtype,
        chunks=chunks,
        fill_value=np.frombuffer(fill, dtype)[0],
        compressors=_CODECS[codec],
    )
    return array.zarr_array


def _metadata_bytes(array: zarr.Array) -> bytes:
    buffers = array.metadata.to_buffer_dict(default_buffer_prototype())
    return buffers["zarr.json"].to_bytes()


def scratch_usage() -> int:
    """Bytes that this process has in its scratch directories now.

    Examples
    --------
    >>> scratch_usage() >= 0
    True
    """
    pid = os.getpid()
    return sum(atomic.directory_bytes(d) for (p, _), d in _in_use.items() if p == pid)


def _own_directory() -> Path:
    """The process's directory in the scratch directory; the first use removes dead ones."""
    scratch, pid = _config.scratch_directory(), os.getpid()
    own = _in_use.get((pid, scratch))
    if own is None or not own.is_dir():
        sweep(scratch)
        own = scratch / f"{_PREFIX}{owners.own_tag()}"
        own.mkdir(parents=True, exist_ok=True)
        weakref.finalize(_EndOfProcess, _remove, str(own), pid)
        _in_use[pid, scratch] = own
    return own


class _EndOfProcess:
    """Lives as long as the process."""


def sweep(scratch: Path) -> None:
    """Remove what dead processes have left in a scratch directory."""
    for left in scratch.glob(f"{_PREFIX}*"):
        if not owners.is_alive(left.name.removeprefix(_PREFIX)):
            shutil.rmtree(left, ignore_errors=True)


def _remove(directory: str, pid: int, room: _Room | None = None) -> None:
    # A forked child inherits the finalizers, not the files.
    if room is not None:
        room.leave()
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
