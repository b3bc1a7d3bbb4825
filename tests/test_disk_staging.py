"""Staged updates: all old or all new, whatever happens, and no trace afterwards.

The interruptions are real. `CHILD` forks one process for each system call of an update that
Python's audit events show, and there kills itself, is interrupted, finds the disk full, or may
not write from there on.
"""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

from jask_zarr._disk import BlockedArray, atomic, commit, locks, scratch_usage, stage
from jask_zarr.errors import DamagedChunkError, NotAnArrayError, ReadOnlyStoreError, ShapeMismatchError, StoreBusyError

SHAPE = (7, 5)
OLD, NEW = np.full(SHAPE, 1, "f4"), np.full(SHAPE, 2, "f4")


def make(place, values=OLD, /, **options):
    return BlockedArray.from_numpy(values, place, **({"chunks": (3, 2)} | options))


def everything(array):
    return array.read_box((0,) * array.ndim, array.shape)


def files(directory):
    return sorted(str(p.relative_to(directory)) for p in Path(directory).rglob("*"))


def staged(directory):
    """What an update under way, or an interrupted one, has put there."""
    return sorted(name for name in os.listdir(directory) if name.startswith(locks.PREFIX))


MANY = {"chunks": (1, 2)}  # more files than lie beside the old ones
KINDS = {
    "v3": {},
    "many files": MANY,
    "v2": {"zarr_format": 2},
    "sharded": {"shards": (6, 4)},
    "raw": {"compressors": None},
    "zarr engine": {"engine": "zarr"},
    "zarr engine, many files": {"engine": "zarr"} | MANY,
    "big-endian": {"dtype": ">f4"},
}


@pytest.fixture(params=[*KINDS, "memory", "memory-sharded"])
def array(request, tmp_path):
    if request.param.startswith("memory"):
        options = {"shards": (6, 4)} if request.param.endswith("sharded") else {}
        return make(MemoryStore(), **options)
    return make(tmp_path / "a", **KINDS[request.param])


# --- what an update does --------------------------------------------------------------------


def test_new_values_appear_at_the_commit_and_not_before(array):
    update = stage(array)
    update.write_box((0, 0), NEW)
    np.testing.assert_array_equal(everything(array), OLD)
    commit([update])
    np.testing.assert_array_equal(everything(array), NEW)


def test_discarded_values_leave_no_trace(array):
    before = files(array.path) if array.path else None
    update = stage(array)
    update.write_box((0, 0), NEW)
    update.discard()
    update.discard()
    np.testing.assert_array_equal(everything(array), OLD)
    assert (files(array.path) if array.path else None) == before
    stage(array).discard()


def test_a_committed_update_leaves_the_files_that_were_there(tmp_path):
    for name, options in KINDS.items():
        array = make(tmp_path / name, **options)
        before = files(array.path)
        update = stage(array)
        update.write_box((0, 0), NEW)
        commit([update])
        assert files(array.path) == before


def test_a_dropped_update_is_discarded(array):
    update = stage(array)
    update.write_box((0, 0), NEW)
    del update
    gc.collect()
    np.testing.assert_array_equal(everything(array), OLD)
    assert array.path is None or not staged(array.path)
    stage(array).discard()


def test_chunks_that_were_not_written_keep_their_values(tmp_path):
    array = make(tmp_path / "a")
    update = stage(array)
    update.write_box((0, 0), NEW[:3, :2])
    commit([update])
    expected = OLD.copy()
    expected[:3, :2] = 2
    np.testing.assert_array_equal(everything(array), expected)


def test_chunks_that_did_not_exist_are_made(tmp_path):
    array = BlockedArray.create(tmp_path / "a", SHAPE, "f4", chunks=(3, 2), fill_value=5)
    update = stage(array)
    update.write_box((0, 0), NEW)
    commit([update])
    np.testing.assert_array_equal(everything(array), NEW)


def test_a_chunk_equal_to_the_fill_value_replaces_the_old_one(array):
    update = stage(array)
    update.write_box((0, 0), np.zeros(SHAPE, "f4"))
    commit([update])
    np.testing.assert_array_equal(everything(array), 0 * OLD)


def test_threads_write_one_update(array):
    values = np.arange(35, dtype="f4").reshape(SHAPE)
    update = stage(array)
    with ThreadPoolExecutor(4) as pool:
        rows, _ = array.write_chunks
        list(pool.map(lambda i: update.write_box((i, 0), values[i : i + rows]), range(0, 7, rows)))
    commit([update])
    np.testing.assert_array_equal(everything(array), values)


def test_an_update_is_checked_as_a_write_is(array):
    update = stage(array)
    with pytest.raises(ShapeMismatchError, match="whole chunks"):
        update.write_box((1, 0), NEW[:1, :1])
    update.discard()


def test_many_updates_leave_nothing_behind(tmp_path):
    array = make(tmp_path / "a")
    before, handles = files(array.path), len(os.listdir("/proc/self/fd"))
    for number in range(50):
        update = stage(array)
        update.write_box((0, 0), np.full(SHAPE, number, "f4"))
        commit([update])
    assert files(array.path) == before
    assert len(os.listdir("/proc/self/fd")) <= handles
    assert not locks._mine


def test_an_update_through_a_link_keeps_the_link(tmp_path):
    make(tmp_path / "real")
    os.symlink("real", tmp_path / "link")
    array = BlockedArray.open(tmp_path / "link")
    update = stage(array)
    update.write_box((0, 0), NEW)
    commit([update])
    assert (tmp_path / "link").is_symlink()
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "real")), NEW)


def test_several_arrays_are_updated_together(tmp_path):
    arrays = [make(tmp_path / "a"), make(tmp_path / "b", shards=(6, 4)), make(MemoryStore())]
    updates = [stage(a) for a in arrays]
    for update in updates:
        update.write_box((0, 0), NEW)
    commit(updates)
    for array in arrays:
        np.testing.assert_array_equal(everything(array), NEW)


def test_nothing_to_commit_is_nothing():
    commit([])


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_updates_by_any_boxes_are_those_of_numpy(tmp_path_factory, data):
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    chunks = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    array = make(tmp_path_factory.mktemp("h") / "a", np.zeros(shape, "f4"), chunks=chunks)
    expected = np.zeros(shape, "f4")
    for number in range(1, 4):
        update, planned = stage(array), expected.copy()
        for row in data.draw(st.sets(st.integers(0, (shape[0] - 1) // chunks[0]))):
            rows = slice(row * chunks[0], (row + 1) * chunks[0])
            planned[rows] = number
            update.write_box((rows.start, 0), planned[rows])
        if data.draw(st.booleans()):
            commit([update])
            expected = planned
        else:
            update.discard()
        np.testing.assert_array_equal(everything(array), expected)


# --- who may ------------------------------------------------------------------------------------


def test_a_read_only_array_is_refused_before_anything_is_written(tmp_path):
    make(tmp_path / "a")
    before = files(tmp_path)
    with pytest.raises(ReadOnlyStoreError, match="mode='r'"):
        stage(BlockedArray.open(tmp_path / "a", mode="r"))
    assert files(tmp_path) == before


def test_two_updates_of_one_array_at_once_are_refused(array):
    first = stage(array)
    with pytest.raises(StoreBusyError, match="already"):
        stage(BlockedArray.open(array.zarr_array))
    first.write_box((0, 0), NEW)
    commit([first])
    np.testing.assert_array_equal(everything(array), NEW)
    stage(array).discard()


OTHER = """if True:
    import sys
    from jask_zarr._disk import BlockedArray, stage
    update = stage(BlockedArray.open(sys.argv[1]))
    print("staged", flush=True)
    sys.stdin.read()
"""


def test_an_update_in_another_process_is_refused_while_it_lives(tmp_path):
    array = make(tmp_path / "a")
    run = [sys.executable, "-c", OTHER, str(tmp_path / "a")]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"staged\n"
        with pytest.raises(StoreBusyError, match=str(other.pid)):
            stage(array)
        np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), OLD)
        other.kill()
    stage(array).discard()
    assert not staged(array.path)


@pytest.mark.parametrize("way", ["c/0/0", "c/0"])
def test_what_is_no_file_is_not_replaced_and_nothing_else_is(tmp_path, way):
    array = make(tmp_path / "a")
    blocked = tmp_path / "a" / way
    if blocked.is_dir():
        shutil.rmtree(blocked)
        blocked.write_bytes(b"")
    else:
        blocked.unlink()
        blocked.mkdir()
    before = files(tmp_path)
    with pytest.raises(DamagedChunkError, match=r"Chunk \(0, 0\)"):
        everything(array)
    update = stage(array)
    update.write_box((0, 0), NEW)
    with pytest.raises(NotAnArrayError, match="belong"):
        commit([update])
    assert files(tmp_path) == before
    np.testing.assert_array_equal(array.read_box((3, 0), (7, 5)), OLD[3:])


# --- interruptions ------------------------------------------------------------------------------

CHILD = """if True:
    import errno, os, signal, sys
    import numpy as np
    from jask_zarr._disk import BlockedArray, commit, locks, stage

    how, stride, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.truncate"}

    def interrupt():
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyboardInterrupt if how == "ctrl-c" else OSError(errno.ENOSPC, "No space left")

    def writes(event, arguments):
        return event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)

    def update(generation, at):
        left = [at]
        def hook(event, arguments):
            if how == "read-only" and left[0] == 0 and event in EVENTS and writes(event, arguments):
                raise PermissionError(errno.EACCES, "May not write any more")
            if event in EVENTS and left[0]:
                left[0] -= 1
                if left[0] == 0 and how != "read-only":
                    left[0] = None
                    interrupt()
        arrays = [BlockedArray.open(p) for p in paths]
        sys.addaudithook(hook)
        updates = []
        try:
            for array in arrays:
                updates.append(stage(array))
                updates[-1].write_box((0, 0), np.full(array.shape, generation, "f4"))
            commit(updates)
        finally:
            interrupted = not left[0]
            left[0] = 0 if interrupted and how == "read-only" else None
            for staged in updates:
                staged.discard()
        return interrupted

    def generations(order):
        arrays = [BlockedArray.open(p) for p in order]
        found = {float(v) for a in arrays for v in a.read_box((0, 0), a.shape).ravel()}
        left = [name for p in paths for name in os.listdir(p) if name.startswith(locks.PREFIX)]
        assert not left, left
        return found

    def in_child(function, *arguments):
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(function(*arguments))
            except (KeyboardInterrupt, OSError):
                os._exit(77)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(99)
        status = os.waitpid(pid, 0)[1]
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def check(before, new):
        found = generations(paths[::-1] if new % 2 else paths)
        assert found in ({before}, {new}), (before, new, found)
        return int(found == {new})

    generation, at, outcomes = 1, 1, []
    while True:
        code = in_child(update, generation + at, at)
        if code == 0:
            break
        assert code in (1, 77, -signal.SIGKILL), code
        came = in_child(check, generation, generation + at)
        assert came in (0, 1), came
        outcomes.append(came)
        if came:
            generation += at
        at += stride
    assert in_child(check, generation, generation + at) == 1
    # Old up to the record, new from then on; an update may survive a full disk here and there.
    assert how == "disk full" or outcomes == sorted(outcomes), outcomes
    assert set(outcomes) == {0, 1}, outcomes
    print(len(outcomes), sum(outcomes))
"""


def interrupt_everywhere(how, *paths, stride=1):
    """Interrupt an update of some arrays at each of its steps: how many there are, and how many after the commit."""
    program = [sys.executable, "-c", CHILD, how, str(stride), *map(str, paths)]
    found = subprocess.run(program, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    steps, new = map(int, found.stdout.split())
    return steps, new


@pytest.mark.parametrize("how", ["kill", "ctrl-c", "disk full", "read-only"])
def test_interrupted_at_any_step_all_arrays_are_old_or_all_are_new(tmp_path, how):
    paths = [tmp_path / "a", tmp_path / "g" / "b"]
    make(paths[0], zarr_format=2, chunks=(7, 5))
    make(paths[1], chunks=(4, 5))
    steps, new = interrupt_everywhere(how, *paths)
    assert steps > 15
    assert new > 3


@pytest.mark.parametrize("how", ["kill", "ctrl-c", "disk full"])
def test_interrupted_at_any_step_one_file_is_old_or_new(tmp_path, how):
    make(tmp_path / "a", chunks=(7, 5))
    steps, new = interrupt_everywhere(how, tmp_path / "a")
    assert steps >= 5
    assert new >= 1


def test_killed_at_every_third_step_many_files_are_all_old_or_all_new(tmp_path):
    make(tmp_path / "a", chunks=(1, 2))
    steps, new = interrupt_everywhere("kill", tmp_path / "a", stride=3)
    assert steps - new > 7
    assert new > 7


LOOP = """if True:
    import sys
    import numpy as np
    from jask_zarr._disk import BlockedArray, commit, stage
    array, generation = BlockedArray.open(sys.argv[1]), 1
    while True:
        generation += 1
        update = stage(array)
        update.write_box((0, 0), np.full(array.shape, generation, "f4"))
        commit([update])
        print(generation, flush=True)
"""


@pytest.mark.parametrize("options", [{}, {"shards": (64, 64)}], ids=["chunks", "shards"])
def test_killed_in_a_loop_of_updates_the_array_is_of_one_generation(tmp_path, options):
    make(tmp_path / "a", np.ones((256, 256), "f4"), chunks=(32, 32), **options)
    run = [sys.executable, "-c", LOOP, str(tmp_path / "a")]
    for pause in (3, 8):
        child = subprocess.Popen(run, stdout=subprocess.PIPE)
        for _ in range(pause):
            last = int(child.stdout.readline())
        until = time.perf_counter() + 0.0007 * pause
        while time.perf_counter() < until:
            pass
        child.send_signal(signal.SIGKILL)
        last = max([last, *map(int, child.communicate()[0].split())])
        found = np.unique(everything(BlockedArray.open(tmp_path / "a")))
        assert len(found) == 1
        assert found[0] in (last, last + 1)
        assert not staged(tmp_path / "a")


FULL = """if True:
    import os, resource, sys
    import numpy as np
    from jask_zarr._disk import BlockedArray, stage
    array = BlockedArray.open(sys.argv[1])
    update = stage(array)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        update.write_box((0, 0), np.random.default_rng(0).random(array.shape, dtype="f4"))
    except OSError as error:
        assert sys.argv[1] in str(error), error
        update.discard()
        sys.exit(0 if ".jask_zarr" not in os.listdir(sys.argv[1]) else "a staging area is left")
    sys.exit("nothing was raised")
"""


def test_a_staged_chunk_that_does_not_fit_is_an_oserror_and_the_array_is_intact(tmp_path):
    make(tmp_path / "a", np.ones((8, 1024), "f4"), chunks=(8, 1024))
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "a")], check=True)
    assert everything(BlockedArray.open(tmp_path / "a")).sum() == 8 * 1024


# --- what others have left ----------------------------------------------------------------------


DEAD = f"{os.uname().nodename}-1-1-0"


def leave(array, record, owner=DEAD):
    """What a process that has died leaves: its lock, new files and, once it was committed, its record."""
    update = stage(array)
    update.write_box((0, 0), NEW)
    tag, directory = update.staging.tag, Path(update.staging.target)
    if record:
        atomic._write_record([update.staging])
    os.unlink(directory / ".jask_zarr.lock")
    os.symlink(owner, directory / ".jask_zarr.lock")
    for name in staged(directory):
        if tag in name:
            os.rename(directory / name, directory / name.replace(tag, owner))
        elif name.endswith("record"):
            (directory / name).write_text((directory / name).read_text().replace(tag, owner))
    update.discard()
    return staged(directory)


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("options", [{}, MANY], ids=["few", "many"])
def test_opening_finishes_what_was_committed_and_removes_the_rest(tmp_path, mode, record, options):
    assert len(leave(make(tmp_path / "a", **options), record)) > 1
    opened = BlockedArray.open(tmp_path / "a", mode=mode)
    np.testing.assert_array_equal(everything(opened), NEW if record else OLD)
    assert not staged(tmp_path / "a")


def test_an_update_first_finishes_what_was_committed(tmp_path):
    array = make(tmp_path / "a")
    leave(array, True)
    update = stage(array)
    np.testing.assert_array_equal(everything(array), NEW)
    update.discard()


@pytest.mark.parametrize("record", [False, True])
def test_what_another_machine_has_left_is_left_alone(tmp_path, record):
    left = leave(make(tmp_path / "a"), record, "elsewhere-1-1-0")
    array = None
    if record:
        with pytest.raises(StoreBusyError, match=r"elsewhere-1-1.*remove"):
            BlockedArray.open(tmp_path / "a")
    else:
        array = BlockedArray.open(tmp_path / "a")
        np.testing.assert_array_equal(everything(array), OLD)
        with pytest.raises(StoreBusyError, match=r"elsewhere-1-1.*remove"):
            stage(array)
    assert staged(tmp_path / "a") == left


@pytest.mark.parametrize("text", ["", "junk", "a-b-c-d", "||", "x|y|../../z"])
def test_a_lock_that_says_nothing_is_left_alone_and_can_be_removed(tmp_path, text):
    array = make(tmp_path / "a")
    lock = tmp_path / "a" / ".jask_zarr.lock"
    lock.write_text(text)
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), OLD)
    with pytest.raises(StoreBusyError, match=r"remove '.*\.jask_zarr\.lock'"):
        stage(array)
    assert staged(tmp_path / "a") == [lock.name]
    lock.unlink()
    stage(array).discard()


def test_what_is_left_names_no_file_outside_the_array(tmp_path):
    array = make(tmp_path / "a")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")
    leave(array, True)
    (tmp_path / "a" / f".jask_zarr.{DEAD}...%2Fvictim%2Ffile").write_text("bad")
    (tmp_path / "a" / f".jask_zarr.{DEAD}.{str(tmp_path / 'victim' / 'file').replace('/', '%2F')}").write_text("bad")
    (tmp_path / "a" / ".jask_zarr.record").write_text(
        json.dumps([DEAD, "../victim", "../..", ".", 5, "\0", str(tmp_path)])
    )
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), NEW)
    assert files(tmp_path / "victim") == ["file"]
    assert (tmp_path / "victim" / "file").read_text() == "precious"
    assert not staged(tmp_path / "a")


def test_a_lock_of_others_is_not_taken_for_a_committed_one_because_of_a_later_record(tmp_path):
    first, other = make(tmp_path / "a"), make(tmp_path / "b")
    leave(other, False, DEAD)
    lock = tmp_path / "b" / ".jask_zarr.lock"
    lock.unlink()
    lock.symlink_to(f"{DEAD}|{DEAD}7|../a")
    leave(first, True)
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "b")), OLD)
    np.testing.assert_array_equal(everything(BlockedArray.open(tmp_path / "a")), NEW)


def test_an_update_whose_lock_was_removed_is_not_committed(tmp_path):
    array = make(tmp_path / "a")
    update = stage(array)
    update.write_box((0, 0), NEW)
    os.unlink(tmp_path / "a" / ".jask_zarr.lock")
    other = stage(array)
    with pytest.raises(StoreBusyError, match="removed"):
        commit([update])
    other.write_box((0, 0), 3 * OLD)
    commit([other])
    np.testing.assert_array_equal(everything(array), 3 * OLD)


NO_LINKS = """if True:
    import errno, os, sys
    import numpy as np
    from jask_zarr._disk import BlockedArray, commit, locks, stage
    from jask_zarr.errors import StoreBusyError
    def hook(event, arguments):
        if event == "os.symlink":
            raise OSError(errno.EPERM, "no links here")
    arrays = [BlockedArray.open(p) for p in sys.argv[1:]]
    sys.addaudithook(hook)
    updates = [stage(a) for a in arrays]
    for update in updates:
        update.write_box((0, 0), np.full(update.array.shape, 2, "f4"))
    try:
        stage(arrays[0])
    except StoreBusyError:
        commit(updates)
"""


def test_a_file_system_without_links_has_files_as_locks(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        make(path)
    subprocess.run([sys.executable, "-c", NO_LINKS, *map(str, paths)], check=True)
    for path in paths:
        np.testing.assert_array_equal(everything(BlockedArray.open(path)), NEW)
        assert not staged(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_who_may_not_finish_an_interrupted_update_is_told_so(tmp_path):
    array = make(tmp_path / "a")
    leave(array, True)
    for folder in (tmp_path, *tmp_path.parents):
        if len(folder.parts) > 2:
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(ReadOnlyStoreError, match="interrupted"):
            BlockedArray.open(array.path)
    finally:
        os.seteuid(0)
    np.testing.assert_array_equal(everything(BlockedArray.open(array.path)), NEW)


def test_a_store_that_fails_at_the_commit_leaves_no_claim(tmp_path):
    store = MemoryStore()
    array = make(store)
    gc.collect()
    before = scratch_usage()
    update = stage(array)
    update.write_box((0, 0), NEW)
    store._store_dict = None  # the store is gone
    with pytest.raises((NotAnArrayError, AttributeError)):
        commit([update])
    store._store_dict = {}
    del update
    gc.collect()
    assert scratch_usage() == before


def test_zarr_itself_reads_an_array_that_is_being_updated(tmp_path):
    array = make(tmp_path / "g", path="a")
    update = stage(array)
    update.write_box((0, 0), NEW)
    group = zarr.open_group(LocalStore(tmp_path / "g"), mode="r")
    assert list(group.array_keys()) == ["a"]
    np.testing.assert_array_equal(group["a"][:], OLD)
    update.discard()
