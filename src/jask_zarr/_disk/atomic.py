"""How do many files replace others so that a crash leaves all old or all new?

1. `Staging.begin` takes the target directory's lock. New files are written flat into the
   directory, under names that only their update uses; where they are many, into one folder
   there, since a directory keeps the size it once had.
2. `commit` writes one record beside the lock. One rename puts the record in place: before it,
   all is old; after it, all is new. A single file needs none: its own rename is that step.
3. The files are renamed over the old ones, then record and lock are removed.
4. `recover`, called when a target is opened, finishes step 3 for a record whose owner has died,
   and removes what has none.

Several targets are replaced together: the first one has the only record, with the way to the
others, whose locks say the way to it. This holds for the end of a process at any moment; for
loss of power only with `set_durability("power")`, which flushes to the device the new files
before the record, the record before the renames, and the renames before the record goes.
"""

import errno
import os
import shutil
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

from ..errors import NotAnArrayError, ReadOnlyStoreError, StoreBusyError
from . import locks
from .durable import flush
from .locks import PREFIX, Lock
from .stores import METADATA_FILES

FEW = 16
"""So many new files lie beside the old ones; more have a folder."""


class Staging:
    """New files for one target directory; see the module's docstring.

    Attributes
    ----------
    target : str
        Directory whose files are to be replaced.
    tag : str
        The name of this update.
    prefix : str
        The new file for ``key``, a relative path in the target, is ``prefix + staged_name(key)``.
    """

    def __init__(self, target: str, tag: str, files: int) -> None:
        self.target = target
        self.tag = tag
        self.prefix = os.path.join(target, PREFIX + tag) + ("." if files <= FEW else "/")
        self._finalizer = weakref.finalize(self, _discard, target, tag, os.getpid())

    @classmethod
    def begin(cls, target: str | os.PathLike, files: int = 1) -> "Staging":
        """Start to replace about so many files of a directory; one at a time.

        Raises
        ------
        StoreBusyError
            If the same directory is being replaced already, by this process or another one.
        """
        target, tag = os.path.realpath(target), locks.new_tag()
        try:
            _take(target, tag)
        except BaseException:
            _discard(target, tag, os.getpid())
            raise
        return cls(target, tag, files)

    @property
    def is_under_way(self) -> bool:
        """Whether the target has the lock of this update."""
        lock = locks.lock_of(self.target)
        return lock is not None and lock.tag == self.tag

    def discard(self) -> None:
        """Remove what was staged; the target stays as it is. Harmless after a commit."""
        self._finalizer()


def staged_name(key: str) -> str:
    """The name, without folders, that stands for a relative path.

    >>> staged_name("c/0/1")
    'c%2F0%2F1'
    """
    return quote(key, safe="")


def _staged(target: str, tag: str) -> list[tuple[str, str]]:
    """The new files of an update, and their keys."""
    stem, folder = f"{PREFIX}{tag}.", f"{PREFIX}{tag}/"
    found = [(name, unquote(name.removeprefix(stem))) for name in os.listdir(target) if name.startswith(stem)]
    with suppress(FileNotFoundError):
        found += [(folder + name, unquote(name)) for name in os.listdir(os.path.join(target, folder))]
    return [(name, key) for name, key in found if {"", ".", ".."}.isdisjoint(key.split("/"))]


def _take(target: str, tag: str) -> None:
    for _ in range(100):
        with suppress(FileExistsError):
            return locks.take(target, tag)
        recover(target)
        lock = locks.lock_of(target)
        if lock is not None and lock.is_live:
            raise StoreBusyError(
                f"{'This process' if lock.is_own else f'Process {lock.owner}'} is already updating the array at "
                f"{target!r}; two updates of one array at once would lose one of them. {_by_hand(target)}"
            )
    raise StoreBusyError(f"An update of the array at {target!r} was interrupted. {_by_hand(target)}")


def _by_hand(target: str) -> str:
    return f"If a process on another machine did it and has died, remove {os.path.join(target, locks.LOCK)!r}."


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


# --- commit ---------------------------------------------------------------------------------


def commit(stagings: Sequence[Staging]) -> None:
    """Replace the files of all targets, as one step; on an error before it, of none.

    An interruption while files are renamed is passed on when all of them are.
    """
    if not stagings:
        return
    first = stagings[0]
    try:
        if sum(map(_prepare, stagings)) > 1:
            _write_record(stagings)  # now all is new
        _finish(stagings)
    except BaseException:
        if locks.record_of(first.target, first.tag) is not None:
            _finish(stagings)
        for staging in stagings:
            staging.discard()
        raise


def _prepare(staging: Staging) -> int:
    """Get everything ready for the renames, and count them."""
    if not staging.is_under_way:
        raise StoreBusyError(f"The update of the array at {staging.target!r} was removed by another process.")
    found = _staged(staging.target, staging.tag)
    _make_folders(staging.target, [key for _, key in found])
    new = [os.path.join(staging.target, name) for name, _ in found]
    for path in (*new, *{os.path.dirname(path) for path in new}, staging.target):
        flush(path)
    return len(found)


def _make_folders(target: str, keys: Sequence[str]) -> None:
    """Make the folders of new files, and see that nothing but a file is in any file's way."""
    for folder in {os.path.dirname(key) for key in keys}:
        place = os.path.join(target, folder)
        try:
            os.makedirs(place, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotAnArrayError(f"There is a file on the way to {place!r}, where chunks belong.") from error
    for key in keys:
        place = os.path.join(target, key)
        if os.path.isdir(place):
            raise NotAnArrayError(f"There is a folder at {place!r}, where a chunk belongs.")


def _write_record(stagings: Sequence[Staging]) -> None:
    first, *others = stagings
    for other in others:
        locks.point_to(other.target, other.tag, first.tag, first.target)
    locks.write_record(first.target, first.tag, [other.target for other in others])


def _finish(stagings: Sequence[Staging]) -> None:
    try:
        for staging in reversed(stagings):
            if staging.is_under_way:
                _roll_forward(staging.target, staging.tag)
    finally:
        # What could not be renamed is left for `recover`, which skips what is still in use.
        locks.forget(staging.tag for staging in stagings)


def _roll_forward(target: str, tag: str) -> None:
    found = _staged(target, tag)
    _touch(target)
    for name, key in found:
        _move(os.path.join(target, name), os.path.join(target, key))
    for folder in {str(parent) for _, key in found for parent in Path(key).parents}:
        flush(os.path.join(target, folder))
    _touch(target)
    _clean(target)


def _touch(target: str) -> None:
    """Let those who read meanwhile notice: metadata files get another time."""
    now = time.time_ns()
    for name in METADATA_FILES:
        with suppress(OSError):
            os.utime(os.path.join(target, name), ns=(now, now))


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


def _clean(target: str) -> None:
    """Remove all that updates have put into a directory, the lock at the end."""
    for name in os.listdir(target):
        if name.startswith(PREFIX) and name != locks.LOCK:
            _remove(os.path.join(target, name))
    os.unlink(os.path.join(target, locks.LOCK))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _discard(target: str, tag: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child must not remove what its parent is using
    lock = locks.lock_of(target)
    if lock is not None and lock.tag == tag and not locks.is_committed(target, lock):
        with suppress(OSError):
            _clean(target)
    locks.forget([tag])


# --- recovery -------------------------------------------------------------------------------


def recover(target: str | os.PathLike) -> None:
    """Finish or remove what a dead process has left in a target directory.

    Raises
    ------
    StoreBusyError
        If a living process is just replacing files there.
    """
    target = os.fspath(target)
    lock = locks.lock_of(target)
    if lock is None:
        return
    if not lock.is_live:
        _settle(target)
    elif not lock.is_own and locks.is_committed(target, lock):
        raise StoreBusyError(
            f"Process {lock.owner} is replacing the array at {target!r} just now; "
            f"open it again when that is done. {_by_hand(target)}"
        )


def _settle(target: str) -> None:
    with locks.alone(target):
        lock = locks.lock_of(target)
        if lock is None or lock.is_live:
            return
        if locks.is_committed(target, lock):
            _complete(target, lock)
        else:
            with suppress(OSError):
                _clean(target)


def _complete(target: str, lock: Lock) -> None:
    try:
        for other in locks.record_of(target, lock.tag) or ():
            _complete_other(target, other, lock.tag)
        _roll_forward(target, lock.tag)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise ReadOnlyStoreError(
            f"An update of the array at {target!r} was interrupted and has to be finished, which "
            "this user may not do; open it once as a user who may write there."
        ) from error


def _complete_other(target: str, other: str, first: str) -> None:
    if not os.path.isdir(other) or os.path.samefile(target, other):
        return
    with locks.alone(other):
        lock = locks.lock_of(other)
        if lock is not None and lock.first == first:
            _roll_forward(other, lock.tag)


def directory_bytes(directory: str | os.PathLike, exclude: Sequence[str] = ()) -> int:
    """Bytes of all files below a directory, without staged files and the names excluded."""
    total = 0
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if not name.startswith(PREFIX)]
        counted = (name for name in names if name not in exclude and not name.startswith(PREFIX))
        total += sum(_file_bytes(os.path.join(folder, name)) for name in counted)
    return total


def _file_bytes(file: str) -> int:
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0
