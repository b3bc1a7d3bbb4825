"""The training example does what the README says of it."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr

ROOT = Path(__file__).parent.parent
KEYS = "accuracy loss raw_bytes stored_bytes budget_bytes peak_bytes bytes_read_per_step seconds store"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    command = [sys.executable, ROOT / "examples" / "train.py"]
    options = ["--out", folder / "run", "--json", folder / "report.json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "report.json").read_text()) | {"progress": done.stderr}


@pytest.fixture(scope="module")
def parameters(report):
    return dict(zarr.open_group(report["store"], path="params", mode="r").arrays())


pytestmark = pytest.mark.long


def test_no_image_is_both_trained_on_and_tested_on():
    example = runpy.run_path(str(ROOT / "examples" / "train.py"))
    numbers = np.arange(1797)
    (train, _), (test, _) = example["split"](numbers, numbers, np.random.default_rng(0))
    assert sorted([*train, *test]) == list(numbers)
    assert len(test) == example["TEST_IMAGES"]


def test_report_has_exactly_the_promised_keys(report):
    assert set(report) - {"progress"} == set(KEYS.split())


def test_progress_is_shown(report):
    assert "training" in report["progress"]


def test_network_learns(report):
    assert report["accuracy"] >= 0.95
    assert report["loss"] < 0.5


def test_data_is_many_times_the_budget_and_is_compressed(report):
    assert report["raw_bytes"] >= 8 * report["budget_bytes"]
    assert report["stored_bytes"] < report["raw_bytes"]


def test_memory_stays_near_the_budget(report):
    assert 0 < report["peak_bytes"] <= 1.1 * report["budget_bytes"] + 64e6


def test_trained_store_opens_in_plain_zarr(parameters):
    assert {name: array.shape for name, array in parameters.items()} == {
        "first.w": (64, 128),
        "first.b": (128,),
        "second.w": (128, 10),
        "second.b": (10,),
    }
    assert all(np.any(array[...]) for array in parameters.values())


def test_tensorstore_reads_the_same_parameters(report, parameters):
    for name, array in parameters.items():
        kvstore = {"driver": "file", "path": f"{report['store']}/params/{name}"}
        other = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
        np.testing.assert_array_equal(other.read().result(), array[...])
