"""Many threads, several processes, event loops and forks on one array."""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jask_zarr as jz
from jask_zarr import errors
from jask_zarr._disk import BlockedArray, one_version, stage, stores

SHAPE = (16, 12)


def store(path, value=0):
    return jz.DiskArray.from_numpy(np.full(SHAPE, value, "f4"), path=path, chunks=(4, 4))


READS = [
    lambda a: a.to_numpy(),
    lambda a: np.asarray(jz.sum(a) / a.size),
    lambda a: (a + a).to_numpy() / 2,
    lambda a: np.asarray(a[3:9].to_numpy()),
    lambda a: np.asarray(a.T.to_numpy()),
]


def one_whole(path, read):
    """The values of a reading; how often it was told that there is another version by now."""
    told = 0
    while True:
        try:
            return read(jz.open(path)), told
        except errors.StaleArrayError:
            told += 1


def read_while_updated(path, readings):
    """Eight threads read one store while another updates it; how many readings, updates, and readings begun anew."""
    store(path)
    done, updated = threading.Event(), threading.Semaphore(0)

    def update():
        array, count = jz.open(path), 0
        while not done.is_set():
            array, count = array.update_(array + 1), count + 1
            updated.release()
        return count

    def read(thread):
        told = []
        for number in range(readings):
            values, times = one_whole(path, READS[(thread + number) % len(READS)])
            assert values.min() == values.max(), "two versions in one reading"
            told.append(times)
        updated.acquire()
        return told

    with ThreadPoolExecutor(9) as pool:
        updater = pool.submit(update)
        try:
            told = [times for thread in pool.map(read, range(8)) for times in thread]
        finally:
            done.set()
        updates = updater.result()
    assert jz.open(path).to_numpy().min() == jz.open(path).to_numpy().max() == updates
    return len(told), updates, sum(told)


def test_every_reader_sees_one_whole_version(tmp_path):
    readings, updates, _ = read_while_updated(tmp_path / "a", readings=8)
    assert readings == 8 * 8
    assert updates >= 8


@pytest.mark.soak
def test_every_one_of_8000_readings_sees_one_whole_version(tmp_path):
    readings, updates, begun_anew = read_while_updated(tmp_path / "a", readings=1000)
    assert readings == 8 * 1000
    assert updates >= 100
    print(f"{updates} updates, {begun_anew} readings begun anew")


def test_threads_compute_on_one_array(tmp_path):
    array = store(tmp_path / "a", 3)
    shared = jz.exp(array) * 2
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: float(jz.sum(shared)) + float(jz.sum(array * n)), range(24)))
    for number, value in enumerate(found):
        assert value == pytest.approx(16 * 12 * (2 * np.exp(3) + 3 * number), rel=1e-5)


# --- processes ------------------------------------------------------------------------------

OTHER = """if True:
    import sys
    from jask_zarr._disk import BlockedArray, stage
    update = stage(BlockedArray.open(sys.argv[1]))
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_an_update_is_refused_while_another_process_updates_and_works_when_that_has_died(tmp_path):
    array = store(tmp_path / "a")
    program = [sys.executable, "-c", OTHER, str(tmp_path / "a")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "begun\n"
        with pytest.raises(errors.StoreBusyError, match="already updating"):
            array.update_(array + 1)
        np.testing.assert_array_equal(array.to_numpy(), 0)
        other.kill()
        other.wait()
    np.testing.assert_array_equal(array.update_(array + 1).to_numpy(), 1)
    assert sorted(os.listdir(tmp_path / "a")) == ["c", "zarr.json"]


WRITER = """if True:
    import sys
    import numpy as np
    import jask_zarr as jz
    path, way = sys.argv[1:]
    array = jz.open(path)
    for value in map(int, sys.stdin):
        if way == "update":
            array = array.update_(array * 0 + value)
        else:
            jz.DiskArray.from_numpy(np.full((16, 12), value, "f4"), path=path, chunks=(4, 4), overwrite=True)
        print(value, flush=True)
"""


@pytest.fixture(params=["update", "overwrite"])
def writer(request, tmp_path):
    store(tmp_path / "a")
    program = [sys.executable, "-c", WRITER, str(tmp_path / "a"), request.param]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def ask(writer, value):
    writer.stdin.write(f"{value}\n")
    writer.stdin.flush()


def test_a_reading_during_which_another_process_replaced_values_is_told(tmp_path, writer):
    array = BlockedArray.open(tmp_path / "a")
    with one_version([array]):
        assert array.read_box((0, 0), SHAPE).max() == 0
    reading = one_version([array])
    reading.__enter__()
    ask(writer, 1)
    assert writer.stdout.readline() == "1\n"
    with pytest.raises(errors.StaleArrayError, match="Another process"):
        reading.__exit__(None, None, None)
    with one_version([array]):
        assert array.read_box((0, 0), SHAPE).min() == 1


def test_readers_in_another_process_see_one_whole_version_or_are_told(tmp_path, writer):
    for value in range(1, 31):
        ask(writer, value)
        try:
            values = READS[value % len(READS)](jz.open(tmp_path / "a"))
            assert values.min() == values.max()
        except (errors.StaleArrayError, errors.StoreBusyError, errors.ArrayNotFoundError):
            pass
    assert [writer.stdout.readline() for _ in range(30)][-1] == "30\n"
    assert jz.open(tmp_path / "a").to_numpy().min() == 30


def test_an_array_that_was_written_over_while_it_was_opened_is_not_read_in_its_old_chunks(tmp_path, monkeypatch):
    store(tmp_path / "a")
    open_zarr = stores.open_zarr

    def too_late(*args):
        found = open_zarr(*args)
        monkeypatch.undo()
        jz.DiskArray.from_numpy(np.ones(SHAPE, "f4"), path=tmp_path / "a", chunks=(8, 2), overwrite=True)
        return found

    monkeypatch.setattr(stores, "open_zarr", too_late)
    array = BlockedArray.open(tmp_path / "a")
    for use in (lambda: array.read_box((0, 0), SHAPE), lambda: stage(array)):
        with pytest.raises(errors.StaleArrayError):
            use()
    assert sorted(os.listdir(tmp_path / "a")) == ["c", "zarr.json"]


# --- event loops ----------------------------------------------------------------------------


def test_all_of_it_works_inside_a_running_event_loop(tmp_path):
    async def main():
        array = store(tmp_path / "a", 2)
        memory = jz.DiskArray.from_numpy(np.ones(SHAPE, "f4"), path=f"memory://{tmp_path}/b", chunks=(4, 4))
        await asyncio.sleep(0)
        total = float(jz.sum(array + memory))
        array = array.update_(array * memory)
        in_thread = await asyncio.to_thread(lambda: float(jz.sum(array)))
        return total, in_thread

    pytest.importorskip("fsspec")
    assert asyncio.run(main()) == (16 * 12 * 3.0, 16 * 12 * 2.0)


# --- forks ----------------------------------------------------------------------------------

FORK = """if True:
    import os, sys, warnings
    import numpy as np
    import jask_zarr as jz
    warnings.simplefilter("always")
    a = jz.DiskArray.from_numpy(np.ones((4, 4), "f4"), path=sys.argv[1])
    assert a.to_numpy().sum() == 16
    if sys.argv[2] == "computed":
        assert float(jz.sum(a)) == 16
    child = os.fork()
    if child == 0:
        total = jz.open(sys.argv[1]).to_numpy().sum()
        try:
            total += float(jz.sum(a + 1))
        except jz.errors.ForkedProcessError as error:
            assert "spawn" in str(error)
        os._exit(int(total))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), float(jz.sum(a)))
"""


@pytest.mark.parametrize(("before", "found"), [("read", 16 + 32), ("computed", 16)])
def test_a_forked_child_reads_and_computes_unless_jax_had_started(tmp_path, before, found):
    program = [sys.executable, "-c", FORK, str(tmp_path / "a"), before]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(found), "16.0"]
    assert ("fork" in done.stderr) >= (before == "computed")
