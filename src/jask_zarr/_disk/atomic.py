"""How do many files replace others so that a crash leaves all old or all new?

1. `Staging.begin` makes a directory inside the target directory: ``.jask_zarr/<owner>-<n>``.
   New files are written below its ``files``, where nobody looks.
2. `commit` writes one record into it. One rename puts the record in place: before it, all is
   old; after it, all is new.
3. The files are renamed over the old ones, and the staging directory is removed.
4. `recover`, called when a target is opened, finishes step 3 for a record whose owner has died,
   and removes a staging directory that has none.

Several targets are replaced together: the first one's staging directory holds the only record,
with the way to the others, and theirs hold the way to it. This holds for the end of a process at
any moment; for loss of power only with `set_durability("power")`, which flushes to the device the
new files before the record, the record before the renames, and the renames before the record goes.
"""

import errno
import json
import os
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from .. import _config
from ..errors import NotAnArrayError, ReadOnlyStoreError, StoreBusyError
from . import owners

STAGING = ".jask_zarr"
_FILES, _RECORD, _MEMBER = "files", "committed.json", "member.json"
_numbers = count()
_mine: set[str] = set()
_lock = threading.Lock()


class Staging:
    """New files for one target directory; see the module's docstring.

    Attributes
    ----------
    target : str
        Directory whose files are to be replaced.
    directory : str
        The staging directory.
    files : str
        Where the new files go, at the same relative paths as in the target.
    """

    def __init__(self, target: str, directory: str) -> None:
        self.target = target
        self.directory = directory
        self.files = os.path.join(directory, _FILES)
        self._finalizer = weakref.finalize(self, _discard, directory, os.getpid())

    @classmethod
    def begin(cls, target: str | os.PathLike) -> "Staging":
        """Start to replace files of a directory; one at a time.

        Raises
        ------
        StoreBusyError
            If the same directory is being replaced already, by this process or another one.
        """
        target = os.path.realpath(target)
        recover(target)
        directory = os.path.join(target, STAGING, f"{owners.own_tag()}-{next(_numbers)}")
        with _lock:
            _mine.add(directory)
        try:
            _make_directory(os.path.join(directory, _FILES))
            _refuse_others(target, directory)
        except BaseException:
            _discard(directory, os.getpid())
            raise
        return cls(target, directory)

    def discard(self) -> None:
        """Remove what was staged; the target stays as it is. Harmless after a commit."""
        self._finalizer()


def commit(stagings: Sequence[Staging]) -> None:
    """Replace the files of all targets, as one step; on an error before it, of none.

    An interruption while files are renamed is passed on when all of them are.
    """
    if not stagings:
        return
    try:
        for staging in stagings:
            _make_folders(staging)
        _link_members(stagings)
        for staging in stagings:
            flush_tree(staging.directory)
        _write_json(stagings[0].directory, _RECORD, _ways(stagings))  # now all is new
        flush(stagings[0].directory)
    except BaseException:
        for staging in stagings:
            staging.discard()
        raise
    try:
        _finish(stagings)
    except BaseException:
        _finish(stagings)
        raise


def _finish(stagings: Sequence[Staging]) -> None:
    try:
        for staging in stagings[1:]:
            if os.path.isdir(staging.directory):
                _write_json(staging.directory, _RECORD, [])
        for staging in reversed(stagings):
            _roll_forward(staging.target, staging.directory)
    finally:
        # What could not be renamed is left for `recover`, which skips what is still in use.
        with _lock:
            _mine.difference_update(staging.directory for staging in stagings)
        for staging in stagings:
            staging._finalizer.detach()


def _ways(stagings: Sequence[Staging]) -> list[str]:
    first = stagings[0].directory
    return [os.path.relpath(staging.directory, first) for staging in stagings[1:]]


def _link_members(stagings: Sequence[Staging]) -> None:
    for staging in stagings[1:]:
        way = os.path.relpath(stagings[0].directory, staging.directory)
        _write_json(staging.directory, _MEMBER, way)


def _write_json(directory: str, name: str, content: object) -> None:
    partial = os.path.join(directory, name + ".partial")
    Path(partial).write_text(json.dumps(content), encoding="utf-8")
    flush(partial)
    os.replace(partial, os.path.join(directory, name))


def _read_json(directory: str, name: str) -> Any:
    try:
        return json.loads(Path(directory, name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def flush_tree(directory: str) -> None:
    """Flush a directory and all below it, and its own entry."""
    if _config.durability() != "power":
        return
    for folder, _, names in os.walk(directory):
        for path in (*(os.path.join(folder, name) for name in names), folder):
            flush(path)
    for parent in (os.path.dirname(directory), os.path.dirname(os.path.dirname(directory))):
        flush(parent)


def flush(path: str) -> None:
    """Let a file, or the entries of a directory, survive loss of power, if that is asked for."""
    if _config.durability() != "power":
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def held(target: str | os.PathLike) -> Iterator[None]:
    """Keep others from replacing files of a directory meanwhile, if this user may write there."""
    if not os.access(target, os.W_OK):
        yield
        return
    staging = Staging.begin(target)
    try:
        yield
    finally:
        staging.discard()


def _staged(directory: str) -> Iterator[tuple[str, list[str]]]:
    """Folders below ``files``, relative to it, and the names of the files in each."""
    root = os.path.join(directory, _FILES)
    for folder, _, names in os.walk(root):
        yield os.path.relpath(folder, root), names


def _make_folders(staging: Staging) -> None:
    """Make the folders of new files, and see that nothing but a file is in any file's way."""
    for folder, names in _staged(staging.directory):
        place = os.path.join(staging.target, folder)
        try:
            if names:
                os.makedirs(place, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotAnArrayError(f"There is a file on the way to {place!r}, where chunks belong.") from error
        for name in names:
            if os.path.isdir(os.path.join(place, name)):
                raise NotAnArrayError(f"There is a folder at {os.path.join(place, name)!r}, where a chunk belongs.")


def _roll_forward(target: str, directory: str) -> None:
    for folder, names in _staged(directory):
        for name in names:
            new = os.path.join(directory, _FILES, folder, name)
            _move(new, os.path.join(target, folder, name))
        if names:
            flush(os.path.join(target, folder))
    _remove(directory)


def _move(new: str, old: str) -> None:
    try:
        os.replace(new, old)
    except FileNotFoundError:
        # Another process, which recovers the same target, was faster.
        if os.path.exists(new):
            raise
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = f"{old}.partial"
        shutil.copyfile(new, partial)
        os.replace(partial, old)
        os.unlink(new)


def _remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _remove_if_empty(os.path.dirname(directory))


def _remove_if_empty(parent: str) -> None:
    with suppress(OSError):
        os.rmdir(parent)


def _make_directory(directory: str) -> None:
    for _ in range(1000):
        # Whoever opens the target meanwhile removes the common parent, if it is empty just then.
        with suppress(FileNotFoundError):
            return os.makedirs(directory)
    os.makedirs(directory)


def _discard(directory: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child must not remove what its parent is using
    with _lock:
        _mine.discard(directory)
    _remove(directory)


# --- recovery -------------------------------------------------------------------------------


def recover(target: str | os.PathLike) -> None:
    """Finish or remove what dead processes have left in a target directory.

    Raises
    ------
    StoreBusyError
        If a living process is just replacing files there.
    """
    stagings = _stagings_in(target)
    if stagings == []:
        _remove_if_empty(os.path.join(target, STAGING))
    for directory in stagings or ():
        committed = _is_committed(directory)
        if not _is_live(directory):
            _settle(os.fspath(target), directory, committed)
        elif committed and directory not in _mine:
            raise StoreBusyError(
                f"Process {_owner(directory)} is replacing the array at {os.fspath(target)!r} "
                "just now; open it again when that is done. If that process ran on another "
                f"machine and has died, remove {directory!r}."
            )


def _settle(target: str, directory: str, committed: bool) -> None:
    if not committed:
        return _remove(directory)
    try:
        for way in _read_json(directory, _RECORD) or ():
            member = os.path.normpath(os.path.join(directory, way))
            if os.path.isdir(member):
                _roll_forward(os.path.dirname(os.path.dirname(member)), member)
        _roll_forward(target, directory)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise ReadOnlyStoreError(
            f"An update of the array at {target!r} was interrupted and has to be finished, which "
            "this user may not do; open it once as a user who may write there."
        ) from error


def _is_committed(directory: str) -> bool:
    way = _read_json(directory, _MEMBER)
    places = [directory, *([os.path.join(directory, way)] if isinstance(way, str) else ())]
    return any(os.path.exists(os.path.join(place, _RECORD)) for place in places)


def _stagings_in(target: str | os.PathLike) -> list[str] | None:
    try:
        with os.scandir(os.path.join(target, STAGING)) as entries:
            return [entry.path for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _owner(directory: str) -> str:
    return os.path.basename(directory).rpartition("-")[0]


def _is_live(directory: str) -> bool:
    owner = _owner(directory)
    return directory in _mine if owner == owners.own_tag() else owners.is_alive(owner)


def _refuse_others(target: str, directory: str) -> None:
    for other in _stagings_in(target) or ():
        if other != directory and _is_live(other):
            raise StoreBusyError(
                f"Process {_owner(other)} is already updating the array at {target!r}; "
                "two updates of one array at once would lose one of them."
            )


def directory_bytes(directory: str | os.PathLike, exclude: Sequence[str] = ()) -> int:
    """Bytes of all files below a directory, without staged files and the names excluded."""
    total = 0
    for folder, subfolders, names in os.walk(directory):
        if STAGING in subfolders:
            subfolders.remove(STAGING)
        total += sum(_file_bytes(os.path.join(folder, n)) for n in names if n not in exclude)
    return total


def _file_bytes(file: str) -> int:
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0
