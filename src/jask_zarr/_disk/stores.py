"""From what a user names (a path, a URL, a store, a zarr array) to an opened `zarr.Array`.

Local paths become ``LocalStore(Path(absolute path))``: as a string, a path would be cut at ``#``
or ``?``, and a relative one would follow ``chdir``. Opening never creates anything, and reads
the array's own metadata, not the copy that a group may keep of it.
"""

import errno
import json
import os
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr
import zarr.errors
from zarr.abc.store import Store
from zarr.storage import LocalStore, ObjectStore, ZipStore

from ..errors import (
    ArrayNotFoundError,
    NotAnArrayError,
    NotPortableError,
    ReadOnlyStoreError,
    UnsupportedDtypeError,
)

METADATA_FILES = ("zarr.json", ".zarray")
_MEMBERS_SHOWN = 20


@dataclass(frozen=True)
class Place:
    """Where an array is: a store, or a URL, and a path inside it."""

    store: Any
    path: str = ""

    @property
    def directory(self) -> Path | None:
        """The directory of the array's files, if it is a local one."""
        if not isinstance(self.store, LocalStore):
            return None
        return Path(self.store.root, self.path)

    def __str__(self) -> str:
        if self.directory is not None:
            return f"{str(self.directory)!r}"
        return _store_text(self.store) + (f", path {self.path!r}" if self.path else "")


def _store_text(store: Any) -> str:
    text = str(getattr(store, "path", None) or store)
    return f"a {type(store).__name__}" if " object at 0x" in text else repr(text)


def place_of(source: Any, path: str | None = None, *, read_only: bool = False) -> Place:
    """The place that a path, URL, store, zarr array or zarr group names."""
    inner = (path or "").strip("/")
    if isinstance(source, zarr.Array | zarr.Group):
        inner = "/".join(filter(None, (source.store_path.path, inner)))
        read_only = read_only or source.read_only
        source = source.store_path.store
    if isinstance(source, LocalStore):
        read_only, source = read_only or source.read_only, source.root
    if isinstance(source, str | os.PathLike) and not _is_url(source):
        return Place(_local_store(os.path.abspath(source), read_only), inner)
    if isinstance(source, Store | str):
        return Place(source, inner)
    raise TypeError(f"Cannot open {type(source).__name__!r}: give a path, a zarr store or a zarr array.")


def _is_url(source: Any) -> bool:
    return isinstance(source, str) and "://" in source and not os.path.exists(source)


def _local_store(path: str, read_only: bool) -> Store:
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        return ZipStore(path, mode="r")
    return LocalStore(Path(path), read_only=read_only)


def open_zarr(place: Place, mode: str) -> zarr.Array:
    """Open the array at a place, or say what is there instead."""
    directory = place.directory
    if directory is not None and not directory.is_dir():
        raise _nothing_at(place)
    try:
        return zarr.open_array(store=place.store, path=place.path, mode=mode)  # type: ignore[arg-type]
    except Exception as error:
        raise _explained(place, error) from error


def _nothing_at(place: Place) -> Exception:
    root = Path(place.store.root)
    if root.is_file():
        return NotAnArrayError(
            f"{str(root)!r} is a file, not a zarr array; load it with numpy and store it with "
            "DiskArray.from_numpy(values, path=...)."
        )
    if root.is_dir():
        return ArrayNotFoundError(f"There is no array at {place}.{_members_text(root)}")
    return ArrayNotFoundError(f"There is nothing at {place}.")


def _explained(place: Place, error: Exception) -> Exception:
    """The error a caller can act on, for whatever zarr raised."""
    if isinstance(error, UnsupportedDtypeError):
        return error
    if "rectilinear" in str(error).lower():
        return NotAnArrayError(
            f"The array at {place} has chunks of unequal size. zarr 3.4 and later reads them once it is told "
            "zarr.config.set({'array.rectilinear_chunks': True}); or rewrite it with chunks of one size."
        )
    document = _metadata(place.directory)
    if isinstance(document, ValueError):
        return NotAnArrayError(f"The metadata at {place} is not valid JSON ({document}).")
    if document is not None and document.get("node_type") != "group":
        return _unreadable(place, document, error)
    if document is not None or _is_group(place):
        return NotAnArrayError(f"There is a group at {place}, not an array.{_members_of(place)}")
    if isinstance(error, FileNotFoundError):
        return ArrayNotFoundError(f"There is no array at {place}.{_members_of(place)}")
    if isinstance(error, OSError | MemoryError):
        return error
    return NotAnArrayError(f"The array at {place} cannot be opened: {error}")


def _is_group(place: Place) -> bool:
    try:
        zarr.open_group(place.store, path=place.path, mode="r", use_consolidated=False)
    except Exception:
        return False
    return True


def _unreadable(place: Place, document: dict[str, Any], error: Exception) -> Exception:
    dtype = document.get("data_type", document.get("dtype"))
    if "data type" in str(error).lower():
        return UnsupportedDtypeError(
            f"The array at {place} holds {dtype!r} data, which cannot be read; store it as numbers."
        )
    return NotAnArrayError(f"The array at {place} cannot be opened: {error}")


def _metadata(directory: Path | None) -> dict[str, Any] | ValueError | None:
    for file in [directory / name for name in METADATA_FILES] if directory else ():
        try:
            document = json.loads(file.read_bytes())
        except OSError:
            continue
        except ValueError as error:
            return error
        except RecursionError:
            return ValueError("it is nested too deeply")
        return document if isinstance(document, dict) else ValueError("not an object")
    return None


def _members_of(place: Place) -> str:
    if place.directory is not None:
        return _members_text(place.directory)
    try:
        group = zarr.open_group(place.store, path=place.path, mode="r", use_consolidated=False)
        members = group.members(max_depth=None)
        return _listed(sorted(k for k, v in members if isinstance(v, zarr.Array)))
    except Exception:
        return ""


def _members_text(directory: Path) -> str:
    return _listed(sorted(_local_members(directory)))


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_MEMBERS_SHOWN]))
    more = f" and {len(names) - _MEMBERS_SHOWN} more" if len(names) > _MEMBERS_SHOWN else ""
    return f" Its arrays are {shown}{more}; name one with path=..." if names else ""


def _local_members(directory: Path) -> list[str]:
    found = []
    for folder, subfolders, _ in os.walk(directory):
        document = _metadata(Path(folder))
        if isinstance(document, dict) and document.get("node_type") != "group":
            found.append(os.path.relpath(folder, directory))
            subfolders.clear()
    return found


def is_read_only(place: Place, mode: str) -> bool:
    """Whether nothing can be written there, found by trying where that leaves no trace."""
    if mode == "r" or (isinstance(place.store, Store) and place.store.read_only):
        return True
    if isinstance(place.store, Store) and not place.store.supports_writes:
        return True
    if _is_web(place.store):
        return True
    return place.directory is not None and not is_writable(place.directory)


def is_writable(directory: Path) -> bool:
    """Whether a file can be made in the directory; mode bits would not say (root, ACLs)."""
    if not os.access(directory, os.W_OK):
        return False
    if not hasattr(os, "O_TMPFILE"):
        return True
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY))
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS)
    return True


def _is_web(store: Any) -> bool:
    """Whether it is a plain web server, which takes no writes though the store's class would."""
    protocol = getattr(getattr(store, "fs", None), "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return bool(names & {"http", "https"}) or type(getattr(store, "store", None)).__name__ == "HTTPStore"


def check_portable(place: Place) -> None:
    """Raise `NotPortableError` if other processes cannot open the same store, as one that is pickled by value."""
    if place.directory is not None:
        return
    reason = "it is in the memory of this one"
    try:
        there = pickle.loads(pickle.dumps(place))
        portable = not _is_in_memory(place.store) and identity_of(there) == identity_of(place)
    except Exception as error:
        portable, reason = False, f"it cannot be pickled ({error})"
    if not portable:
        raise NotPortableError(
            f"The store at {place} cannot be opened by other processes: {reason}. Use one on a disk or a server, or "
            "compute in this process: jz.set_executor(None)."
        )


def _is_in_memory(store: Any) -> bool:
    protocol = getattr(getattr(store, "fs", None), "protocol", ())
    return "memory" in ({protocol} if isinstance(protocol, str) else set(protocol))


def check_creatable(place: Place) -> None:
    """Refuse a place where nothing can be created."""
    directory = place.directory
    if getattr(place.store, "read_only", False):
        raise ReadOnlyStoreError(f"Nothing can be created at {place}: it is read-only.")
    if directory is None or not os.path.lexists(directory):
        return
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"There is a file at {place}, which is not replaced: give another path, or remove it.")
    if directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK):
        raise ReadOnlyStoreError(f"Nothing can be created at {place}: this user may not write there.")


def identity_of(place: Place) -> tuple:
    """Equal for two places exactly if they are the same stored array."""
    if place.directory is not None:
        return _local_identity(place.directory)
    store: Any = place.store
    while hasattr(store, "_store") and isinstance(store._store, Store):
        store = store._store
    if isinstance(store, ZipStore):
        return ("zip", os.path.realpath(store.path), place.path)
    if hasattr(store, "_store_dict"):
        return ("memory", id(store._store_dict), place.path)
    if hasattr(store, "fs"):
        return ("fsspec", str(store.fs.protocol), *_joined(store.path, place.path))
    if isinstance(store, ObjectStore):
        return _object_identity(store.store, place.path)
    return (_ByEquality(store), place.path)


def _local_identity(directory: str | Path) -> tuple:
    return ("local", os.path.realpath(directory))


def _joined(*parts: str) -> tuple[str, ...]:
    return tuple("/".join(parts).strip("/").split("/"))


def _object_identity(store: Any, path: str) -> tuple:
    prefix = getattr(store, "prefix", None)
    if type(store).__name__ == "LocalStore" and prefix is not None:
        return _local_identity(Path(prefix, path))
    return (_ByEquality(store), path)


class _ByEquality:
    """A store as a key: stores of sessions and of buckets are equal, not identical, and may have no hash."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __hash__(self) -> int:
        return hash(type(self.store))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByEquality) and bool(self.store == other.store)
