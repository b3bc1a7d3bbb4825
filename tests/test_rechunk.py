"""`rechunk`: the same values in other chunks, each chunk read once and written once in each stage."""

import gc
import subprocess
import sys

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec

import jask_zarr as jz
from jask_zarr._chunks import grid_between
from jask_zarr._tracing import writing

SIDE = 96
SQUARE = np.arange(SIDE * SIDE, dtype="float32").reshape(SIDE, SIDE)
STAGES = {
    "the same": ((8, 8), (8, 8), {}, 1),
    "larger": ((8, 8), (16, 32), {}, 1),
    "smaller": ((16, 32), (8, 8), {}, 1),
    "rows to columns": ((1, SIDE), (SIDE, 1), {}, 2),
    "columns to rows": ((SIDE, 1), (1, SIDE), {}, 2),
    "bands": ((4, SIDE), (SIDE, 4), {}, 2),
    "rows to tall shards": ((1, SIDE), (4, 4), {"shards": (SIDE, 4)}, 2),
}


@pytest.mark.parametrize("case", STAGES)
def test_each_chunk_is_read_and_written_once_in_each_stage(case, tmp_path):
    before, after, how, stages = STAGES[case]
    a = jz.DiskArray.from_numpy(SQUARE, chunks=before)
    jz.set_memory_budget(SQUARE.nbytes // 3)
    with jz.io_cost() as cost:
        b = jz.rechunk(a, after, tmp_path / "b.zarr", **how)
    assert (cost.bytes_read, cost.bytes_written) == (stages * a.nbytes, stages * a.nbytes)
    assert b.chunks == after
    np.testing.assert_array_equal(b.to_numpy(allow_large=True), SQUARE)


def test_one_more_stage_in_place_of_many_tiny_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "TINY", 100)  # the chunks between would be of 4 by 4 float32
    monkeypatch.setattr(writing, "MANY", 100)
    a = jz.DiskArray.from_numpy(SQUARE, chunks=(1, SIDE))
    jz.set_memory_budget(SQUARE.nbytes // 6)
    with jz.io_cost() as cost:
        b = jz.rechunk(a, (SIDE, 1), tmp_path / "b.zarr")
    assert cost.bytes_read == 3 * a.nbytes
    assert cost.bytes_written <= 3 * a.nbytes
    np.testing.assert_array_equal(b.to_numpy(allow_large=True), SQUARE)


def test_saving_an_expression_goes_the_same_way(tmp_path):
    a = jz.DiskArray.from_numpy(SQUARE, chunks=(1, SIDE))
    jz.set_memory_budget(SQUARE.nbytes // 3)
    with jz.io_cost() as cost:
        b = (a.T * 2).save(tmp_path / "b.zarr", chunks=(1, SIDE))
    assert cost.bytes_read <= 2 * a.nbytes
    np.testing.assert_array_equal(b.to_numpy(allow_large=True), SQUARE.T * 2)


def test_nothing_is_left_in_scratch(tmp_path):
    a = jz.DiskArray.from_numpy(SQUARE, chunks=(1, SIDE), path=tmp_path / "a.zarr")
    gc.collect()
    before = jz.scratch_usage()
    jz.set_memory_budget(SQUARE.nbytes // 3)
    jz.rechunk(a, (SIDE, 1), tmp_path / "b.zarr")
    gc.collect()
    assert jz.scratch_usage() == before
    kept = jz.rechunk(a, (SIDE, 1))
    assert jz.scratch_usage() >= before + kept.nbytes


def test_grids_that_do_not_nest_are_read_less_often_than_boxes_cross(tmp_path):
    a = jz.DiskArray.from_numpy(SQUARE, chunks=(10, 10))
    jz.set_memory_budget(SQUARE.nbytes // 2)
    with jz.io_cost() as cost:
        b = jz.rechunk(a, (8, 8), tmp_path / "b.zarr")
    assert cost.bytes_read <= 4 * a.nbytes
    np.testing.assert_array_equal(b.to_numpy(allow_large=True), SQUARE)


def test_a_chunk_that_fits_no_budget_says_so(tmp_path):
    a = jz.DiskArray.from_numpy(SQUARE, chunks=(SIDE, SIDE))
    jz.set_memory_budget(SQUARE.nbytes // 2)
    with pytest.raises(jz.errors.MemoryBudgetError, match="one chunk of shape"):
        jz.rechunk(a, (8, 8), tmp_path / "b.zarr")


# ------------------------------------------------------------------ what else is stored
DESCRIBED = {"attributes": {"units": "K", "scale": [1, 2]}, "fill_value": 7}


def stored(folder, zarr_format, **keywords):
    names = {"dimension_names": ("y", None)} if zarr_format == 3 else {}
    keywords = DESCRIBED | names | {"zarr_format": zarr_format} | keywords
    return jz.DiskArray.from_numpy(SQUARE, (8, 96), folder / f"v{zarr_format}.zarr", **keywords)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_description_stays(zarr_format, tmp_path):
    gzip = [{"id": "gzip", "level": 1}] if zarr_format == 2 else [GzipCodec(level=1)]
    a = stored(tmp_path, zarr_format, compressors=gzip)
    old, new = a.to_zarr(), jz.rechunk(a, (96, 8), tmp_path / "b.zarr").to_zarr()
    assert new.metadata.zarr_format == zarr_format
    assert (new.attrs.asdict(), new.fill_value, new.compressors) == (old.attrs.asdict(), 7, old.compressors)
    assert getattr(new.metadata, "dimension_names", None) == getattr(old.metadata, "dimension_names", None)


def test_codecs_and_shards_are_changed(tmp_path):
    a = stored(tmp_path, 3)
    lz4 = BloscCodec(cname="lz4")
    b = jz.rechunk(a, 8, tmp_path / "b.zarr", shards=(16, 96), compressors=lz4).to_zarr()
    c = jz.rechunk(a, (96, 8), tmp_path / "c.zarr", compressors=None).to_zarr()
    assert (b.chunks, b.shards, "lz4" in str(b.compressors[0].cname), c.compressors) == ((8, 8), (16, 96), True, ())
    np.testing.assert_array_equal(b[...], SQUARE)


def test_names_of_dimensions_survive_the_other_format(tmp_path):
    old = jz.rechunk(stored(tmp_path, 3), -1, tmp_path / "old.zarr", zarr_format=2)
    new = jz.rechunk(old, -1, tmp_path / "new.zarr", zarr_format=3)
    assert old.to_zarr().attrs["_ARRAY_DIMENSIONS"] == ["y", None]
    assert new.to_zarr().metadata.dimension_names == ("y", None)
    assert new.to_zarr().attrs.asdict() == DESCRIBED["attributes"]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new.zarr")[...], SQUARE)


def test_packed_numbers_that_are_decoded_are_packed_no_more(tmp_path):
    z = zarr.create_array(
        tmp_path / "z.zarr", shape=(4,), dtype="int16", attributes={"scale_factor": 0.5, "_FillValue": -1, "units": "m"}
    )
    z[:] = [2, 4, -1, 6]
    packed, values = (jz.open(tmp_path / "z.zarr", decode_cf=decode) for decode in (False, True))
    as_it_is, decoded = (jz.rechunk(a, 2, tmp_path / f"{a.dtype}.zarr").to_zarr() for a in (packed, values))
    assert as_it_is.attrs.asdict() == z.attrs.asdict()
    assert decoded.attrs.asdict() == {"units": "m"}
    np.testing.assert_array_equal(decoded[...], [1, 2, np.nan, 3])


# ------------------------------------------------------------------ refusals
def test_what_it_refuses(tmp_path):
    a = jz.DiskArray.from_numpy(SQUARE, chunks=(8, 8), path=tmp_path / "a.zarr")
    with pytest.raises(TypeError, match="shards: only for an array at a path"):
        jz.rechunk(a, 8, shards=(16, 16))
    with pytest.raises(TypeError, match="rechunk stores a DiskArray"):
        jz.rechunk(SQUARE, 8)
    with pytest.raises(ValueError, match="one length for each dimension"):
        jz.rechunk(a, (8,))
    with pytest.raises(FileExistsError):
        jz.rechunk(a, 4, tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="computed from the store"):
        jz.rechunk(a, 4, tmp_path / "a.zarr", overwrite=True)


# ------------------------------------------------------------------ any grids
@st.composite
def regridded(draw):
    shape = tuple(draw(st.lists(st.integers(1, 24), min_size=1, max_size=3)))
    before, after = (tuple(draw(st.integers(1, n)) for n in shape) for _ in range(2))
    times = tuple(draw(st.integers(1, 3)) for _ in shape)
    shards = tuple(c * k for c, k in zip(after, times, strict=True)) if draw(st.booleans()) else None
    return shape, before, after, shards, draw(st.sampled_from([4_000, 20_000, 1_000_000]))


@settings(max_examples=25, deadline=None)
@given(regridded())
def test_any_grid_into_any_other(case):
    shape, before, after, shards, budget = case
    values = np.arange(np.prod(shape), dtype="int16").reshape(shape)
    jz.set_memory_budget(1_000_000)
    a = jz.DiskArray.from_numpy(values, chunks=before)
    jz.set_memory_budget(budget)
    try:
        b = jz.rechunk(a, after, zarr.storage.MemoryStore(), shards=shards)
    except jz.errors.MemoryBudgetError:
        assert budget < 30 * max(np.prod(c) for c in (before, after, shards or after)) * 2
        return
    assert (b.chunks, b.to_zarr().shards) == (after, shards)
    np.testing.assert_array_equal(b.to_numpy(allow_large=True), values)


@st.composite
def nested(draw):
    """A shape and two grids of which along each dim one divides the other, and the dim."""
    factors = [draw(st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 3)) for _ in range(draw(st.integers(1, 3)))]
    shape = tuple(a * b * c for a, b, c in factors)
    finer, coarser = (tuple(int(np.prod(f[:k])) for f in factors) for k in (1, 2))
    swaps = [draw(st.booleans()) for _ in shape]
    grids = (tuple(c if swap else f for f, c, swap in zip(finer, coarser, swaps, strict=True)),
             tuple(f if swap else c for f, c, swap in zip(finer, coarser, swaps, strict=True)))  # fmt: skip
    return shape, *grids, draw(st.integers(1, 500))


@settings(max_examples=200, deadline=None)
@given(nested())
def test_the_grid_between_nests_in_both(case):
    shape, source, target, volume = case
    grid = grid_between(shape, source, target, volume)
    for outer, inner in ((source, target), (target, source)):
        box = tuple(map(max, outer, grid))
        parts = zip(box, grid, outer, shape, strict=True)
        assert all(b == n or (b % g == 0 and b % o == 0) for b, g, o, n in parts)
        assert all(o >= i or g <= i for o, i, g in zip(outer, inner, grid, strict=True))
        assert np.prod(box) <= max(volume, np.prod(outer))


# ------------------------------------------------------------------ memory
PEAK = """
import resource, numpy as np, jask_zarr as jz
jz.set_memory_budget({budget})
small = jz.zeros((64, 64), chunks=(4, 64))
jz.rechunk(small, (64, 4))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
a = jz.zeros(({side}, {side}), chunks=(128, {side}))
jz.rechunk(a, ({side}, 128))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_stays_within_the_budget():
    budget, side = 40_000_000, 8192  # 256 MiB
    program = PEAK.format(budget=budget, side=side)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.1 * budget + 64_000_000
