"""Every benchmark compares like with like: at a tiny size, all contenders of a job give the same arrays."""

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import jask_zarr as jz

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import check  # noqa: E402
import engines  # noqa: E402
from data import TINY, needed_bytes, prepare  # noqa: E402
from jobs import JOBS  # noqa: E402
from measure import can  # noqa: E402
from stores import link_copy  # noqa: E402

CONTENDERS = [
    name for name in ("jask_zarr", "loop", "numpy", "jax", "dask", "cubed") if name == "loop" or find_spec(name)
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    names = tuple({name for job in JOBS.values() for name in job.inputs})
    return prepare(tmp_path_factory.mktemp("data"), TINY, names)


@pytest.fixture
def budget():
    before = jz.memory_budget()
    yield TINY.budget
    jz.set_memory_budget(before)


def run(contender, job, data, out, budget):
    """The decoded bytes that one contender reads."""
    module = importlib.import_module(f"contenders.{contender}")
    module.set_budget(budget)
    out.mkdir()
    for name in job.updates if module.UPDATES_IN_PLACE else ():
        link_copy(data / name, out / name)
    with module.io_cost() as cost:
        returned = getattr(module, job.name)(data, out)
    for number, value in enumerate(returned or ()):
        np.save(out / f"returned{number}.npy", np.asarray(value))
    return cost.bytes_read


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_all_contenders_agree(job, data, budget, tmp_path):
    able = [name for name in CONTENDERS if can(name, job)]
    assert able[:2] == ["jask_zarr", "loop"]
    read = {name: run(name, job, data, tmp_path / name, budget) for name in able}
    for name in able[1:]:
        assert check.difference(tmp_path / name, tmp_path / "jask_zarr") <= job.tolerance, name
    if job.one_pass and job.steps == 1:
        assert read["jask_zarr"] <= needed_bytes(data, job.inputs)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="the report draws with matplotlib, of the extra `bench`")
def test_the_command_measures_and_reports(tmp_path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- results: begin -->old<!-- results: end -->\nafter\n")
    options = ["--scale", "tiny", "--repeats", "1", "--jobs", "difference", "--contenders", "jask_zarr,loop"]
    places = ["--growth", "", "--folder", tmp_path, "--json", figures, "--docs", page]
    subprocess.run([sys.executable, BENCHMARKS / "run.py", *options, *places], check=True, timeout=120)
    row = json.loads(figures.read_text())["jobs"]["difference"]
    assert row["contenders"]["jask_zarr"]["read"] == row["needed"] == 2 * 128 * 128 * 4
    text = page.read_text()
    assert (text[:7], text[-7:]) == ("before\n", "\nafter\n")
    assert "old" not in text
    assert "| sum of squared differences |" in text
    assert (tmp_path / "performance-times.png").stat().st_size > 1000


@pytest.mark.parametrize("layout", engines.LAYOUTS)
def test_all_engines_read_and_write_the_same(layout, tmp_path):
    values = engines.values_of(16)
    rows = list(engines.measure(tmp_path, values, "blosc-lz4", layout, rounds=1))
    assert [(operation, way) for operation, way, _ in rows] == [(o, w) for w in engines.WAYS for o in ("read", "write")]
    assert all(set(row) == set(engines.engines()) >= {"zarr", "TensorStore", "jask_zarr"} for _, _, row in rows)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: begin -->old<!-- results: end -->\nafter\n")
    found = {(operation, layout, "blosc-lz4", way): row for operation, way, row in rows}
    engines.into_page(page, engines.tables(found, values.nbytes, 1))
    text = page.read_text()
    assert (text[:7], text[-7:], "old" in text) == ("before\n", "\nafter\n", False)
    assert text.count(f"| {layout} | blosc-lz4 |") == 2 * len(engines.WAYS) + 2


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [([1.0, 2.0, 4.0], 0.0), ([1.0, 2.0, 5.0], 0.2), ([1.0, 2.0, np.nan], np.nan)],
)
def test_a_wrong_result_is_seen(tmp_path, theirs, expected):
    for name, values in (("one", [1.0, 2.0, 4.0]), ("two", theirs)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "returned0.npy", np.array(values))
    found = check.difference(tmp_path / "one", tmp_path / "two")
    assert np.array_equal(found, expected, equal_nan=True)


def test_a_missing_result_is_seen(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "one" / "returned0.npy", np.ones(3))
    with pytest.raises(check.Different, match="returned0"):
        check.difference(tmp_path / "one", tmp_path / "two")
