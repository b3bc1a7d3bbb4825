"""Memory and time of this library's jobs as arrays grow and the budget stays.

``python benchmarks/growth.py`` prints a table: for each job the peak memory above the imported library at sizes that
double, and how time grows. Each figure is of a fresh process. ``--docs PAGE`` writes the table into a page.

The values repeat from chunk to chunk, so that 50 times the budget takes no room on disk: a chunk is encoded once and
linked. Reading decodes all of them.
"""

import argparse
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from stores import create, link_copy
from worker import forget_peak, peak_bytes

BEGIN, END = "<!-- growth: begin -->", "<!-- growth: end -->"
BUDGET = 64_000_000
TIMES = 50
"""Times the budget that all inputs together have at the largest size."""
FACTORS = (1, 2, 4, 8, 16)
SPARE = 64_000_000
"""What may be added to the budget, besides a tenth."""

Stored = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, chunks and dtype of an input."""


@dataclass(frozen=True)
class Growing:
    """A job, and its inputs as a function of their bytes (altogether) and of the side of a square chunk."""

    title: str
    inputs: Callable[[int, int], dict[str, Stored]]
    run: Callable[[Any, Path, Path], Any] | str
    """A job of the contender `jask_zarr`, or a function of the library and two folders."""
    updates: tuple[str, ...] = ()


# ------------------------------------------------------------------ inputs


def _square(*names: str) -> Callable[[int, int], dict[str, Stored]]:
    """Arrays of eight chunks in a row, which grow downwards."""

    def inputs(nbytes: int, side: int) -> dict[str, Stored]:
        width = 8 * side
        height = _multiple(nbytes // len(names) // (4 * width), side)
        return {name: ((height, width), (side, side), "float32") for name in names}

    return inputs


def _product(nbytes: int, side: int) -> dict[str, Stored]:
    width = 2 * side
    height = _multiple(nbytes // (4 * width), side)
    return {
        "a": ((height, width), (side, side), "float32"),
        "b": ((width, width), (side, side), "float32"),
    }


def _rows(**beside: Stored) -> Callable[[int, int], dict[str, Stored]]:
    """A table of rows, whatever has an entry for each row or for some, and whatever does not grow."""

    def inputs(nbytes: int, side: int) -> dict[str, Stored]:
        chunk = side * side // 256
        rows = _multiple(nbytes // 1024, chunk)
        fitted = {
            name: (shape or (rows,), chunks or (chunk,), dtype) for name, (shape, chunks, dtype) in beside.items()
        }
        return {"x": ((rows, 256), (chunk, 256), "float32"), **fitted}

    return inputs


def _lookups(nbytes: int, side: int) -> dict[str, Stored]:
    table = _rows()(nbytes, side)["x"]
    count = table[0][0] // 4
    return {"x": table, "lookups": ((count,), (count,), "int32")}


def _wide(nbytes: int, side: int) -> dict[str, Stored]:
    rows = _multiple(nbytes // (4 * 4 * side), side)
    return {"wide": ((rows, 4 * side), (side, side), "float32")}


def _long(nbytes: int, side: int) -> dict[str, Stored]:
    chunk = side * side // 32
    return {"long": ((32, _multiple(nbytes // 128, chunk)), (32, chunk), "float32")}


def _thin(nbytes: int, side: int) -> dict[str, Stored]:
    width = 16 * side
    return {"a": ((_multiple(nbytes // (4 * width), width), width), (side // 16, width), "float32")}


def _multiple(n: int, of: int) -> int:
    return max(1, round(n / of)) * of


_NETWORK: dict[str, Stored] = {
    "mlp2/w0": ((256, 256), (256, 256), "float32"),
    "mlp2/b0": ((256,), (256,), "float32"),
    "mlp2/w1": ((256, 10), (256, 10), "float32"),
    "mlp2/b1": ((10,), (10,), "float32"),
}
_PER_ROW = ((), ())

# ------------------------------------------------------------------ jobs


def _rechunk(
    chunks: Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]],
) -> Callable[[Any, Path, Path], None]:
    def run(jz: Any, data: Path, out: Path) -> None:
        a = jz.open(data / "a")
        jz.rechunk(a, chunks(a.shape, a.chunks), out / "result")

    return run


def _dropout(jz: Any, data: Path, out: Path) -> None:
    a = jz.open(data / "a")
    kept = jz.random.bernoulli(jz.random.key(0), 0.9, a.shape)
    jz.where(kept, a / 0.9, 0).save(out / "result", chunks=a.chunks)


GROWING = {
    "difference": Growing("sum of squared differences", _square("a", "b"), "difference"),
    "elementwise": Growing("`tanh(a) * b + a` into zarr", _square("a", "b"), "elementwise"),
    "gradient": Growing("gradient of `sum((a - b)**2)` into zarr", _square("a", "b"), "gradient"),
    "logistic": Growing("logistic regression, value and gradient", _rows(targets=(*_PER_ROW, "float32")), "logistic"),
    "mlp2": Growing("2-layer network, value and gradient", _rows(labels=(*_PER_ROW, "int32"), **_NETWORK), "mlp2"),
    "least_squares": Growing("`X.T @ (X @ w)`", _wide, "least_squares"),
    "matmul": Growing("`a @ b` into zarr, `a` grows", _product, "matmul"),
    "adam": Growing("a step of Adam, all on disk", _square("p", "m", "v", "g"), "adam", updates=("p", "m", "v")),
    "softmax": Growing("softmax over a split axis into zarr", _long, "softmax"),
    "moments0": Growing("mean and variance over axis 0", _square("a"), "moments0"),
    "moments1": Growing("mean and variance over axis 1", _square("a"), "moments1"),
    "transpose": Growing("`a.T` into zarr", _square("a"), "transpose"),
    "rechunk": Growing("square chunks into tall ones", _square("a"), _rechunk(lambda s, c: (8 * c[0], c[1] // 8))),
    "rechunk2": Growing("rows into columns, through scratch", _thin, _rechunk(lambda s, c: (c[1], c[0]))),
    "lookup": Growing("embedding look-up into zarr", _lookups, "lookup"),
    "lookup_gradient": Growing("gradient of a look-up into zarr", _lookups, "lookup_gradient"),
    "dropout": Growing("dropout into zarr", _square("a"), _dropout),
}


# ------------------------------------------------------------------ one figure, in a process of its own


def prepare(folder: Path, inputs: dict[str, Stored]) -> int:
    """Make inputs of which each chunk is a link to one of two; gives their bytes."""
    for number, (name, (shape, chunks, dtype)) in enumerate(inputs.items()):
        _fill(folder / name, shape, chunks, dtype, number)
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, _, dtype in inputs.values())


def _fill(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, seed: int) -> None:
    array = create(path, shape, chunks, dtype)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=64) * 0.1 if dtype == "float32" else rng.integers(0, 2, 64)
    box = tuple(slice(0, c) for c in chunks)
    array[box] = np.resize(values, chunks).astype(dtype)
    first = path.joinpath("c", *["0"] * len(shape))
    for index in np.ndindex(*(-(-n // c) for n, c in zip(shape, chunks, strict=True))):
        file = path.joinpath("c", *map(str, index))
        if file != first:
            file.parent.mkdir(parents=True, exist_ok=True)
            os.link(first, file)


def figure(job: str, nbytes: int, budget: int, side: int, folder: Path) -> dict[str, Any]:
    """Peak memory in bytes and seconds of a job on inputs of so many bytes, in a fresh process."""
    place = Path(tempfile.mkdtemp(prefix="growth-", dir=folder))
    try:
        needed = prepare(place / "data", GROWING[job].inputs(nbytes, side))
        command = [
            sys.executable,
            str(Path(__file__)),
            "--measure",
            job,
            "--budget",
            str(budget),
            "--folder",
            str(place),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1][:300], "bytes": needed}
        return json.loads(done.stdout.splitlines()[-1]) | {"bytes": needed}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measured(job: str, budget: int, place: Path) -> dict[str, Any]:
    import contenders.jask_zarr as ours

    import jask_zarr as jz

    (place / "scratch").mkdir()
    (place / "out").mkdir()
    jz.set_memory_budget(budget, scratch_dir=place / "scratch")
    for name in GROWING[job].updates:
        link_copy(place / "data" / name, place / "out" / name)
    run = GROWING[job].run
    gc.collect()
    before, start, worked = forget_peak(), time.perf_counter(), time.process_time()
    returned = (
        run(jz, place / "data", place / "out") if callable(run) else getattr(ours, run)(place / "data", place / "out")
    )
    for value in returned or ():
        np.asarray(value)
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    return {"seconds": seconds, "cpu": worked, "peak": peak_bytes() - before}


# ------------------------------------------------------------------ the table


def table(found: dict[str, Any]) -> str:
    """The figures as markdown."""
    factors = [str(f) for f in found["factors"]]
    largest = found["budget"] * found["times"] / 1e9
    sizes = f"{largest / found['factors'][-1]:.2g} to {largest:.2g} GB"
    head = [
        f"Measured on {found['machine']}, budget {found['budget'] / 1e6:.0f} MB, inputs of {sizes}; a fresh process "
        "for each figure, one run of each, compilation included. Peak memory is above the imported library; "
        f"{bound(found['budget']) / 1e6:.0f} MB are allowed. Processor time, of all threads, is what a further GB "
        "takes: where it is the same from 1 to 8 times as from 8 to 16 times, time is linear.",
        "",
        f"| job | {' | '.join(f'MB at {f}×' for f in factors)} | seconds at {factors[0]}× | at {factors[-1]}× "
        "| processor s a GB, to 8× | to 16× |",
        f"| --- |{' --: |' * (len(factors) + 4)}",
    ]
    return "\n".join(head + [_row(job, found["jobs"][job], factors) for job in GROWING if job in found["jobs"]])


def bound(budget: int) -> float:
    """Bytes above the imported library that are allowed."""
    return 1.1 * budget + SPARE


def _row(job: str, figures: dict[str, Any], factors: list[str]) -> str:
    peaks = [f"{figures[f]['peak'] / 1e6:.0f}" if "peak" in figures[f] else "failed" for f in factors]
    times = [f"{figures[f]['seconds']:.2f}" if "seconds" in figures[f] else "" for f in (factors[0], factors[-1])]
    slopes = [_slope(figures, *pair) for pair in ((factors[0], factors[-2]), (factors[-2], factors[-1]))]
    return f"| {GROWING[job].title} | {' | '.join(peaks + times + slopes)} |"


def _slope(figures: dict[str, Any], a: str, b: str) -> str:
    """Processor seconds that a further gigabyte takes, whatever the start costs."""
    if "cpu" not in figures[a] or "cpu" not in figures[b] or a == b:
        return ""
    more = (figures[b]["bytes"] - figures[a]["bytes"]) / 1e9
    return f"{(figures[b]['cpu'] - figures[a]['cpu']) / more:.2f}"


def machine() -> str:
    """Where this runs, in words."""
    return f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}), {psutil.virtual_memory().total / 1e9:.0f} GB"


def measure(jobs: list[str], factors: tuple[int, ...], budget: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The figures so far, after each job."""
    found = {"budget": budget, "times": TIMES, "factors": factors, "machine": machine(), "jobs": {}}
    for job in jobs:
        sizes = {str(f): f * budget * TIMES // factors[-1] for f in factors}
        found["jobs"][job] = {f: figure(job, n, budget, 512, folder) for f, n in sizes.items()}
        yield found


def update(page: Path, found: dict[str, Any]) -> None:
    """Replace the part of a page between the marks."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(GROWING), help="names, with commas between")
    parser.add_argument("--budget", type=int, default=BUDGET, help="bytes")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for inputs and results")
    parser.add_argument("--json", type=Path, help="keep the figures here; those of other jobs stay")
    parser.add_argument("--docs", type=Path, help="write the table into this page")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measured(options.measure, options.budget, options.folder)))
        return
    known = json.loads(options.json.read_text())["jobs"] if options.json and options.json.exists() else {}
    for found in measure(options.jobs.split(","), FACTORS, options.budget, options.folder):
        found = found | {"jobs": known | found["jobs"]}
        print(_row(list(found["jobs"])[-1], list(found["jobs"].values())[-1], [str(f) for f in FACTORS]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
        if options.docs:
            update(options.docs, found)


if __name__ == "__main__":
    main()
