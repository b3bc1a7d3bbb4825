"""What `explain` says of a plan, as text and as a picture."""

import re
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import jask_zarr as jz

TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture
def softmax() -> jz.DiskArray:
    """Over an axis that does not fit the budget."""
    jz.set_memory_budget("100kB")
    a = jz.DiskArray.from_numpy(np.ones((64, 4096), "float32"), chunks=(8, 512))
    return jz.softmax(a, axis=0)


def test_text_has_each_pass_with_its_bytes_and_the_reason_it_ended(softmax: jz.DiskArray) -> None:
    explanation = jz.explain(softmax)
    text = str(explanation)
    for number, p in enumerate(explanation.plan.passes, 1):
        assert f"pass {number} of {len(explanation.plan.passes)}: {p.tiles} tiles" in text
    assert "read input 0: float32[64,4096] in chunks of (8, 512), 1.0 MB" in text
    assert "output 0 on disk: float32[64,4096]" in text


def test_picture_shows_what_the_text_says(softmax: jz.DiskArray) -> None:
    explanation = jz.explain(softmax)
    drawn = [node.text for node in ElementTree.fromstring(explanation.svg()).iter(TEXT)]
    passes = explanation.plan.passes
    assert sum(line.startswith("pass ") for line in drawn) == len(passes)
    sources = [line for line in drawn if re.fullmatch(r"input 0|kept value \d+", line)]
    assert len(sources) == sum(len(p.streams) for p in passes)
    assert "output 0 on disk" in drawn
    assert explanation._repr_svg_() == explanation.svg()


@pytest.mark.parametrize("budget", [8_000, 16_000, 40_000])
def test_results_that_share_no_loop_do_not_multiply_their_tiles(budget: int) -> None:
    def scans(a):
        def scan(factor):
            return jax.lax.scan(lambda c, _: (c * factor, c), a, None, length=8)[1]

        return [scan(factor) for factor in (2.0, 3.0, 4.0)]

    a = jz.DiskArray.from_numpy(np.ones((16, 16), "float32"), chunks=(16, 16))
    jz.set_memory_budget(budget)
    assert sum(p.tiles for p in jz.explain(scans, a).plan.passes) <= 40  # a product of three would be 512 and more
