"""Where the time of one contender at one job goes: ``python benchmarks/profile_job.py jask_zarr adam --scale full``.

All threads are sampled; a sample belongs to the innermost of the activities below that is on its stack.
"""

import argparse
import importlib
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from data import SCALES, prepare
from jobs import JOBS
from stores import link_copy

ACTIVITIES = {
    "decode": ("decompress", "_decode", "decode", "read"),
    "encode": ("encode", "write"),
    "read files": ("_pread", "_read_exactly"),
    "write files": ("_write_file", "_pwrite", "_put"),
    "replace stores": ("commit", "stage", "discard", "rmtree", "_rmtree_safe_fd"),
    "compute": ("call", "done", "block_until_ready", "_deliver", "as_numpy"),
    "combine": ("_combine", "merge", "finish", "first"),
    "open": ("open_array", "open", "create", "create_array"),
    "plan": ("make_plan", "trace_call", "record"),
}
OF = {name: activity for activity, names in ACTIVITIES.items() for name in names}
INTERVAL = 0.002


def samples(own: int) -> Iterator[str]:
    """What each thread is doing now; nothing of those that wait for work."""
    for thread, frame in sys._current_frames().items():
        if thread != own and (activity := _activity(frame)):
            yield activity


def _activity(frame: FrameType | None) -> str | None:
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    if names[0] in ("_worker", "select", "wait", "result", "get", "sleep"):
        return None
    return next((OF[name] for name in names if name in OF), "other Python")


def profile(contender: str, job: str, scale: str, folder: Path, runs: int) -> Counter[str]:
    """Samples by activity over some warm runs."""
    module = importlib.import_module(f"contenders.{contender}")
    module.set_budget(SCALES[scale].budget)
    data = prepare(folder, SCALES[scale], JOBS[job].inputs)
    counts: Counter[str] = Counter()
    _run(module, job, data)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(INTERVAL):
            counts.update(samples(threading.get_ident()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(runs):
        print(f"{_run(module, job, data):.3f} s")
    finished.set()
    watcher.join()
    return counts


def _run(module: object, job: str, data: Path) -> float:
    out = Path(tempfile.mkdtemp(prefix="profile-"))
    for name in JOBS[job].updates:
        link_copy(data / name, out / name)
    start = time.perf_counter()
    getattr(module, job)(data, out)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--scale", default="small", choices=SCALES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "jask_zarr_benchmarks"))
    options = parser.parse_args()
    counts = profile(options.contender, options.job, options.scale, options.folder, options.runs)
    for activity, count in counts.most_common():
        print(f"{count / counts.total():5.0%}  {activity}")


if __name__ == "__main__":
    main()
