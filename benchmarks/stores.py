"""The zarr stores that all contenders read and write: one codec, made and counted in one way."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import LocalStore

CODEC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}


def create(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any = "float32") -> zarr.Array:
    """A new array with the benchmark's codec."""
    return zarr.create_array(
        str(path), shape=shape, chunks=chunks, dtype=dtype, compressors=BloscCodec(**CODEC), overwrite=True
    )


def create_like(path: Path, model: Any, chunks: tuple[int, ...] | None = None) -> zarr.Array:
    """A new array with the shape, chunks and dtype of another."""
    return create(path, tuple(model.shape), tuple(chunks or model.chunks), model.dtype)


def open_stored(path: Path) -> zarr.Array:
    """An array, as zarr-python opens it."""
    return zarr.open_array(str(path), mode="r+")


def load(path: Path) -> np.ndarray:
    """The whole array in memory."""
    return np.asarray(open_stored(path)[...])


def save(path: Path, values: np.ndarray, chunks: tuple[int, ...]) -> None:
    """Write a whole array from memory."""
    create(path, values.shape, chunks, values.dtype)[...] = values


def link_copy(source: Path, target: Path) -> None:
    """A second store made of hard links: free, and safe with writers that replace files."""
    for folder, _, files in os.walk(source):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for file in files:
            os.link(Path(folder, file), place / file)


@dataclass
class Moved:
    """Decoded bytes of the chunks that went through a contender."""

    bytes_read: int = 0
    bytes_written: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written


@contextmanager
def counted() -> Iterator[Moved]:
    """Count what zarr-python reads and writes on local stores, whoever asks for it; chunks that are absent too."""
    moved, get, put = Moved(), LocalStore.get, LocalStore.set

    async def counting_get(self: Any, key: str, *args: Any, **keywords: Any) -> Any:
        moved.add(read=_decoded_bytes(str(self.root), key))
        return await get(self, key, *args, **keywords)

    async def counting_put(self: Any, key: str, *args: Any, **keywords: Any) -> Any:
        moved.add(written=_decoded_bytes(str(self.root), key))
        return await put(self, key, *args, **keywords)

    LocalStore.get, LocalStore.set = counting_get, counting_put
    try:
        yield moved
    finally:
        LocalStore.get, LocalStore.set = get, put


def _decoded_bytes(root: str, key: str) -> int:
    """Of one chunk; none for metadata."""
    folder, mark, _ = f"{root}/{key}".rpartition("/c/")
    return _chunk_bytes(folder) if mark else 0


@cache
def _chunk_bytes(folder: str) -> int:
    metadata = json.loads(Path(folder, "zarr.json").read_text())
    chunks = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    return math.prod(chunks) * np.dtype(metadata["data_type"]).itemsize
