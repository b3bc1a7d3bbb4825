"""Temporary arrays: what they are, whose they are, and that they go."""

import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jask_zarr import _config
from jask_zarr._disk import BlockedArray, SpillFile, commit, owners, scratch_usage, stage
from jask_zarr._disk.scratch import _Room
from jask_zarr.errors import ScratchDirectoryError, ScratchFullError


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """A scratch directory of the test's own."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(_config, "_settings", _config._Settings(2**30, directory))
    return directory


def arrays_in(scratch):
    return list(scratch.glob("*/*.zarr"))


def everything(array):
    return array.read_box((0,) * array.ndim, array.shape)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "?", "c8", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (7, 5)])
def test_a_temporary_array_holds_what_was_written(dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    spill = SpillFile.create(shape, dtype, tuple(max(n // 2, 1) for n in shape))
    spill.write_box((0,) * len(shape), values)
    np.testing.assert_array_equal(everything(spill), values, strict=True)


def test_what_was_not_written_is_the_fill_value():
    spill = SpillFile.create((4,), "f4", (2,), fill_value=np.nan)
    assert np.isnan(everything(spill)).all()
    assert np.isnan(spill.fill_value)


def test_equal_kinds_of_arrays_are_different_arrays():
    first, second = (SpillFile.create((4,), "f4", (2,)) for _ in range(2))
    first.write_box((0,), np.ones(4, "f4"))
    assert everything(second).sum() == 0
    assert first.identity != second.identity
    assert first.path != second.path


def test_a_chunk_written_again_has_its_new_values():
    spill = SpillFile.create((4,), "f4", (4,))
    for number in (1, 2, 3):
        spill.write_box((0,), np.full(4, number, "f4"))
        assert everything(spill).sum() == 4 * number


@pytest.mark.parametrize("codec", ["raw", "lz4"])
@given(numbers=st.lists(st.integers(0, 9), min_size=1, max_size=4))
@settings(deadline=None, max_examples=10)
def test_a_chunk_that_becomes_shorter_keeps_no_old_end(codec, numbers):
    spill = SpillFile.create((500,), "i4", (500,), codec=codec)
    for number in numbers:
        values = np.random.default_rng(number).integers(0, 2 ** (number + 1), 500, "i4")
        spill.write_box((0,), values)
        np.testing.assert_array_equal(everything(spill), values)


def test_it_can_be_read_by_zarr_and_updated():
    spill = SpillFile.create((4,), "f4", (2,))
    update = stage(spill)
    update.write_box((0,), np.ones(4, "f4"))
    commit([update])
    np.testing.assert_array_equal(spill.zarr_array[:], np.ones(4))
    np.testing.assert_array_equal(everything(BlockedArray.open(spill.path)), np.ones(4))


def files_in(folder):
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def test_usage_is_what_the_files_take(scratch):
    gc.collect()
    elsewhere = scratch_usage() - files_in(scratch)  # of tests before
    before = scratch_usage()
    spill = SpillFile.create((1000,), "f4", (500,))
    spill.write_box((0,), np.ones(1000, "f4"))
    assert 4000 <= scratch_usage() - before < 6000
    assert scratch_usage() == files_in(scratch) + elsewhere
    del spill
    gc.collect()
    assert scratch_usage() == before


@pytest.fixture
def limited(scratch):
    """Room for 10,000 bytes beside what tests before hold."""
    gc.collect()  # a caught error holds what the test before it had, in a cycle
    _config.set_memory_budget("1GB", scratch_limit=10_000 + _Room.taken)
    return scratch


def test_what_exceeds_the_limit_is_refused_before_it_is_written(limited):
    first = SpillFile.create((2000,), "f4", (1000,))
    first.write_box((0,), np.ones(2000, "f4"))
    second = SpillFile.create((1000,), "f4", (1000,))
    with pytest.raises(ScratchFullError, match=r"4,000 bytes.*limit of [\d,]+ bytes.*[\d,]+ are taken") as caught:
        second.write_box((0,), np.ones(1000, "f4"))
    assert caught.value.errno == errno.ENOSPC
    assert [p.name for p in Path(second.path).rglob("*")] == ["zarr.json"]
    np.testing.assert_array_equal(everything(first), 1)


def test_room_is_given_back_when_an_array_goes(limited):
    for number in range(5):
        spill = SpillFile.create((2000,), "f4", (1000,))
        spill.write_box((0,), np.full(2000, number, "f4"))
        spill.write_box((0,), np.full(2000, number, "f4"))
        del spill
        gc.collect()


def test_what_is_not_written_takes_no_room(limited):
    spills = [SpillFile.create((10**12,), "f4", (1000,), fill_value=3) for _ in range(3)]
    assert all(s.read_block((0,))[0] == 3 for s in spills)


def test_an_array_larger_than_the_free_disk_is_refused(scratch):
    spill = SpillFile.create((10**15,), "f4", (1000,))
    with pytest.raises(ScratchFullError, match="bytes are free"):
        spill.write_box((0,), np.ones(1000, "f4"))


def test_a_full_disk_is_told_as_such(limited):
    spill = SpillFile.create((8,), "f4", (8,))
    Path(spill.path, "c").mkdir()
    Path(spill.path, "c/0").symlink_to("/dev/full")
    with pytest.raises(ScratchFullError, match="is full"):
        spill.write_box((0,), np.ones(8, "f4"))


def test_it_goes_when_it_is_unreachable_and_not_before(scratch):
    spill = SpillFile.create((4,), "f4", (2,))
    kept = {"again": spill}
    del spill
    gc.collect()
    assert len(arrays_in(scratch)) == 1
    kept.clear()
    gc.collect()
    assert arrays_in(scratch) == []


def test_it_is_not_pickled():
    with pytest.raises(TypeError, match="save it into a store"):
        pickle.dumps(SpillFile.create((4,), "f4", (2,)))


PROGRAM = """if True:
    import os, signal, sys
    import numpy as np
    from jask_zarr import _config
    from jask_zarr._disk import SpillFile
    _config.set_memory_budget("1GB", scratch_dir=sys.argv[1])
    spill = SpillFile.create((4,), "f4", (2,))
    spill.write_box((0,), np.ones(4, "f4"))
    assert len(os.listdir(sys.argv[1])) == 1
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "error":
        raise RuntimeError("on purpose")
    if sys.argv[2] == "fork":
        if os.fork() == 0:
            del spill
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert spill.read_box((0,), (4,)).sum() == 4
"""


@pytest.mark.parametrize(("end", "code"), [("normal", 0), ("error", 1), ("fork", 0)])
def test_it_goes_when_the_process_ends(scratch, end, code):
    run = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(scratch), end]
    assert subprocess.run(run, stderr=subprocess.DEVNULL).returncode == code
    assert list(scratch.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_one(scratch):
    run = [sys.executable, "-c", PROGRAM, str(scratch), "kill"]
    assert subprocess.run(run).returncode == -signal.SIGKILL
    assert len(arrays_in(scratch)) == 1
    mine = SpillFile.create((4,), "f4", (2,))
    assert [str(p) for p in arrays_in(scratch)] == [mine.path]


def test_what_a_living_process_or_another_machine_has_stays(scratch):
    parent = f"jask_zarr-{owners._host()}-{os.getppid()}-{owners._start_time(os.getppid())}"
    names = [parent, "jask_zarr-elsewhere-1-1", "unrelated"]
    for name in names:
        (scratch / name).mkdir()
    mine = SpillFile.create((4,), "f4", (2,))
    assert {p.name for p in scratch.iterdir()} == {*names, Path(mine.path).parent.name}


def test_a_new_process_with_an_old_number_is_not_taken_for_the_old_one(scratch):
    (scratch / f"jask_zarr-{owners._host()}-{os.getppid()}-1").mkdir()
    SpillFile.create((4,), "f4", (2,))
    assert len(list(scratch.iterdir())) == 1


def test_a_scratch_directory_that_was_removed_is_made_again(scratch):
    SpillFile.create((4,), "f4", (2,))
    for left in scratch.iterdir():
        subprocess.run(["rm", "-r", str(left)], check=True)
    spill = SpillFile.create((4,), "f4", (2,))
    assert everything(spill).sum() == 0


@pytest.mark.skipif(_config.file_system_type(Path("/dev/shm")) != "tmpfs", reason="no tmpfs")
def test_a_directory_in_memory_is_refused_when_it_is_first_needed(monkeypatch):
    monkeypatch.setattr(_config, "_settings", _config._Settings())
    monkeypatch.setattr(_config.tempfile, "gettempdir", lambda: "/dev/shm")
    assert _config.scratch_directory() == Path("/var/tmp")
    monkeypatch.setattr(_config, "_RAM_BACKED", (_config.file_system_type(Path("/var/tmp")), "tmpfs"))
    with pytest.raises(ScratchDirectoryError, match=r"/dev/shm.*/var/tmp"):
        SpillFile.create((4,), "f4", (2,))


@pytest.mark.parametrize(
    ("tag", "alive"),
    [
        (lambda: owners.own_tag(), True),
        (lambda: "elsewhere-1-1", True),
        (lambda: f"{owners._host()}-{os.getpid()}-1", False),
        (lambda: f"{owners._host()}-{2**22 + 1}-1", False),
    ],
    ids=["own", "another host", "another start", "no such process"],
)
def test_owners_are_known_by_host_process_and_start(tag, alive):
    assert owners.is_alive(tag()) is alive
