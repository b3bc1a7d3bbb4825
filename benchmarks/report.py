"""Figures to markdown tables and plots.

``python benchmarks/report.py figures.json docs/explanation/performance.md`` writes the part of a page between its
result marks anew, and the plots beside it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from jobs import JOBS, Job

matplotlib.use("Agg")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
NAMES = {
    "jask_zarr": "jask_zarr",
    "loop": "hand-written loop",
    "dask": "dask.array",
    "cubed": "cubed",
    "numpy": "all in numpy",
    "jax": "all in JAX",
    "jask": "jask",
}
COLOURS = dict(zip(NAMES, plt.get_cmap("tab10").colors, strict=False))
MARGIN = 1.1
SPARE = 64_000_000
"""What may be added to the budget, besides a tenth."""
GRADIENT_JOBS = {"gradient", "eager_gradient"}


# ------------------------------------------------------------------ tables


def tables(found: dict[str, Any]) -> str:
    """All tables, as markdown."""
    parts = [
        _setting(found),
        _unmeasured(found),
        "### Seconds, the median of the runs",
        _table(found, "seconds", _seconds, runs=True),
        "### Peak memory, MB above the imported libraries",
        _table(found, "peak", lambda v: f"{v / 1e6:.0f}"),
        "### Decoded bytes read + written, GB",
        _table(found, None, _gigabytes),
        "### Against the targets",
        _targets(found),
    ]
    return "\n\n".join(filter(None, parts + ([_growth(found)] if "growth" in found else [])))


def _setting(found: dict[str, Any]) -> str:
    m = found["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in m["packages"].items())
    return (
        f"Measured on {m['date']} on {m['cores']} cores of {m['processor']} with {m['memory'] / 1e9:.0f} GB, "
        f"Python {m['python']}, {packages}; budget {found['budget'] / 1e6:.0f} MB; scale `{found['scale']}`. "
        f"{_load(found)}"
    )


def _load(found: dict[str, Any]) -> str:
    loads = [row["load"] for row in found["jobs"].values()]
    return (
        f"The load average of the machine, which other work shared, was {min(loads):.1f} to {max(loads):.1f} "
        "(about 2 is this work alone); where runs of a job differ by more than a tenth, look at the fastest as well."
    )


def _unmeasured(found: dict[str, Any]) -> str:
    missing = [job.title for job in JOBS.values() if job.name not in found["jobs"]]
    missing += [] if "growth" in found else ["time and memory as the arrays grow"]
    return f"Not measured in this run: {'; '.join(missing)}." if missing else ""


def _seconds(value: float) -> str:
    return f"{value * 1000:.2f} ms" if value < 0.01 else f"{value:.3g}"


def _gigabytes(figures: dict[str, Any]) -> str:
    return f"{figures['read'] / 1e9:.3g} + {figures['written'] / 1e9:.3g}"


def _table(found: dict[str, Any], key: str | None, form: Callable[[Any], str], runs: bool = False) -> str:
    """A row a job, a column a contender; at the end how often each ran, if asked."""
    names = [n for n in NAMES if any(n in job["contenders"] for job in found["jobs"].values())]
    lines = [["job", *(NAMES[n] for n in names), *["runs"] * runs]]
    for job, row in _rows(found):
        cells = (row["contenders"].get(name) for name in names)
        count = max(len(figures["times"]) for figures in row["contenders"].values())
        lines.append([job.title, *(_cell(figures, key, form) for figures in cells), *[str(count)] * runs])
    return _markdown(lines)


def _rows(found: dict[str, Any]) -> Iterator[tuple[Job, dict[str, Any]]]:
    for name in JOBS:
        if name in found["jobs"]:
            yield JOBS[name], found["jobs"][name]


def _cell(figures: dict[str, Any] | None, key: str | None, form: Callable[[Any], str]) -> str:
    if figures is None:
        return ""
    if figures["error"]:
        return "failed"
    value = figures if key is None else figures[key]
    return "–" if value is None or (key is None and figures["read"] is None) else form(value)


def _markdown(lines: list[list[str]]) -> str:
    rule = ["---"] + ["--:"] * (len(lines[0]) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (lines[0], rule, *lines[1:]))


# ------------------------------------------------------------------ targets


def misses(found: dict[str, Any]) -> list[tuple[Job, str, str]]:
    """Job, target and what was measured, for each target missed."""
    return [
        (job, target, measured)
        for job, row in _rows(found)
        for target, measured, met in checks(job, row, found["budget"])
        if not met
    ]


def checks(job: Job, row: dict[str, Any], budget: int) -> Iterator[tuple[str, str, bool]]:
    """Target, what was measured, and whether that is met."""
    contenders = {name: f for name, f in row["contenders"].items() if not f["error"]}
    if "jask_zarr" not in contenders:
        yield "runs", row["contenders"].get("jask_zarr", {}).get("error") or "not run", False
        return
    ours = contenders["jask_zarr"]
    speed = {name: f["seconds"] / ours["seconds"] for name, f in contenders.items() if f["seconds"]}
    if "loop" in speed and job.steps > 1:
        extra = (ours["seconds"] - contenders["loop"]["seconds"]) * 1000
        yield "under 2 ms a step above the loop", f"{extra:.2f} ms", extra < 2
    elif "loop" in speed:
        ratio = 1 / speed["loop"]
        fastest = min(ours["times"]) / min(contenders["loop"]["times"])
        yield "at most 1.10× the loop's time", f"{ratio:.2f}× (fastest runs {fastest:.2f}×)", ratio <= MARGIN
    if "dask" in speed:
        yield f"{job.faster_than_dask}× as fast as dask", f"{speed['dask']:.2f}×", speed["dask"] >= job.faster_than_dask
    if "jask" in speed and job.name in GRADIENT_JOBS:
        yield "10× as fast as jask", f"{speed['jask']:.1f}×", speed["jask"] >= 10
    if "jax" in speed and job.steps == 1:
        yield "not slower than all in JAX", f"{speed['jax']:.2f}×", speed["jax"] >= 1
    if job.one_pass and job.steps == 1:
        yield "each input chunk read once", f"{ours['read'] / row['needed']:.2f}×", ours["read"] <= row["needed"]
    bound = MARGIN * budget + SPARE
    yield f"peak at most {bound / 1e6:.0f} MB", f"{ours['peak'] / 1e6:.0f} MB", ours["peak"] <= bound


def _targets(found: dict[str, Any]) -> str:
    lines = [["job", "target", "measured", "met"]]
    for job, row in _rows(found):
        for target, measured, met in checks(job, row, found["budget"]):
            lines.append([job.title, target, measured, "yes" if met else "**no**"])
    return _markdown(lines)


# ------------------------------------------------------------------ growth


def _growth(found: dict[str, Any]) -> str:
    parts = [f"### As the arrays grow, at a budget of {found['growth_budget'] / 1e6:.0f} MB"]
    for name, by_factor in found["growth"].items():
        contenders = list(next(iter(by_factor.values()))["contenders"])
        lines = [[JOBS[name].title, "GB read", *(f"{NAMES[c]}: s, MB" for c in contenders)]]
        for factor, row in by_factor.items():
            cells = (row["contenders"][c] for c in contenders)
            lines.append([f"{factor}×", f"{row['needed'] / 1e9:.2f}", *map(_time_and_peak, cells)])
        parts.append(_markdown(lines))
    return "\n\n".join(parts)


def _time_and_peak(figures: dict[str, Any]) -> str:
    if figures["error"]:
        return "failed"
    return f"{_seconds(figures['seconds'])}, {figures['peak'] / 1e6:.0f}"


# ------------------------------------------------------------------ plots


def plots(found: dict[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """Draw; gives what each plot shows, and its file's name."""
    _plot_times(found, folder / "performance-times.png")
    yield "Time of each contender against jask_zarr's", "performance-times.png"
    if "growth" in found:
        _plot_growth(found, folder / "performance-growth.png")
        yield "Time and peak memory as the arrays grow", "performance-growth.png"


def _plot_times(found: dict[str, Any], path: Path) -> None:
    """How many times jask_zarr's time the others take: one dot each, one row a job."""
    rows = [(job, row["contenders"]) for job, row in _rows(found) if _time(row["contenders"], "jask_zarr")]
    figure, axes = plt.subplots(figsize=(9, 0.36 * len(rows) + 1.4), layout="constrained")
    for name in list(NAMES)[1:]:
        points = [
            (_time(contenders, name) / _time(contenders, "jask_zarr"), n)
            for n, (_, contenders) in enumerate(rows)
            if _time(contenders, name)
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), label=NAMES[name], color=COLOURS[name], s=36, zorder=3)
    axes.axvline(1, color=COLOURS["jask_zarr"], label=NAMES["jask_zarr"])
    axes.set_yticks(range(len(rows)), [job.title.replace("`", "") for job, _ in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("time, as a multiple of jask_zarr's (right of the line: slower)")
    axes.grid(axis="both", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _time(contenders: dict[str, Any], name: str) -> float | None:
    figures = contenders.get(name)
    return figures["seconds"] if figures and not figures["error"] else None


def _plot_growth(found: dict[str, Any], path: Path) -> None:
    jobs = list(found["growth"])
    figure, grid = plt.subplots(2, len(jobs), figsize=(4.5 * len(jobs), 6.5), layout="constrained", squeeze=False)
    for column, name in enumerate(jobs):
        for axes, key, unit in ((grid[0, column], "seconds", 1), (grid[1, column], "peak", 1e6)):
            _plot_series(axes, found["growth"][name], key, unit)
        grid[0, column].set_title(JOBS[name].title.replace("`", ""), fontsize="medium")
        grid[1, column].axhline(found["growth_budget"] / 1e6, color="grey", linestyle=":", label="budget")
        grid[1, column].set_xlabel("decoded input, GB")
    grid[0, 0].set_ylabel("seconds")
    grid[1, 0].set_ylabel("peak memory, MB")
    grid[1, 0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _plot_series(axes: Any, by_factor: dict[str, Any], key: str, unit: float) -> None:
    for name in NAMES:
        rows = [row for row in by_factor.values() if _time(row["contenders"], name)]
        sizes = [row["needed"] / 1e9 for row in rows]
        values = [row["contenders"][name][key] / unit for row in rows]
        axes.plot(sizes, values, "o-", label=NAMES[name], color=COLOURS[name])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)


# ------------------------------------------------------------------ the page


def update(page: Path, found: dict[str, Any]) -> None:
    """Replace the part of a page between its marks, and the plots beside it."""
    before, rest = page.read_text().split(BEGIN)
    pictures = "\n\n".join(f"![{shows}]({file})" for shows, file in plots(found, page.parent))
    page.write_text(f"{before}{BEGIN}\n\n{pictures}\n\n{tables(found)}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    update(Path(sys.argv[2]), json.loads(Path(sys.argv[1]).read_text()))
