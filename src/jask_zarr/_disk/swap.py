"""One directory in another's place, so that a crash leaves the old one or the new one.

The new directory is built beside the old one, under a name that says who builds it. Linux
exchanges the two in one step. Elsewhere the old one is first renamed; should the process die
between the two renames, `recover` gives it its name back.
"""

import ctypes
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import owners
from .durable import flush, flush_tree
from .locks import PREFIX

_NEW, _OLD = ".new", ".old"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
_exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes the place of ``path`` when the ``with`` block ends well."""
    path = Path(os.path.realpath(path))
    recover(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=_prefix(path) + owners.own_tag() + "-", suffix=_NEW, dir=path.parent))
    new.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o777 & ~_umask())
    try:
        yield new
        flush_tree(str(new))
        _put(new, path)
        flush(str(path.parent))
    finally:
        shutil.rmtree(new, ignore_errors=True)


def recover(path: Path) -> None:
    """Bring back or remove what dead processes have left of replacing ``path``."""
    for left in _left_at(path):
        if owners.is_alive(left.name.removeprefix(_prefix(path)).rpartition("-")[0]):
            continue
        if left.suffix == _OLD and not path.exists():
            os.rename(left, path)
        else:
            shutil.rmtree(left, ignore_errors=True)


def recover_missing(path: Path) -> None:
    """The same if nothing has the name, which costs nothing if something has."""
    if not path.exists():
        recover(path)


def _left_at(path: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [p for p in path.parent.iterdir() if p.name.startswith(_prefix(path)) and p.suffix in (_NEW, _OLD)]
    return []


def _prefix(path: Path) -> str:
    name = path.name if len(os.fsencode(path.name)) <= 100 else hashlib.sha256(os.fsencode(path.name)).hexdigest()
    return f".{name}.jask_zarr-"


def _put(new: Path, path: Path) -> None:
    if not path.exists():
        os.rename(new, path)
    elif _exchange is None or _exchange(_HERE, os.fsencode(new), _HERE, os.fsencode(path), _EXCHANGE):
        old = new.with_suffix(_OLD)
        os.rename(path, old)
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def link_files(source: str, target: Path) -> bool:
    """Link all files below one directory into another, new one; False, and nothing, where links cannot be made.

    Files that describe the array are copied. Safe where files are replaced and never changed.
    """
    try:
        for folder, subfolders, names in os.walk(source):
            subfolders[:] = [s for s in subfolders if not s.startswith(PREFIX)]
            place = target / os.path.relpath(folder, source)
            place.mkdir(parents=True, exist_ok=True)
            for name in names:
                if not name.endswith(".partial") and not name.startswith(PREFIX):
                    _link(os.path.join(folder, name), place / name)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def _link(source: str, target: Path) -> None:
    if target.name == "zarr.json":
        shutil.copyfile(source, target)
    else:
        os.link(os.path.realpath(source), target)
