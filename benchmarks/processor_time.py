"""Where the processor time of a job goes: ``python benchmarks/processor_time.py moments0,lookup --scale full``.

Each contender runs in a process of its own, in turn with the others, while `perf` (of Linux) samples all its threads.
Printed are processor milliseconds of one run: in Python, in the codec, in XLA, in the kernel (files, memory, threads).
"""

import argparse
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from data import SCALES, prepare
from jobs import JOBS, Job
from measure import FIRST_RUN, Contender, functions

PER_SECOND = 4999
PLACES = {
    "codec": ("blosc", "zstd", "lz4"),
    "Python and numpy": ("libpython", "python3", "_multiarray", "_umath"),
    "XLA": ("[JIT]", "libjax", "xla", "openblas"),
    "kernel": ("kernel",),
}


def sampled(job: Job, contenders: list[str], scale: str, folder: Path, runs: int) -> dict[str, Counter[str]]:
    """Samples of each contender by place."""
    data = prepare(folder, SCALES[scale], job.inputs)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    running = {name: Contender(name, job, data, scratch, SCALES[scale].budget) for name in contenders}
    for contender in running.values():
        contender.answer(FIRST_RUN)
    for _ in range(2):
        _all_once(running)
    recorders = {name: _recorder(c.process.pid, scratch / f"{name}.perf") for name, c in running.items()}
    time.sleep(1)  # until perf has attached itself
    for _ in range(runs):
        _all_once(running)
    for name, contender in running.items():
        contender.stop()
        recorders[name].wait()
    found = {name: _by_place(scratch / f"{name}.perf") for name in contenders}
    shutil.rmtree(scratch)
    return found


def _all_once(running: dict[str, Contender]) -> None:
    for name, contender in running.items():
        answer = contender.run("UPDATES_IN_PLACE = True" in functions(name), FIRST_RUN)
        if "error" in answer:
            raise SystemExit(f"{name}: {answer['error']}")


def _recorder(pid: int, file: Path) -> subprocess.Popen[bytes]:
    command = ["perf", "record", "-F", str(PER_SECOND), "-o", str(file), "-p", str(pid)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _by_place(file: Path) -> Counter[str]:
    command = ["perf", "report", "-i", str(file), "--sort", "dso", "--stdio", "-n"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    counts: Counter[str] = Counter()
    for line in lines:
        if found := re.match(r"\s+[\d.]+%\s+(\d+)\s+(\S.*)", line):
            counts[_place(found[2])] += int(found[1])
    return counts


def _place(library: str) -> str:
    return next((place for place, parts in PLACES.items() if any(part in library for part in parts)), "other")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", help="names, with commas between")
    parser.add_argument("--contenders", default="jask_zarr,loop")
    parser.add_argument("--scale", default="small", choices=SCALES)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "jask_zarr_benchmarks"))
    options = parser.parse_args()
    places = [*PLACES, "other"]
    print("| job | | " + " | ".join(places) + " | together |")
    print("| --- | --- |" + " --: |" * (len(places) + 1))
    for job in (JOBS[name] for name in options.jobs.split(",")):
        found = sampled(job, options.contenders.split(","), options.scale, options.folder, options.runs)
        for name, counts in found.items():
            took = [1000 * n / PER_SECOND / options.runs for n in (*(counts[p] for p in places), counts.total())]
            print(f"| {job.title} | {name} | " + " | ".join(f"{ms:.0f}" for ms in took) + " |", flush=True)


if __name__ == "__main__":
    main()
