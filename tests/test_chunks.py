"""The arithmetic of boxes and grids, against plain enumeration."""

import doctest
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jask_zarr import _chunks


@st.composite
def grids(draw):
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    return shape, tuple(draw(st.integers(1, 9)) for _ in shape)


@st.composite
def boxes(draw):
    shape, chunks = draw(grids())
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return shape, chunks, tuple(a for a, _ in ends), tuple(b for _, b in ends)


def elements(start, stop):
    return set(product(*map(range, start, stop)))


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(_chunks)
    assert result.attempted > 10
    assert result.failed == 0


@given(grids())
def test_blocks_are_a_partition_of_the_array(grid):
    shape, chunks = grid
    blocks = [
        elements(*_chunks.block_box(index, shape, chunks))
        for index in product(*map(range, _chunks.grid_shape(shape, chunks)))
    ]
    assert sum(map(len, blocks)) == prod(shape)
    assert set().union(*blocks) == elements((0,) * len(shape), shape)


@given(boxes())
def test_touched_blocks_are_those_that_share_an_element(case):
    shape, chunks, start, stop = case
    wanted = elements(start, stop)
    sharing = [
        index
        for index in product(*map(range, _chunks.grid_shape(shape, chunks)))
        if elements(*_chunks.block_box(index, shape, chunks)) & wanted
    ]
    assert list(_chunks.blocks_touching(start, stop, chunks)) == sharing
    assert _chunks.count_touching(start, stop, chunks) == len(sharing)


@given(boxes())
def test_a_covering_box_is_whole_and_holds_the_box(case):
    shape, chunks, start, stop = case
    a, b = _chunks.covering_box(start, stop, shape, chunks)
    assert elements(start, stop) <= elements(a, b)
    assert _chunks.is_whole(a, b, shape, chunks)
    assert _chunks.is_inside(a, b, shape)


@given(boxes(), st.data())
def test_an_intersection_holds_what_is_in_both(case, data):
    shape, _, start, stop = case
    other = data.draw(st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape)))
    box = tuple(a for a, _ in other), tuple(b for _, b in other)
    found = _chunks.intersection((start, stop), box)
    assert elements(*found) == elements(start, stop) & elements(*box)


@given(st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_union_cuts_are_the_cuts_of_any_grid(size, chunks):
    merged = _chunks.union_cuts(_chunks.cuts(size, c) for c in chunks)
    expected = {k for c in chunks for k in range(0, size, c)} | {0, size}
    assert merged == tuple(sorted(expected))


@pytest.mark.parametrize(
    ("start", "stop", "inside"),
    [((0,), (7,), True), ((3,), (3,), True), ((0,), (8,), False), ((-1,), (3,), False)],
)
def test_a_box_must_lie_inside_the_array(start, stop, inside):
    assert _chunks.is_inside(start, stop, (7,)) is inside


def test_a_box_of_another_rank_is_not_inside():
    assert not _chunks.is_inside((0, 0), (1, 1), (7,))


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=4).map(tuple), st.sampled_from([1, 4, 16]))
def test_default_chunks_fit_their_target(shape, itemsize):
    chunks = _chunks.default_chunks(shape, itemsize, target=2**16)
    assert prod(chunks) * itemsize <= 2**16
    assert all(1 <= c <= max(n, 1) for c, n in zip(chunks, shape, strict=True))
