"""What has to survive loss of power, if that is asked for by `set_durability`."""

import os
from pathlib import Path

from .. import _config


def flush(path: str) -> None:
    """Flush a file, or the entries of a directory, to the device."""
    if _config.durability() != "power":
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def flush_tree(directory: str) -> None:
    """Flush a directory and all below it."""
    if _config.durability() != "power":
        return
    for folder, _, names in os.walk(directory):
        for path in (*(os.path.join(folder, name) for name in names), folder):
            flush(path)


def write_at_once(path: str, text: str) -> None:
    """Write a file that appears with all of its text."""
    partial = path + ".partial"
    Path(partial).write_text(text, encoding="utf-8")
    flush(partial)
    os.replace(partial, path)
    flush(os.path.dirname(path))
