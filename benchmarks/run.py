"""Run the benchmarks: ``python benchmarks/run.py --scale small``. See README.md here."""

import argparse
import json
import os
import platform
import tempfile
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import report
from data import SCALES, growing, needed_bytes
from jobs import JOBS
from measure import Figures, measure

CONTENDERS = ("jask_zarr", "loop", "dask", "cubed", "numpy", "jax", "jask")
GROWING = ("jask_zarr", "loop", "dask", "numpy")
FACTORS = (1, 2, 4, 8, 16)
PACKAGES = ("jax", "zarr", "numpy", "dask", "cubed")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--jobs", default=",".join(JOBS), help="names, with commas between")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="names, with commas between")
    parser.add_argument("--scale", default="small", choices=SCALES, help="how large the arrays are")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each contender")
    parser.add_argument("--limit", type=float, default=60, help="seconds a job, after which three repeats are enough")
    parser.add_argument("--growth", default="difference,elementwise", help="jobs timed as the arrays grow")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "jask_zarr_benchmarks"))
    parser.add_argument("--json", type=Path, help="keep all figures in this file; jobs measured before stay in it")
    parser.add_argument("--docs", type=Path, help="a page whose part between the result marks is replaced")
    return parser.parse_args()


def available(names: str) -> list[str]:
    """The contenders that can be imported here."""
    return [name for name in names.split(",") if name != "jask" or "JASK_CHECKOUT" in os.environ]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": len(psutil.Process().cpu_affinity()),
        "memory": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def main() -> None:
    """Measure, and report after each job, so that a run which is cut short leaves what it has."""
    options = arguments()
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    found |= {"machine": machine(), "scale": options.scale, "budget": SCALES[options.scale].budget}
    for name in filter(None, options.jobs.split(",")):
        print(f"{name}: {JOBS[name].title}", flush=True)
        figures = _one(options, name, SCALES[options.scale], available(options.contenders))
        found.setdefault("jobs", {})[name] = figures
        _keep(options, found)
    for name in filter(None, options.growth.split(",")):
        for factor in FACTORS:
            scale = growing(SCALES[options.scale], factor)
            print(f"{name}, {factor} times", flush=True)
            figures = _one(options, name, scale, [c for c in available(options.contenders) if c in GROWING])
            found.setdefault("growth", {}).setdefault(name, {})[str(factor)] = figures
            found["growth_budget"] = scale.budget
            _keep(options, found)
    print(report.tables(found))


def _one(options: argparse.Namespace, name: str, scale: Any, contenders: list[str]) -> dict[str, Any]:
    say = lambda text: print(text, flush=True)
    figures = measure(JOBS[name], contenders, scale, options.folder, options.repeats, options.limit, say)
    needed = needed_bytes(options.folder / scale.name, JOBS[name].inputs)
    rows = {name: _row(f) for name, f in figures.items()}
    return {"contenders": rows, "needed": needed, "load": os.getloadavg()[0]}


def _row(figures: Figures) -> dict[str, Any]:
    return asdict(figures) | {"seconds": figures.seconds}


def _keep(options: argparse.Namespace, found: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.docs:
        report.update(options.docs, found)


if __name__ == "__main__":
    main()
