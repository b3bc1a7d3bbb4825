"""How fast local chunks are read and written, engine by engine; nothing is computed.

``python benchmarks/engines.py`` prints the tables, ``--docs docs/explanation/engines.md`` writes them into a page. An
engine that is not installed is left out. In every round each engine has one turn, in changing order. Files are in the
page cache, and what was read or written is compared with the values.
"""

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
import zarr.core.codec_pipeline
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore

import jask_zarr as jz

CODECS = {"raw": None, "blosc-lz4": BloscCodec(cname="lz4"), "zstd": ZstdCodec(level=0), "gzip": GzipCodec(level=1)}
CHUNKS, SHARDS = (512, 512), (2048, 1024)
LAYOUTS = {"plain": None, "sharded": SHARDS}
WAYS = {
    "one call": "the whole array in one call",
    "in turn": "one chunk (written: one file) after another",
    "in threads": "the same in as many threads as there are processors, as this library does it",
}
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
Index = tuple[int, ...]
Box = tuple[Index, Index]
"""Start and stop."""


class Taken(NamedTuple):
    """Seconds of an engine: the median, the least, and the median of what its threads had of the processors."""

    median: float
    best: float
    processor: float


Row = dict[str, Taken]


# ------------------------------------------------------------------ engines


@dataclass(frozen=True)
class Opened:
    """An array as an engine sees it."""

    read: Callable[[Box, np.ndarray], Any]
    write: Callable[[Box, np.ndarray], Any]


def by_zarr(pipeline: str) -> Callable[[Path], Opened]:
    """zarr-python with one of its codec pipelines."""

    def opened(path: Path) -> Opened:
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array = zarr.open_array(LocalStore(path), mode="r+")
        buffer = default_buffer_prototype().nd_buffer
        return Opened(
            lambda box, out: array.get_basic_selection(slices(box), out=buffer.from_ndarray_like(out)),
            lambda box, values: array.set_basic_selection(slices(box), values),
        )

    return opened


def by_tensorstore(path: Path) -> Opened:
    """TensorStore, without a cache."""
    import tensorstore as ts

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    store = ts.open(spec, context=ts.Context({"cache_pool": {"total_bytes_limit": 0}})).result()
    return Opened(
        lambda box, out: ts.array(out).write(store[slices(box)]).result(),
        lambda box, values: store[slices(box)].write(values).result(),
    )


def by_blocked_array(path: Path) -> Opened:
    """This library, which calls the codecs itself."""
    array = jz.BlockedArray.open(path)
    assert array.engine == "file"
    return Opened(
        lambda box, out: array.read_box(*box, out=out),
        lambda box, values: array.write_box(box[0], values),
    )


def engines() -> dict[str, Callable[[Path], Opened]]:
    """Those that are installed."""
    found = {"zarr": by_zarr("zarr.core.codec_pipeline.BatchedCodecPipeline")}
    if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        found["zarr, fused"] = by_zarr("zarr.core.codec_pipeline.FusedCodecPipeline")
    if find_spec("zarrs"):
        import zarrs  # noqa: F401  registers its pipeline

        found["zarrs"] = by_zarr("zarrs.ZarrsCodecPipeline")
    if find_spec("tensorstore"):
        found["TensorStore"] = by_tensorstore
    return found | {"jask_zarr": by_blocked_array}


# ------------------------------------------------------------------ measuring


def values_of(mebibytes: int) -> np.ndarray:
    """Smooth numbers with noise in them, as measurements have."""
    rows = mebibytes * 2**20 // 4 // 2048 // SHARDS[0] * SHARDS[0]
    noise = np.random.default_rng(0).normal(0, 0.01, (rows, 2048))
    return np.round(np.sin(np.arange(rows)[:, None] / 300) + noise, 3).astype("float32")


def boxes(shape: Sequence[int], unit: Sequence[int]) -> Iterator[Box]:
    starts = itertools.product(*(range(0, n, k) for n, k in zip(shape, unit, strict=True)))
    return ((start, tuple(a + k for a, k in zip(start, unit, strict=True))) for start in starts)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(map(slice, *box))


def run(one: Callable[[Box], Any], shape: Sequence[int], unit: Sequence[int], way: str) -> tuple[float, float]:
    """Do something to a whole array, in one of the ways: seconds that passed, and seconds of the processors."""
    wanted = list(boxes(shape, shape if way == "one call" else unit))
    with ThreadPoolExecutor(THREADS if way == "in threads" else 1) as pool:
        list(pool.map(abs, range(THREADS)))  # the threads have started
        begin, processor = time.perf_counter(), time.process_time()
        if way == "in threads":
            list(pool.map(one, wanted))
        else:
            for box in wanted:
                one(box)
        return time.perf_counter() - begin, time.process_time() - processor


def read(engine: Opened, values: np.ndarray, unit: Sequence[int], way: str) -> tuple[float, float]:
    out = {box: np.zeros(unit, values.dtype) for box in boxes(values.shape, unit)}
    whole = np.zeros_like(values)
    taken = run(lambda box: engine.read(box, out.get(box, whole)), values.shape, unit, way)
    for box, part in out.items():
        np.testing.assert_array_equal(whole[slices(box)] if way == "one call" else part, values[slices(box)])
    return taken


def write(engine: Opened, values: np.ndarray, unit: Sequence[int], way: str) -> tuple[float, float]:
    parts = {box: np.ascontiguousarray(values[slices(box)]) for box in boxes(values.shape, unit)}
    return run(lambda box: engine.write(box, parts.get(box, values)), values.shape, unit, way)


def measure(folder: Path, values: np.ndarray, codec: str, layout: str, rounds: int) -> Iterator[tuple[str, str, Row]]:
    """For reads and writes, in each of the ways: seconds of each engine."""
    shards, found = LAYOUTS[layout], engines()
    paths = {name: folder / f"{n}.zarr" for n, name in enumerate(found)}
    for path in paths.values():
        shutil.rmtree(path, ignore_errors=True)
        options = {"shape": values.shape, "chunks": CHUNKS, "shards": shards, "dtype": values.dtype}
        zarr.create_array(LocalStore(path), compressors=CODECS[codec], **options)[...] = values
    opened = {name: open_(paths[name]) for name, open_ in found.items()}
    for way in WAYS:
        yield "read", way, in_turns(lambda e, way=way: read(e, values, CHUNKS, way), opened, rounds)
        yield "write", way, in_turns(lambda e, way=way: write(e, values, shards or CHUNKS, way), opened, rounds)
    for path in paths.values():
        np.testing.assert_array_equal(zarr.open_array(LocalStore(path), mode="r")[...], values)


def in_turns(one: Callable[[Opened], tuple[float, float]], opened: dict[str, Opened], rounds: int) -> Row:
    names = list(opened)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken[name].append(one(opened[name]))
    return {name: _taken(runs[1:]) for name, runs in taken.items()}  # the first round warms up


def _taken(runs: Sequence[tuple[float, float]]) -> Taken:
    passed, processor = zip(*runs, strict=True)
    return Taken(statistics.median(passed), min(passed), statistics.median(processor))


# ------------------------------------------------------------------ tables


def tables(found: dict[tuple[str, ...], Row], nbytes: int, rounds: int) -> str:
    """Markdown: reads, writes, and what they take of the processors."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("zarr", "zarrs", "tensorstore") if find_spec(name))
    head = (
        f"{nbytes / 2**20:.0f} MiB of float32 in chunks of {CHUNKS[0]} × {CHUNKS[1]} (1 MiB), sharded: in shards of "
        f"{SHARDS[0]} × {SHARDS[1]}; {packages}; {THREADS} processors; {rounds} rounds. Load average of the machine at "
        f"the end: {os.getloadavg()[0]:.0f}, where {THREADS} is this work alone."
    )
    ways = "\n".join(f"- *{way}*: {meaning}" for way, meaning in WAYS.items())
    parts = [head, ways]
    for operation in ("read", "write"):
        rows = {key[1:]: row for key, row in found.items() if key[0] == operation}
        parts += [
            f"### {operation.title()}: decoded MB/s, the median and, in brackets, the best",
            _table(("layout", "codec", "way"), rows, _speeds(nbytes)),
        ]
    rows = {key[:3]: row for key, row in found.items() if key[3] == "in turn"}
    return (
        "\n\n".join(
            [
                *parts,
                "### Milliseconds of the processors for a MiB, in turn",
                _table(("", "layout", "codec"), rows, _processor(nbytes)),
            ]
        )
        + "\n"
    )


def _table(keys: Sequence[str], rows: dict[tuple[str, ...], Row], cell: Callable[[Taken], tuple[float, str]]) -> str:
    names = list(next(iter(rows.values())))
    lines = [f"| {' | '.join((*keys, *names))} |", "|" + "---|" * len(keys) + " --: |" * len(names)]
    for key, row in rows.items():
        cells = [cell(taken) for taken in row.values()]
        first = min(cost for cost, _ in cells)
        lines.append(f"| {' | '.join((*key, *(f'**{text}**' if cost == first else text for cost, text in cells)))} |")
    return "\n".join(lines)


def _speeds(nbytes: int) -> Callable[[Taken], tuple[float, str]]:
    return lambda taken: (taken.median, f"{nbytes / taken.median / 1e6:.0f} ({nbytes / taken.best / 1e6:.0f})")


def _processor(nbytes: int) -> Callable[[Taken], tuple[float, str]]:
    return lambda taken: (taken.processor, f"{taken.processor * 1e3 / (nbytes / 2**20):.2f}")


def into_page(page: Path, text: str) -> None:
    """Replace what stands between the result marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=32, help="size of the array, decoded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the arrays are, on the file system to be measured")
    parser.add_argument("--docs", type=Path, help="a page with result marks")
    options = parser.parse_args()
    values, found = values_of(options.mebibytes), {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for layout, codec in itertools.product(LAYOUTS, CODECS):
            for operation, way, row in measure(Path(folder), values, codec, layout, options.rounds):
                found[operation, layout, codec, way] = row
                print(
                    operation,
                    layout,
                    codec,
                    way,
                    {name: f"{taken.median:.4f} s" for name, taken in row.items()},
                    flush=True,
                )
    text = tables(found, values.nbytes, options.rounds)
    print(text)
    if options.docs:
        into_page(options.docs, text)


if __name__ == "__main__":
    main()
