"""How much memory may be used, where temporary files go, how many threads work.

The budget is read once, when it is first asked for: a quarter of the memory that is available
then, the limits of the process's control groups included. Temporary files never go to a
directory that is itself backed by memory, unless that is allowed: they would use up what they
are there to save.
"""

import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import InvalidSizeError, ScratchDirectoryError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{p}{b}": 1000 ** (i + 1) for i, p in enumerate("kmgtp") for b in ("b", "")}
_UNITS |= {f"{p}i{b}": 1024 ** (i + 1) for i, p in enumerate("kmgtp") for b in ("b", "")}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)
_RAM_BACKED = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


@dataclass(frozen=True)
class _Settings:
    budget: int | None = None
    scratch_dir: Path | None = None
    allow_tmpfs: bool = False
    scratch_limit: int | None = None
    durability: str = "process"
    executor: Any = None
    workers: int | None = None


_settings = _Settings()


def set_memory_budget(
    budget: int | str,
    scratch_dir: str | os.PathLike | None = None,
    allow_tmpfs: bool = False,
    scratch_limit: int | str | None = None,
) -> None:
    """Say how much memory the library may use, and where it may put temporary files.

    Parameters
    ----------
    budget : int or str
        Bytes, or a size such as ``"512MB"``, ``"4GB"``, ``"1.5GiB"``.
    scratch_dir : path, optional
        Directory for temporary arrays; made if missing. By default the system's directory for
        temporary files, or ``/var/tmp`` if that one is backed by memory. Without it, a directory
        that was set before stays.
    allow_tmpfs : bool
        Allow a scratch directory that is backed by memory (tmpfs, ramfs). What is put there
        counts against the machine's memory, not against the budget.
    scratch_limit : int or str, optional
        Bytes that this process's temporary arrays may take together, in the form of the budget.
        Without it, a limit that was set before stays; at first there is none but the disk's. What
        does not fit is refused, with `ScratchFullError`, before any of it is written.

    Raises
    ------
    InvalidSizeError
        If the budget or the limit is not a positive size.
    ScratchDirectoryError
        If the scratch directory cannot be written or is backed by memory.

    Examples
    --------
    >>> set_memory_budget("512MB")
    >>> memory_budget()
    512000000
    """
    global _settings
    size = _positive(budget, "memory budget")
    limit = _settings.scratch_limit if scratch_limit is None else _positive(scratch_limit, "scratch limit")
    allow = allow_tmpfs or (scratch_dir is None and _settings.allow_tmpfs)
    directory = _settings.scratch_dir
    if scratch_dir is not None:
        directory = _checked(Path(os.path.abspath(scratch_dir)), allow)
    _settings = replace(_settings, budget=size, scratch_dir=directory, allow_tmpfs=allow, scratch_limit=limit)


def _positive(size: int | str, what: str) -> int:
    found = parse_size(size)
    if found <= 0:
        raise InvalidSizeError(f"The {what} must be positive, not {size!r}.")
    return found


def memory_budget() -> int:
    """The memory budget in bytes."""
    global _settings
    if _settings.budget is None:
        _settings = replace(_settings, budget=max(available_memory() // 4, 2**20))
    return _settings.budget  # type: ignore[return-value]


def scratch_limit() -> int | None:
    """Bytes that temporary arrays may take, None without a limit."""
    return _settings.scratch_limit


def set_durability(against: str) -> None:
    """Say what an update of a local store survives.

    Parameters
    ----------
    against : {"process", "power"}
        ``"process"``, the default: the end of the process at any moment. ``"power"``: also a loss
        of power or a crash of the system; every file is flushed to the disk before the update
        counts, which takes as long as the disk needs for it.

    Examples
    --------
    >>> set_durability("power")
    >>> durability()
    'power'
    >>> set_durability("process")
    """
    global _settings
    if against not in ("process", "power"):
        raise ValueError(f"An update survives the end of the 'process' or a loss of 'power', not {against!r}.")
    _settings = replace(_settings, durability=against)


def durability() -> str:
    """What an update survives: ``"process"`` or ``"power"``."""
    return _settings.durability


class _Restore:
    """Puts the executor back that was set before, at the end of a ``with`` block."""

    def __init__(self, before: _Settings) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        global _settings
        _settings = replace(_settings, executor=self._before.executor, workers=self._before.workers)


def set_executor(executor: Any = None, workers: int | None = None) -> _Restore:
    """Say where tiles are computed; used in a ``with`` statement, only inside it, as `jax.set_mesh`.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Anything with ``submit(fn, *args)`` that gives a future: a `concurrent.futures.ProcessPoolExecutor`, the
        ``client.get_executor()`` of dask.distributed. Its workers are sent what computes a tile, open the stores
        themselves, and read and write chunks there. A `concurrent.futures.ThreadPoolExecutor` is a pool of threads in
        this process. By default, and with None, the library's own threads.
    workers : int, optional
        How many tiles the executor computes at a time, if it does not say so itself. Never more are under way than
        the memory budget has room for.

    Returns
    -------
    context manager
        Leaving it puts back what was set before.

    Raises
    ------
    TypeError
        If it is not an executor.
    ValueError
        If its processes are made by ``fork``: JAX has threads, which do not survive that.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import jask_zarr as jz
    >>> with ThreadPoolExecutor(4) as pool, jz.set_executor(pool):
    ...     float(jz.sum(jz.arange(1000)))
    499500.0
    """
    global _settings
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"An executor has a method submit, as those of concurrent.futures have; {type(executor).__name__} has "
            "none. From a dask.distributed client take client.get_executor()."
        )
    context: Any = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            "The processes of this executor are made by 'fork', in which JAX may hang: make it with "
            "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))."
        )
    before, _settings = _settings, replace(_settings, executor=executor, workers=workers)
    return _Restore(before)


def executor() -> Any:
    """The executor that was set, or None."""
    return _settings.executor


def workers() -> int | None:
    """How many workers the executor was said to have."""
    return _settings.workers


def parse_size(size: int | str) -> int:
    """A size in bytes, from a number or from text with a decimal or binary unit.

    >>> parse_size("4GB"), parse_size("1.5 GiB"), parse_size(100)
    (4000000000, 1610612736, 100)
    """
    if isinstance(size, str):
        return _parse_text(size)
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise InvalidSizeError(f"A size is a whole number of bytes or text such as '512MB', not {size!r}.")
    return int(size)


def _parse_text(text: str) -> int:
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidSizeError(
            f"Cannot read {text!r} as a size in bytes: write a number and a unit, such as '512MB', '4GB' or '1.5GiB'."
        )
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def threads() -> int:
    """How many threads work at once: the processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def scratch_directory() -> Path:
    """The directory for temporary arrays: the one that was set, or the first fit one of the system.

    Raises
    ------
    ScratchDirectoryError
        If there is none that can be written and is not backed by memory.
    """
    settings = _settings
    if settings.scratch_dir is not None:
        return settings.scratch_dir
    reasons = []
    for candidate in (tempfile.gettempdir(), "/var/tmp"):
        try:
            return _checked(Path(candidate).absolute(), settings.allow_tmpfs)
        except ScratchDirectoryError as error:
            reasons.append(str(error))
    raise ScratchDirectoryError(" ".join(reasons))


def _checked(directory: Path, allow_tmpfs: bool) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ScratchDirectoryError(
            f"The scratch directory {str(directory)!r} cannot be written ({error.strerror}); "
            "name another with set_memory_budget(..., scratch_dir=...)."
        ) from error
    kind = file_system_type(directory)
    if kind in _RAM_BACKED and not allow_tmpfs:
        raise ScratchDirectoryError(
            f"The scratch directory {str(directory)!r} is backed by memory ({kind}): temporary "
            "arrays there would use the memory they are meant to save. Name a directory on a disk "
            "with set_memory_budget(..., scratch_dir=...), or pass allow_tmpfs=True."
        )
    return directory


def file_system_type(path: Path, mountinfo: str | None = None) -> str:
    """The type of the file system that holds a path (``"ext4"``, ``"tmpfs"``), or ``""``.

    Parameters
    ----------
    path : Path
        Any path; need not exist.
    mountinfo : str, optional
        Text in the form of ``/proc/self/mountinfo``, which is read by default.
    """
    if mountinfo is None:
        mountinfo = _read_text("/proc/self/mountinfo")
    real, best, kind = os.path.realpath(path), "", ""
    for line in mountinfo.splitlines():
        mount, found = _mount_entry(line)
        # A later mount on the same point hides an earlier one.
        if len(mount) >= len(best) and _is_within(real, mount):
            best, kind = mount, found
    return kind


def _mount_entry(line: str) -> tuple[str, str]:
    before, _, after = line.partition(" - ")
    mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), before.split(" ")[4])
    return mount, after.split(" ")[0]


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def available_memory() -> int:
    """Memory available to this process in bytes: the machine's, or less if a cgroup says so."""
    return min([_machine_memory(), *_cgroup_limits()])


def _machine_memory() -> int:
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _read_text("/proc/meminfo"), re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(root: str = "/sys/fs/cgroup", membership: str | None = None) -> list[int]:
    """Memory limits of the process's control groups and all their parents, versions 1 and 2."""
    if membership is None:
        membership = _read_text("/proc/self/cgroup")
    limits = []
    for line in membership.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            limits += _limits_upwards(Path(root), group, "memory.max")
            limits += _limits_upwards(Path(root, "unified"), group, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(Path(root, "memory"), group, "memory.limit_in_bytes")
    return limits


def _limits_upwards(root: Path, group: str, name: str) -> list[int]:
    # Inside a container the group's path may be the host's; the root is then the group itself.
    directory = root / group.lstrip("/")
    groups = [directory, *(p for p in directory.parents if _is_within(str(p), str(root)))]
    texts = [_read_text(g / name).strip() for g in groups]
    return [int(text) for text in texts if text.isdigit()]


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
