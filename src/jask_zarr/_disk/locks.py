"""Who is replacing files of a directory, and is it committed? A lock and a record, in the directory itself.

A lock is a symbolic link: it is there at once with its text, and only if there was none. The text
says whose update it is; it is no path. Where the file system has no links, the lock is a file. A
record is a file that appears as a whole, and its update is committed then.
"""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from . import owners
from .durable import flush, write_at_once

PREFIX = ".jask_zarr."
"""How the names of all files begin that an update puts into a directory."""

LOCK, RECORD = PREFIX + "lock", PREFIX + "record"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_numbers = count()
_mine: set[str] = set()
_mine_lock = threading.Lock()


class Lock(NamedTuple):
    """What a lock says: the tag of its update and, when that is committed with others', where the record is."""

    tag: str
    first: str = ""
    """The tag of the update that has the record."""
    way: str = ""
    """The way to its directory."""

    @property
    def owner(self) -> str:
        """The process whose update it is."""
        return self.tag.rpartition("-")[0]

    @property
    def is_own(self) -> bool:
        """Whether that is this process."""
        return self.owner == owners.own_tag()

    @property
    def is_live(self) -> bool:
        """Whether the update goes on, as far as can be known."""
        return self.tag in _mine if self.is_own else owners.is_alive(self.owner)


def new_tag() -> str:
    """The tag of a new update of this process; it goes on until `forget`."""
    tag = f"{owners.own_tag()}-{next(_numbers)}"
    with _mine_lock:
        _mine.add(tag)
    return tag


def forget(tags: Iterable[str]) -> None:
    """These updates are over."""
    with _mine_lock:
        _mine.difference_update(tags)


def lock_of(directory: str) -> Lock | None:
    """The lock of a directory, if it has one."""
    try:
        return Lock(*_text_of(os.path.join(directory, LOCK)).split("|", 2))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _text_of(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return Path(path).read_text(encoding="utf-8", errors="replace")


def take(directory: str, tag: str) -> None:
    """Lock a directory, or raise ``FileExistsError``."""
    _link(os.path.join(directory, LOCK), tag)


def point_to(directory: str, tag: str, first: str, place: str) -> None:
    """Let a lock of ours say where the record of its update will be."""
    path, text = os.path.join(directory, LOCK), "|".join((tag, first, os.path.relpath(place, directory)))
    _link(path + ".partial", text)
    os.replace(path + ".partial", path)
    flush(directory)


def _link(path: str, text: str) -> None:
    try:
        os.symlink(text, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)


def write_record(directory: str, tag: str, others: Sequence[str]) -> None:
    """Let an update be committed, together with those of other directories."""
    ways = [os.path.relpath(other, directory) for other in others]
    write_at_once(os.path.join(directory, RECORD), json.dumps([tag, *ways]))


def record_of(directory: str, tag: str) -> list[str] | None:
    """The other directories of a committed update, or None if it is not committed."""
    try:
        found = json.loads(Path(directory, RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    if not isinstance(found, list) or found[:1] != [tag]:
        return None
    return [os.path.normpath(os.path.join(directory, way)) for way in found[1:] if isinstance(way, str)]


def is_committed(directory: str, lock: Lock) -> bool:
    """Whether the update of a lock is committed."""
    if record_of(directory, lock.tag) is not None:
        return True
    return bool(lock.way) and record_of(os.path.join(directory, lock.way), lock.first) is not None


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """One process at a time: else one that removes a dead lock might meet the live one that came in its place.

    Where the file system knows no such locks, it goes on without.
    """
    folder = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)
