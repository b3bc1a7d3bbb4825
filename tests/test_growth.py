"""Memory stays within the budget and does not grow with the arrays, whatever the job.

Each figure is the peak of a fresh process above what was resident after the import, as `benchmarks/growth.py`
measures it. By default two jobs are run at fifty times a small budget; all of them, up to 3 GB, on request.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from growth import BUDGET, GROWING, TIMES, bound, figure, table

SIZES = {"lookup_gradient": (1, 4)}
"""Sixteenths of the largest size; less where something in memory grows too, as row numbers do."""


def peaks(job, factors, budget, side, folder):
    """At so many sixteenths of the largest size."""
    found = [figure(job, budget * TIMES * factor // 16, budget, side, folder) for factor in factors]
    assert [f["error"] for f in found if "error" in f] == []
    return [f["peak"] for f in found]


@pytest.mark.parametrize("job", ["difference", "transpose"])
def test_memory_at_fifty_times_a_small_budget(job, tmp_path):
    budget = 16_000_000
    small, large = peaks(job, (1, 16), budget, 256, tmp_path)
    assert large <= bound(budget)
    assert large <= small + budget


@pytest.mark.soak
@pytest.mark.parametrize("job", GROWING)
def test_memory_as_arrays_grow(job, tmp_path):
    found = peaks(job, SIZES.get(job, (1, 4, 16)), BUDGET, 512, tmp_path)
    assert max(found) <= bound(BUDGET)
    assert found[-1] <= found[0] + BUDGET // 4


def test_the_table_has_a_row_for_each_job_and_tells_the_slope():
    figures = {
        f: {"seconds": n, "cpu": 1 + 2 * n, "peak": 5e6, "bytes": n * 10**9}
        for f, n in {"1": 1, "8": 8, "16": 16}.items()
    }
    found = {"budget": BUDGET, "times": TIMES, "factors": (1, 8, 16), "machine": "here", "jobs": {"adam": figures}}
    assert table(found).splitlines()[-1] == "| a step of Adam, all on disk | 5 | 5 | 5 | 1.00 | 16.00 | 2.00 | 2.00 |"
