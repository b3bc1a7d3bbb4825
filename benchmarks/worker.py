"""One contender at one job in a process of its own; runs once for each line it is given, and answers with figures."""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import psutil


def serve(contender: str, job: str, data: Path, budget: int) -> None:
    """Answer requests: the folder for the results, and whether to keep what is returned there."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    module = importlib.import_module(f"contenders.{contender}")
    module.set_budget(budget)
    getattr(module, "prepare", lambda data: None)(data)
    gc.freeze()  # what the libraries hold for ever is not gone through before each run
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_answer(module, job, data, Path(line.strip()))) + "\n")


def _answer(module: Any, job: str, data: Path, out: Path) -> dict[str, Any]:
    try:
        return _measured(module, job, data, out)
    except BaseException as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def _measured(module: Any, job: str, data: Path, out: Path) -> dict[str, Any]:
    gc.collect()
    start_bytes = forget_peak()
    with module.io_cost() as cost:
        start = time.perf_counter()
        returned = getattr(module, job)(data, out)
        returned = [np.asarray(value) for value in returned or ()]
        seconds = time.perf_counter() - start
    peak = peak_bytes() - start_bytes
    for number, value in enumerate(returned):
        np.save(out / f"returned{number}.npy", value)
    return {
        "seconds": seconds,
        "peak": peak,
        "read": getattr(cost, "bytes_read", None),
        "written": getattr(cost, "bytes_written", None),
    }


def forget_peak() -> int:
    """Let the peak begin anew; gives the bytes resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
    return psutil.Process().memory_info().rss


def peak_bytes() -> int:
    """The most memory that this process ever had resident (VmHWM), in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
