"""The runner: the same bits however many tiles are under way, interrupts, errors, memory in processes of their own."""

import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import jask_zarr as jz
from jask_zarr import _compat, errors
from jask_zarr._disk import SpillFile
from jask_zarr._plan import InputSpec, OutputSpec, make_plan
from jask_zarr._plan import tiles as plan_tiles
from jask_zarr._run import run
from jask_zarr._run.buffers import BufferPool

VALUES = np.random.default_rng(0).normal(size=(300, 70)).astype("float32")


def spilled(values, chunks):
    array = SpillFile.create(values.shape, values.dtype, chunks)
    array.write_box((0,) * values.ndim, values)
    return array


def results(function, workers, chunks=(32, 70)):
    jaxpr = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(VALUES.shape, "float32"))
    outputs = tuple(OutputSpec(None) for _ in jaxpr.jaxpr.outvars)
    inputs = (InputSpec(VALUES.shape, VALUES.dtype, chunks),)
    plan = make_plan(jaxpr, inputs, outputs, 1 << 20, workers)
    assert max(p.tiles for p in plan.passes) > 4
    return run(plan, [spilled(VALUES, chunks)], [None] * len(outputs))


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_same_bits_for_any_number_of_workers(workers, monkeypatch):
    monkeypatch.setattr(plan_tiles, "TILE_BYTES", 16_000)

    def function(a):
        return a.sum(), a.T @ a, jnp.sin(a) @ a.T, jax.nn.softmax(a, 0), jnp.argmax(a)

    for got, want in zip(results(function, workers), results(function, 3), strict=True):
        np.testing.assert_array_equal(got, want)


WIDE = np.random.default_rng(1).normal(size=(16, 512)).astype("float32") / 16


def through_a_wide_layer(a, b):
    """What takes 32 times the memory of what it reads."""
    return jnp.sum(jnp.tanh(jnp.tanh(a @ WIDE) @ WIDE.T) * b, 0), jnp.sum(a)


def chunks_of(array, chunks):
    return jz.DiskArray.from_numpy(array, chunks=chunks)


def test_tiles_that_are_parts_of_a_chunk_share_it_decoded():
    """Where whole chunks do not fit three at a time, they are computed with in parts, and still decoded once."""
    jz.set_memory_budget("24MB")
    a, b = np.random.default_rng(2).normal(size=(2, 20_000, 16)).astype("float32")
    on_disk = chunks_of(a, (8192, 16)), chunks_of(b, (2048, 16))
    function = jz.jit(through_a_wide_layer)
    (p,) = [p for p in jz.explain(function, *on_disk).plan.passes if p.streams]
    assert p.tiling.parts[0]
    assert p.tiling.workers == 3
    with jz.io_cost() as cost:
        got = function(*on_disk)
    assert cost.bytes_read == a.nbytes + b.nbytes
    for one, other in zip(got, through_a_wide_layer(a, b), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_parts_of_chunks_give_the_same_bits_for_any_number_of_threads(threads):
    jz.set_memory_budget("24MB")
    a, b = np.random.default_rng(2).normal(size=(2, 20_000, 16)).astype("float32")
    on_disk = chunks_of(a, (8192, 16)), chunks_of(b, (2048, 16))
    want = jz.jit(through_a_wide_layer)(*on_disk)
    with ThreadPoolExecutor(threads) as pool, jz.set_executor(pool):
        got = jz.jit(through_a_wide_layer)(*on_disk)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(st.integers(1, 700), st.integers(40, 300), st.integers(40, 300), st.sampled_from([4, 8, 16])),
    st.integers(100_000, 1_500_000),
    st.sampled_from([1, 3]),
)
def test_parts_of_chunks_give_what_jax_gives(sizes, budget, workers):
    rows, chunk_a, chunk_b, columns = sizes
    a, b = np.random.default_rng(rows).normal(size=(2, rows, 16)).astype("float32")
    stored = spilled(a, (chunk_a, columns)), spilled(b, (chunk_b, 16))
    jaxpr = jax.make_jaxpr(lambda w, a, b: through_a_wide_layer(a, b))(WIDE, a, b)
    jaxpr, consts = _compat.hoist_constants(jaxpr)
    memory = [*consts, WIDE]
    inputs = [InputSpec(np.shape(c), np.asarray(c).dtype, None) for c in memory]
    inputs += [InputSpec(s.shape, s.dtype, s.chunks) for s in stored]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_tiles, "LEAST_TILE_BYTES", 0)
        try:
            plan = make_plan(jaxpr, tuple(inputs), (OutputSpec(None),) * 2, budget, workers)
        except errors.MemoryBudgetError:
            return
    for p in plan.passes:
        event(f"parts of {sum(p.tiling.parts)} of {len(p.streams)} arrays")
    got = run(plan, [*memory, *stored], [None] * 2)
    for one, other in zip(got, through_a_wide_layer(a, b), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-3)


def test_progress_counts_every_tile():
    seen = []
    jaxpr = jax.make_jaxpr(jnp.sum)(jax.ShapeDtypeStruct(VALUES.shape, "float32"))
    plan = make_plan(jaxpr, (InputSpec(VALUES.shape, VALUES.dtype, (10, 7)),), (OutputSpec(None),), 30_000)
    run(plan, [spilled(VALUES, (10, 7))], [None], lambda *event: seen.append(event))
    tiles = plan.passes[0].tiles
    assert [done for _, _, done, _ in seen] == list(range(1, tiles + 1))
    assert tiles > 1


def test_buffers_are_aligned_and_used_again():
    pool = BufferPool()
    first = pool.take((3, 5), np.float32)
    address = first.ctypes.data
    assert address % 64 == 0
    pool.give(first)
    again = pool.take((5, 3), np.int32)
    assert again.ctypes.data == address
    assert pool.take((5, 3), np.int32).ctypes.data != address


def test_kept_results_are_not_overwritten_by_later_tiles():
    a = jz.DiskArray.from_numpy(np.repeat(np.arange(64.0, dtype="float32"), 4096).reshape(64, 4096), chunks=(1, 4096))
    rows = [a[k] for k in range(64)]
    jz.compute(*rows)
    assert [float(row.to_numpy().mean()) for row in rows] == [float(k) for k in range(64)]


def in_a_process(code, *arguments):
    """Run code in a fresh interpreter; its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


INTERRUPTING = """
import itertools, os, pathlib, signal, sys, threading
import jask_zarr as jz, numcodecs, numpy as np

handled = threading.Event()

def handle(*_):
    if not handled.is_set():
        handled.set()
        raise KeyboardInterrupt

def interrupt():
    "A Ctrl-C that has arrived when this returns."
    while not handled.is_set():  # one that comes just before the main thread waits is seen after the wait
        os.kill(os.getpid(), signal.SIGINT)
        handled.wait(0.1)

signal.signal(signal.SIGINT, handle)

class Plain(numcodecs.abc.Codec):
    codec_id = "interrupting"

    def encode(self, buf):
        return buf

    def decode(self, buf, out=None):
        return numcodecs.compat.ndarray_copy(buf, out)

"""

INTERRUPTED = (
    INTERRUPTING
    + """
class Interrupting(Plain):
    "The fortieth chunk that is read comes with a Ctrl-C."
    decoded = itertools.count(1)

    def decode(self, buf, out=None):
        if next(self.decoded) == 40:
            interrupt()
        return super().decode(buf, out)

numcodecs.register_codec(Interrupting)
store = pathlib.Path(sys.argv[1])
options = dict(path=store, zarr_format=2, compressors=Interrupting())
a = jz.DiskArray.from_numpy(np.ones((4096, 256), "float32"), chunks=(32, 256), **options)
jz.set_memory_budget("1MB")
try:
    ACTION
    print("finished")
except KeyboardInterrupt:
    print("interrupted", next(Interrupting.decoded) < 128)
print(float(jz.sum(a)), sorted({p.name.split(".")[-1] for p in store.iterdir()} - {str(k) for k in range(128)}))
"""
)


@pytest.mark.parametrize(
    "action", ["a.update_(jz.tanh(a) + 1)", "jz.sum(jz.softmax(a, axis=0) * a)", "a.save(sys.argv[1] + '.copy')"]
)
def test_an_interrupt_in_the_middle_of_a_pass_leaves_the_array_as_it_was(action, tmp_path):
    out = in_a_process(INTERRUPTED.replace("ACTION", action), tmp_path / "a").splitlines()
    assert out[0] == "interrupted True"
    assert out[1] == f"{4096 * 256.0} ['zarray', 'zattrs']"


INTERRUPTED_IN_PARTS = (
    INTERRUPTING
    + """
from jask_zarr._run import executors

returned = threading.Event()

class Interrupting(Plain):
    "The third chunk that is written comes with a Ctrl-C."
    encoded, late = [], []

    def encode(self, buf):
        self.encoded.append(1)
        if len(self.encoded) == 3:
            interrupt()
        self.late += [1] * returned.is_set()
        return buf

numcodecs.register_codec(Interrupting)
jz.set_memory_budget("200MB")
sorted_ = jz.sort(jz.DiskArray.from_numpy(np.arange(1 << 21, dtype="float32")[::-1].copy(), chunks=(1 << 17,)))
try:
    sorted_.save(sys.argv[1], zarr_format=2, chunks=(1 << 17,), compressors=Interrupting())
    print("finished")
except KeyboardInterrupt:
    returned.set()
    print("interrupted", len(Interrupting.encoded) < 16)
executors._leaves.shutdown(wait=True)
print(len(Interrupting.late))
"""
)


def test_an_interrupt_ends_what_other_threads_write(tmp_path):
    """Of a pass of one tile, whose chunks are written by several threads."""
    assert in_a_process(INTERRUPTED_IN_PARTS, tmp_path / "a").split() == ["interrupted", "True", "0"]


MEASURED = """
import re, sys
import jax, jax.numpy as jnp, optax
import jask_zarr as jz

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1)) * 1024

before = status("VmRSS")
budget = 128_000_000
jz.set_memory_budget(budget)
JOB
print(status("VmHWM") - before, budget)
"""
# Arrays without chunk files: ten times the budget to walk over, nothing to write first.
JOBS = {
    "sum of squares": """
a, b = (jz.full((160_000, 1000), v, chunks=(2000, 1000)) for v in (1.0, 2.0))
assert float(jz.lift(lambda a, b: jnp.sum((a - b) ** 2))(a, b)) == a.size
""",
    "elementwise into a store": """
a = jz.full((160_000, 2000), 1.0, chunks=(1000, 1000))
(jz.tanh(a) * 2).save(sys.argv[1] + "/b", chunks=(1000, 1000))
""",
    "softmax over a split axis": """
a = jz.full((320_000, 1000), 1.0, chunks=(2000, 1000))
assert abs(float(jz.sum(jz.softmax(a, axis=0))) - 1000) < 1
""",
    "training step": """
x = jz.full((5_000_000, 64), 1.0, chunks=(8192, 64))
w = [jnp.ones((64, 128)) / 64, jnp.ones((128, 64)) / 64]
loss = lambda w, x: jnp.mean((jax.nn.relu(x @ w[0]) @ w[1] - x) ** 2)
jz.jit(jax.value_and_grad(loss))(w, x)
""",
    "matmul": """
a = jz.full((8192, 8192), 1.0, chunks=(1024, 1024))
(a @ a).save(sys.argv[1] + "/c", chunks=(1024, 1024))
""",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("job", JOBS)
def test_peak_memory_is_within_the_budget(job, tmp_path):
    out = in_a_process(MEASURED.replace("JOB", JOBS[job]), tmp_path)
    peak, budget = map(int, re.findall(r"\d+", out)[-2:])
    assert peak <= budget * 1.1 + 64_000_000
