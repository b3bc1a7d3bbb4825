"""Which process does a temporary directory belong to, and is it still there?

A process is known by host, process id and start time, so that a new process with an old id is
not taken for the old one.
"""

import os
import socket
from functools import lru_cache
from pathlib import Path


def own_tag() -> str:
    """The name of this process: ``host-pid-start``."""
    return _tag_of(os.getpid())


@lru_cache(maxsize=4)
def _tag_of(pid: int) -> str:
    return f"{_host()}-{pid}-{_start_time(pid)}"


def is_alive(tag: str) -> bool:
    """Whether the process runs; True if it cannot be known, being on another host."""
    host, pid, start = ["", "", *tag.rsplit("-", 2)][-3:]
    if host != _host() or not pid.isdecimal():
        return True
    return _start_time(int(pid)) == start


def _host() -> str:
    return socket.gethostname().replace("/", "_") or "host"


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot, ``"0"`` where unknown, ``""`` if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return _start_time_elsewhere(pid)
    # A zombie has ended; only its parent has not noticed.
    return "" if fields[0] in "ZX" else fields[19]


def _start_time_elsewhere(pid: int) -> str:
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "0"
