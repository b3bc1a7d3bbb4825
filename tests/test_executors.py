"""Where tiles are computed: threads, several devices, other processes. The bits are the same, and promises hold."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

import anywhere
import jask_zarr as jz
from jask_zarr import _compat
from jask_zarr._plan import InputSpec, OutputSpec, make_plan
from jask_zarr._run import compiled, worker
from jask_zarr._run.task import Task

VALUES = np.random.default_rng(1).normal(size=(600, 40)).astype("float32")
CHUNKS = (20, 40)
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def processes():
    """Two worker processes, for all tests of this file."""
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        yield pool


@pytest.fixture
def stored(tmp_path):
    """An array of thirty chunks in a store of its own, and a budget for few of them."""
    jz.set_memory_budget("100kB")
    return jz.DiskArray.from_numpy(VALUES, chunks=CHUNKS, path=tmp_path / "a")


def path_of(array):
    return Path(array.to_zarr().store_path.store.root)


@pytest.fixture(scope="module")
def in_threads(tmp_path_factory):
    """What each job gives in the library's own threads."""
    before = jz.memory_budget()
    folder = tmp_path_factory.mktemp("threads")
    found = {job: anywhere.results(job, folder) for job in anywhere.JOBS}
    jz.set_memory_budget(before)
    return found


# --- the same bits ----------------------------------------------------------------------------


@pytest.mark.parametrize("job", anywhere.JOBS, ids=lambda job: job.__name__)
def test_the_same_bits_from_processes(job, in_threads, processes, tmp_path):
    with jz.set_executor(processes):
        assert anywhere.results(job, tmp_path) == in_threads[job]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_same_bits_from_any_number_of_threads(threads, in_threads, tmp_path):
    with ThreadPoolExecutor(threads) as pool, jz.set_executor(pool):
        assert {job: anywhere.results(job, tmp_path) for job in anywhere.JOBS} == in_threads


def test_the_same_bits_from_one_and_four_devices_that_all_compute_tiles(tmp_path):
    one, four = (_on_devices(n, tmp_path / str(n)) for n in (1, 4))
    assert {job: found for job, (found, _) in one.items()} == {job: found for job, (found, _) in four.items()}
    assert {devices for _, devices in one.values()} == {"0"}
    assert {job: devices for job, (_, devices) in four.items()} == dict.fromkeys(one, "0,1,2,3") | {
        "operand_in_memory": "0,1",  # a third copy does not fit the budget
        "chosen_device": "3",
    }


def _on_devices(number, folder):
    # XLA splits some small contractions among its own threads; they are to be as many.
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={number}", "NPROC": "4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, anywhere.__file__, str(folder)]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return {job: (found, devices) for job, found, devices in map(str.split, done.stdout.splitlines())}


# --- what goes to the workers and what comes back ---------------------------------------------


def test_what_workers_read_and_write_is_counted(stored, processes):
    with jz.set_executor(processes), jz.io_cost() as cost:
        stored.update_(jz.tanh(stored))
    assert (cost.blocks_read, cost.bytes_read) == (30, VALUES.nbytes)
    assert (cost.blocks_written, cost.bytes_written) == (30, VALUES.nbytes)


def test_looked_up_rows_are_counted_as_in_threads(stored, processes):
    rows = np.random.default_rng(0).integers(0, 600, 2000)

    def looked_up():
        with jz.io_cost() as cost:
            found = float(jz.sum(jz.tanh(stored[rows])))
        return found, cost.blocks_read, cost.bytes_read

    here = looked_up()
    with jz.set_executor(processes):
        assert looked_up() == here


class Recording:
    """An executor of the user's own: it hands on to another one, and keeps what it was asked."""

    def __init__(self, executor):
        self.executor, self.calls = executor, []

    def submit(self, function, *arguments):
        self.calls.append(arguments)
        return self.executor.submit(function, *arguments)


def test_what_runs_in_this_process_is_counted_once(stored):
    with ThreadPoolExecutor(2) as pool, jz.set_executor(Recording(pool), workers=2), jz.io_cost() as cost:
        total = float(jz.sum(stored * 2))
    assert total == pytest.approx(2 * float(VALUES.astype("f8").sum()), rel=1e-6)
    assert (cost.blocks_read, cost.bytes_read) == (30, VALUES.nbytes)


def test_most_tasks_travel_without_what_they_share(stored, processes):
    recording = Recording(processes)
    with jz.set_executor(recording, workers=2):
        jz.lift(lambda x, w: jnp.sum(jnp.tanh(x @ w)))(stored, jnp.ones((40, 40)))
    assert len(recording.calls) >= 10
    with_parcel = [parcel for _, _, parcel in recording.calls if parcel is not None]
    assert 1 <= len(with_parcel) <= 4
    assert all(len(parcel) > 40 * 40 * 4 for parcel in with_parcel)


def test_a_worker_loads_a_function_once_for_all_passes_that_use_it(stored):
    worker._function.cache_clear()
    with ThreadPoolExecutor(1) as pool, jz.set_executor(Recording(pool)):
        jz.sum(stored * 3).block_until_ready()
        first = worker._function.cache_info()
        jz.sum(stored * 3).block_until_ready()
    again = worker._function.cache_info()
    assert again.misses == first.misses <= 2  # a whole tile, and one at the edge
    assert again.hits > first.hits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint16", "bool", "float8_e4m3fn"])
def test_every_data_type_travels(dtype, processes, tmp_path):
    values = np.asarray(jnp.asarray(np.arange(400).reshape(40, 10) % 7, dtype))
    a = jz.DiskArray.from_numpy(values, chunks=(1, 10), path=tmp_path / "a")
    jz.set_memory_budget("1kB")
    with jz.set_executor(processes):
        twice = jz.lift(lambda x: jnp.concatenate([x, x], 1))(a).save(tmp_path / "b", chunks=(1, 20))
    np.testing.assert_array_equal(twice.to_numpy(allow_large=True), np.concatenate([values, values], 1))


def test_casts_travel(processes, tmp_path):
    packed = np.arange(600 * 40, dtype="int16").reshape(600, 40)
    path = tmp_path / "packed"
    zarr.create_array(path, data=packed, chunks=CHUNKS, attributes={"add_offset": 1.0})
    jz.set_memory_budget("100kB")
    with jz.set_executor(processes):
        apart = jz.sum(jz.open(path, decode_cf=True) - jz.open(path, dtype="float32"))
    assert float(apart) == packed.size


def test_scratch_and_run_time_starts_travel(stored, processes):
    with jz.set_executor(processes):
        scratch = jz.tanh(stored).compute()
        assert jz.scratch_usage() >= VALUES.nbytes
        parts = [jz.sum(scratch[start : start + 400]) for start in (7, 190)]
    want = [np.tanh(VALUES[start : start + 400]).sum(dtype="f8") for start in (7, 190)]
    np.testing.assert_allclose(list(map(float, parts)), want, rtol=1e-5)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "store",
    [zarr.storage.MemoryStore, lambda: zarr.storage.FsspecStore.from_url("memory://refused")],
    ids=["dict", "fsspec"],
)
def test_stores_in_memory_are_refused(store, stored, processes):
    a = jz.DiskArray.from_numpy(VALUES, chunks=CHUNKS, path=store())
    with jz.set_executor(processes), jz.io_cost() as cost:
        with pytest.raises(jz.errors.NotPortableError, match=r"memory of this one.*set_executor\(None\)"):
            jz.sum(a * stored).block_until_ready()
        with pytest.raises(jz.errors.NotPortableError, match="memory of this one"):
            stored.update_(a)
    assert cost.blocks_written == 0
    np.testing.assert_array_equal(stored.to_numpy(), VALUES)


def test_nothing_is_saved_where_workers_cannot_write(stored, processes):
    store = zarr.storage.MemoryStore()
    with jz.set_executor(processes), pytest.raises(jz.errors.NotPortableError, match="memory of this one"):
        jz.tanh(stored).save(store)
    assert store._store_dict == {}
    assert jz.tanh(stored).save(store).shape == (600, 40)


def callback(x):
    return jax.pure_callback(lambda v: v + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_pass_of_one_tile_is_computed_here(stored, processes):
    jz.set_memory_budget("1MB")
    with jz.set_executor(processes):
        found = jz.lift(callback)(stored).to_numpy()  # a callback needs its arguments whole
    np.testing.assert_array_equal(found, VALUES + 1)


def test_what_jax_does_not_export_is_refused():
    jaxpr = jax.make_jaxpr(callback)(jnp.ones(4))
    plan = make_plan(jaxpr, (InputSpec((4,), np.dtype("float32"), None),), (OutputSpec(None),), 10_000)
    with pytest.raises(jz.errors.NotPortableError, match=r"jax.export refuses it.*set_executor\(None\)"):
        _ = compiled.compiled(plan.passes[0]).artefacts


def test_forking_executors_and_other_objects_are_refused():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        with pytest.raises(ValueError, match="spawn"):
            jz.set_executor(pool)
    with pytest.raises(TypeError, match="submit"):
        jz.set_executor("processes")


def test_an_executor_is_set_for_a_block_or_for_good(stored):
    with ThreadPoolExecutor(1) as pool:
        recording = Recording(pool)
        with jz.set_executor(recording):
            jz.sum(stored).block_until_ready()
        inside = len(recording.calls)
        jz.sum(stored * 2).block_until_ready()
        assert len(recording.calls) == inside > 0
        jz.set_executor(recording)
        jz.sum(stored * 3).block_until_ready()
        assert len(recording.calls) > inside
        jz.set_executor(None)


# --- what goes wrong there --------------------------------------------------------------------


def test_an_error_in_a_worker_is_the_error_itself(stored, processes):
    folder = path_of(stored)
    chunk = folder / "c" / "17" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    before = sorted(os.listdir(folder))
    with jz.set_executor(processes), pytest.raises(jz.errors.DamagedChunkError, match=r"Chunk \(17, 0\).*a'"):
        stored.update_(jz.tanh(stored))
    assert sorted(os.listdir(path_of(stored))) == before
    np.testing.assert_array_equal(stored[:340].to_numpy(), VALUES[:340])


class TwoPart(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Unreadable:
    """An array that cannot be read, for one reason or another."""

    shape, dtype = (4,), np.dtype("float32")

    def __init__(self, kind, *arguments):
        self.kind, self.arguments = kind, arguments

    def read_box(self, start, stop, out):
        raise self.kind(*self.arguments)


@pytest.mark.parametrize(
    ("source", "kind"), [((ValueError, "one and two"), ValueError), ((TwoPart, "one", "two"), RuntimeError)]
)
def test_an_error_that_does_not_survive_the_way_back_is_told_in_words(source, kind):
    nothing = _compat.exported(lambda *arguments: (), np.zeros(1, "int32"), [], [np.zeros(4, "float32")], [])
    parcel = worker.Parcel(jax.__version__, {(4,): nothing}, (Unreadable(*source),), (False,), (), (), ())
    task = Task((4,), np.zeros(1, "int32"), (((0,), (4,)),), (), ())
    with pytest.raises(kind, match="one and two") as caught:
        worker.perform(f"a parcel for a {kind}", task, pickle.dumps(parcel))
    assert caught.value.__cause__ is None  # some executors follow causes, and one that is its own has no end


class Murderous(Recording):
    """Kills a worker as it hands on the tenth task."""

    def submit(self, function, *arguments):
        if len(self.calls) == 10:
            os.kill(next(iter(self.executor._processes)), signal.SIGKILL)
        return super().submit(function, *arguments)

    def shutdown(self, wait=True):
        self.executor.shutdown(wait)


def test_a_killed_worker_leaves_the_store_as_it_was(stored):
    before = sorted(os.listdir(path_of(stored)))
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool, jz.set_executor(Murderous(pool), workers=1):
        with pytest.raises(jz.errors.WorkerLostError, match="killed"):
            stored.update_(jz.tanh(stored))
    assert sorted(os.listdir(path_of(stored))) == before
    np.testing.assert_array_equal(jz.open(path_of(stored)).to_numpy(), VALUES)
    np.testing.assert_allclose(stored.update_(jz.tanh(stored)).to_numpy(), np.tanh(VALUES), rtol=1e-6)
