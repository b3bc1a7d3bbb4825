"""Updates that are interrupted: all stores of a step are old or all are new, and nothing is left.

The interruptions are real: processes are killed at random moments, disks are full, permissions
are gone. The numbers of runs are cuts; ``-m soak`` runs them in full.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import jask_zarr as jz
from jask_zarr._disk import held, locks

PROGRAM = """if True:
    import os, sys
    import jax, jax.numpy as jnp, numpy as np, optax
    import jask_zarr as jz
    folder, kind, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = {"v3": {}, "v2": {"zarr_format": 2}, "shards": {"shards": (32, 32)}}.get(kind, {})
    def new(name):
        values = np.zeros((64, 64), "f4")
        return jz.DiskArray.from_numpy(values, path=f"{folder}/{name}", chunks=(8, 16), **options)
    optimizer = optax.adam(0.5)
    def adam(w, state):
        updates, state = optimizer.update(jax.grad(jnp.sum)(w), state, w)
        return optax.apply_updates(w, updates), state
    adam = jz.jit(adam, donate_argnums=(0, 1))
    w = new("w")
    if kind == "adam":
        state = (optax.ScaleByAdamState(jnp.zeros([], "int32"), new("mu"), new("nu")), optax.EmptyState())
        step = lambda w, state: adam(w, state)
    elif kind == "over":
        again = dict(path=f"{folder}/w", chunks=(8, 16), overwrite=True)
        state, step = None, lambda w, state: (jz.full((64, 64), number + 1.0).save(**again), state)
    else:
        state, step = None, lambda w, state: (w.update_(w + 1), state)
    for number in range(steps):
        w, state = step(w, state)
        if number == 1:
            print("running", flush=True)
    print("done", flush=True)
"""
KINDS = ["adam", "v3", "v2", "shards"]


def start(folder, kind, steps=10**6):
    command = [sys.executable, "-c", PROGRAM, str(folder), kind, str(steps)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def kill_at_random(folder, kind, seed):
    """Kill a loop of updates; True if that left something to recover."""
    child = start(folder, kind)
    assert child.stdout.readline() == "running\n", child.communicate()[1]
    deadline = time.monotonic() + random.Random(seed).uniform(0, 0.5)
    while time.monotonic() < deadline and child.poll() is None:
        pass
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    return any(name.startswith(locks.PREFIX) for _, _, names in os.walk(folder) for name in names)


def the_one_value(path):
    values = jz.open(path).to_numpy()
    assert values.min() == values.max(), f"two generations in {path}"
    return float(values.flat[0])


def steps_done(folder, kind, seed):
    """The number of updates that the stores have seen, which must be the same for all of them."""
    names = sorted(os.listdir(folder))
    random.Random(seed).shuffle(names)
    found = {name: the_one_value(folder / name) for name in names}
    if kind != "adam":
        return round(found["w"])
    # The gradient is 1 everywhere: after k steps mu is 1 - 0.9**k, nu 1 - 0.999**k, w nearly -0.5 k.
    steps = round(-2 * found["w"])
    assert found["mu"] == pytest.approx(1 - 0.9**steps, rel=1e-5)
    assert found["nu"] == pytest.approx(1 - 0.999**steps, rel=1e-3)
    return steps


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*"))


def check_kill(folder, kind, seed, whole):
    folder.mkdir()
    interrupted = kill_at_random(folder, kind, seed)
    assert steps_done(folder, kind, seed) >= 2
    assert files(folder) == whole[kind]
    shutil.rmtree(folder)
    return interrupted


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of stores that were updated without interruption."""
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        _, problem = (child := start(folder, kind, 3)).communicate(timeout=120)
        assert child.returncode == 0, problem
        assert steps_done(folder, kind, 0) == 3
        found[kind] = files(folder)
    return found


def kill_many(tmp_path, whole, runs, seed):
    with ThreadPoolExecutor(2) as pool:
        kinds = [KINDS[n % 2 and n // 2 % 3 + 1] for n in range(runs)]
        done = pool.map(lambda n: check_kill(tmp_path / str(n), kinds[n], seed + n, whole), range(runs))
        return sum(done)


@pytest.mark.long
def test_killed_at_random_moments_all_stores_are_of_one_step(tmp_path, whole):
    interrupted = kill_many(tmp_path, whole, 20, seed=time.time_ns())
    assert interrupted, "no kill met an update under way"


@pytest.mark.soak
def test_killed_300_times_all_stores_are_of_one_step(tmp_path, whole):
    assert kill_many(tmp_path, whole, 300, seed=time.time_ns()) > 30


def check_kill_while_written_over(folder, seed):
    folder.mkdir()
    kill_at_random(folder, "over", seed)
    assert the_one_value(folder / "w") >= 2
    jz.ones((64, 64)).save(folder / "w", chunks=(8, 16), overwrite=True)
    assert os.listdir(folder) == ["w"]
    assert the_one_value(folder / "w") == 1


@pytest.mark.parametrize("runs", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_while_it_is_written_over_an_array_is_the_old_one_or_the_new_one(tmp_path, runs):
    for number in range(runs):
        check_kill_while_written_over(tmp_path / str(number), seed=time.time_ns())


# --- no room, no permission -----------------------------------------------------------------


def stores(folder, *names):
    values = np.ones((64, 64), "f4")
    return [jz.DiskArray.from_numpy(values, path=folder / n, chunks=(8, 64), compressors=None) for n in names]


@contextmanager
def small_files():
    """No file of this process gets larger than 1000 bytes; the log of the tests may be such a file, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_does_not_fit_leaves_all_stores_of_a_step_old(tmp_path):
    a, b = stores(tmp_path, "a", "b")
    before = files(tmp_path)
    step = jz.jit(lambda a, b: (a + b, a * 3), donate_argnums=(0, 1))
    step(*stores(tmp_path / "warm", "a", "b"))
    shutil.rmtree(tmp_path / "warm")
    with small_files(), pytest.raises(OSError, match="large"):
        step(a, b)
    assert files(tmp_path) == before
    for array in (a, b):
        np.testing.assert_array_equal(array.to_numpy(), 1)


WRITTEN_OVER = {
    "save": lambda x, place: (x + 1).save(place, chunks=(4, 64), compressors=None, overwrite=True),
    "from_numpy": lambda x, place: jz.DiskArray.from_numpy(
        np.ones((32, 32), "f4"), path=place, compressors=None, overwrite=True
    ),
    "rechunk": lambda x, place: jz.rechunk(x, (64, 8), place, compressors=None, overwrite=True),
}


@pytest.mark.parametrize("way", WRITTEN_OVER)
@pytest.mark.parametrize("where", ["old", "link", "group/old"])
def test_what_is_written_over_stays_until_all_of_the_new_is_there(way, where, tmp_path):
    (x,) = stores(tmp_path, "x")
    old, _ = stores(tmp_path, where.replace("link", "old"), "group/other")
    (tmp_path / "link").symlink_to("old")
    before = files(tmp_path)
    with small_files(), pytest.raises(OSError, match="large"):
        WRITTEN_OVER[way](x, tmp_path / where)
    assert files(tmp_path) == before
    np.testing.assert_array_equal(old.to_numpy(), 1)
    new = WRITTEN_OVER[way](x, tmp_path / where)
    assert jz.open(tmp_path / where).chunks == new.chunks != old.chunks
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(jz.errors.StaleArrayError):
        old.to_numpy()


def test_an_array_that_another_process_is_updating_is_not_written_over(tmp_path):
    (a,) = stores(tmp_path, "a")
    with held(tmp_path / "a"), pytest.raises(jz.errors.StoreBusyError):
        jz.zeros((64, 64)).save(tmp_path / "a", overwrite=True)
    np.testing.assert_array_equal(a.to_numpy(), 1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    yield place
    subprocess.run(["mount", "-o", "remount,rw", str(place)], capture_output=True)
    subprocess.run(["umount", "-l", str(place)], check=True)


def train_until_full(filler, step, a, b):
    while True:
        with open(filler, "ab") as file:
            file.write(bytes(8192))
        a, b = step(a, b)


def test_a_full_disk_under_one_store_leaves_all_stores_of_a_step_old(tmp_path, small_disk):
    (a,) = stores(small_disk, "a")
    (b,) = stores(tmp_path, "b")
    (small_disk / "filler").write_bytes(bytes(230_000 - 16 * 4096))
    step = jz.jit(lambda a, b: (a + b, a * 3), donate_argnums=(0, 1))
    with pytest.raises(OSError, match="No space left"):
        train_until_full(small_disk / "filler", step, a, b)
    a, b = jz.open(small_disk / "a"), jz.open(tmp_path / "b")
    assert len({float(a.max()), float(a.min())}) == len({float(b.max()), float(b.min())}) == 1
    left = os.listdir(small_disk / "a") + os.listdir(tmp_path / "b")
    assert not [name for name in left if name.startswith(locks.PREFIX)]


def test_a_disk_that_becomes_read_only_is_an_error_and_the_array_stays(small_disk):
    (a,) = stores(small_disk, "a")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match=r"(?i)read-only|cannot be written"):
        a.update_(a + 1)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    np.testing.assert_array_equal(jz.open(small_disk / "a").to_numpy(), 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_permission_that_is_lost_is_an_error_and_the_array_stays(tmp_path):
    (a,) = stores(tmp_path, "a")
    assert not a.update_(a * 1)._stored.read_only
    a = jz.open(tmp_path / "a")
    before = files(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if len(folder.parts) > 2:
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError, match="a"):
            a.update_(a + 1)
    finally:
        os.seteuid(0)
    np.testing.assert_array_equal(jz.open(tmp_path / "a").to_numpy(), 1)
    assert files(tmp_path) == before


# --- loss of power --------------------------------------------------------------------------


def test_against_loss_of_power_files_are_flushed_before_the_record_and_the_record_before_renames(
    tmp_path, monkeypatch
):  # fmt: skip
    (a,) = stores(tmp_path, "a")
    events = []
    flush, rename = os.fsync, os.replace

    def fsync(file):
        events.append(("flush", os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
        flush(file)

    def replace(old, new):
        events.append(("rename", os.path.basename(new)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    a = a.update_(a + 1)
    assert not [e for e in events if e[0] == "flush"]
    events.clear()
    jz.set_durability("power")
    try:
        a.update_(a + 1)
    finally:
        jz.set_durability("process")
    record = events.index(("rename", ".jask_zarr.record"))
    chunks = [n for n, e in enumerate(events) if e == ("rename", "0")]
    flushed = [e for e in events[:record] if e[0] == "flush" and e[1].endswith("%2F0")]
    assert len(chunks) == 8
    assert min(chunks) > record
    assert len(flushed) == 8
    assert ("flush", "a") in events[:record]
    assert ("flush", ".jask_zarr.record.partial") in events[:record]
    assert [e for e in events[record : min(chunks)] if e[0] == "flush"]
    assert [e for e in events[max(chunks) :] if e[0] == "flush"]


# --- nothing grows --------------------------------------------------------------------------


def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def flat(tmp_path, steps):
    (w,) = stores(tmp_path, "w")
    momentum = jz.zeros((64, 64))
    seen = []
    for number in range(steps):
        momentum = 0.9 * momentum + w
        w = w.update_(w - 1e-3 * momentum)
        if number in (steps // 5, steps - 1):
            seen.append((len(files(tmp_path)), jz.scratch_usage(), len(os.listdir("/proc/self/fd")), memory()))
    first, last = seen
    assert last[0] == first[0]
    assert last[1] <= first[1] + 64 * 64 * 4
    assert last[2] <= first[2] + 2
    assert last[3] <= first[3] + 20e6


def test_many_updates_leave_files_scratch_handles_and_memory_as_they_were(tmp_path):
    flat(tmp_path, 200)


@pytest.mark.soak
def test_20000_updates_leave_files_scratch_handles_and_memory_as_they_were(tmp_path):
    flat(tmp_path, 20_000)
