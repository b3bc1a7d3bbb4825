"""What compiled functions must get right although Python cannot see inside them."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import jask_zarr as jz
from jask_zarr._tracing import force, handles

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


def on_disk(values: np.ndarray = X, chunks: tuple[int, ...] = (2, 4)) -> Any:
    return jz.DiskArray.from_numpy(values, chunks=chunks)


CLOSED = {
    "a closed-over array": lambda x: jax.jit(lambda s: x),
    "something computed from it": lambda x: jax.jit(lambda s: x * 2.0),
    "its product with a traced number": lambda x: jax.jit(lambda s: x * s),
    "a scalar computed from it": lambda x: jax.jit(lambda s: jz.sum(x) * s),
    "zeros": lambda x: jax.jit(lambda s: jz.zeros((3, 2))),
    "something computed from zeros": lambda x: jax.jit(lambda s: jz.zeros((3, 2)) + 1.0),
    "jax.numpy.zeros_like": lambda x: jax.jit(lambda s: jnp.zeros_like(x)),
}


@pytest.mark.parametrize("make", CLOSED.values(), ids=CLOSED.keys())
def test_what_depends_on_no_traced_array_is_right_at_every_call(make: Callable[..., Any]) -> None:
    compiled = make(on_disk())
    first = np.asarray(compiled(2.0))
    for _ in range(3):
        gc.collect()
        np.testing.assert_array_equal(np.asarray(compiled(2.0)), first)


def test_a_closed_over_array_lives_as_long_as_the_function() -> None:
    gc.collect()
    before = jz.scratch_usage()
    compiled = (lambda x: jax.jit(lambda s: jz.sum(x * s)))(on_disk())
    gc.collect()
    np.testing.assert_allclose(compiled(1.0), X.sum(), rtol=1e-5)
    assert jz.scratch_usage() > before
    del compiled
    jax.clear_caches()
    gc.collect()
    assert jz.scratch_usage() == before


def test_one_trace_for_many_files_chunks_and_numbers(tmp_path: Path) -> None:
    traces = []

    @jax.jit
    def loss(x: Any, rate: Any) -> Any:
        traces.append(1)
        return jz.sum(x * x) * rate

    for k in range(100):
        x = jz.DiskArray.from_numpy(X + k, chunks=(1 + k % 8, 4), path=tmp_path / f"{k}.zarr")
        np.testing.assert_allclose(loss(x, 0.1 * k), ((X + k) ** 2).sum() * (0.1 * k), rtol=1e-5)
    assert len(traces) == 1


def test_lifted_functions_and_plans_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_disk()
    for k in range(3):
        float(jz.sum(x * (1.0 + k)))
    before = len(force._programs)
    for k in range(20):
        float(jz.sum(on_disk(X + k) * (1.0 + k)))
    assert len(force._programs) == before


def test_each_call_gives_a_fresh_array() -> None:
    double = jax.jit(lambda x: x * 2.0)
    first, second = double(on_disk()), double(on_disk(X + 1))
    again = double(on_disk())
    assert first is not again
    np.testing.assert_array_equal(first.to_numpy(), X * 2)
    np.testing.assert_array_equal(second.to_numpy(), (X + 1) * 2)
    np.testing.assert_array_equal(again.to_numpy(), X * 2)


def test_threads_run_one_compiled_function_at_once() -> None:
    gradient = jax.jit(jax.grad(lambda x, s: jz.sum(x * x) * s))
    wrong: list[Any] = []

    def work(k: int) -> None:
        x = on_disk(X + k)
        for _ in range(8):
            found = gradient(x, float(k)).to_numpy()
            if not np.allclose(found, 2 * k * (X + k), rtol=1e-5):
                wrong.append((k, found))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_large_array_in_memory_is_mixed_in() -> None:
    large = np.random.default_rng(1).normal(size=(4, 2000)).astype("float32")
    product = jax.jit(lambda x, w: (jz.sum(jz.square(x @ w)), jz.mean(x @ w), x @ w))
    for _ in range(2):
        total, mean, array = product(on_disk(), jnp.asarray(large))
        np.testing.assert_allclose(total, ((X @ large) ** 2).sum(), rtol=1e-4)
        np.testing.assert_allclose(mean, (X @ large).mean(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(array.to_numpy(), X @ large, rtol=1e-4, atol=1e-5)


def test_a_chain_of_operations_calls_back_once_for_each_result() -> None:
    def loss(w: Any, x: Any) -> Any:
        hidden = jz.tanh(x @ w) * 2.0 - 1.0
        return jz.mean(jz.square(hidden + hidden * hidden))

    w = on_disk(X[:4], (4, 4))
    text = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(w, on_disk()).as_text()
    assert text.count("xla_ffi_python_cpu_callback") == 3


FAILURES = {
    "a scalar": lambda x: jax.jit(jz.sum)(x),
    "an array": lambda x: jax.jit(lambda x: x * 2.0)(x).to_numpy(),
    "a scan": lambda x: jax.lax.scan(lambda c, _: (c + jz.sum(x), None), 0.0, None, length=2),
    "a gradient in memory": lambda x: jax.jit(jax.grad(lambda w, x: jz.sum(x * w)))(jnp.ones(4), x),
}


def test_a_training_step_reads_its_data_once_for_the_loss_and_once_for_all_updates(tmp_path: Path) -> None:
    x = on_disk(np.random.default_rng(1).normal(size=(64, 4)).astype("float32"), (8, 4))
    names = ("scale", "shift", "power")
    params = {n: jz.DiskArray.from_numpy(np.ones(4, "float32"), path=tmp_path / n) for n in names}

    def loss(p: Any, x: Any) -> Any:
        return jz.mean(jz.square(jz.tanh(x * p["scale"] + p["shift"]) * p["power"]))

    @jax.jit
    def step(p: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, x)
        return {n: p[n].update_(p[n] - 0.1 * gradient[n]) for n in names}, value

    with jz.io_cost() as cost:
        params, value = step(params, x)
        jz.compute(params)
    small = 2 * len(names) * 4 * 4
    assert 2 * x.nbytes <= cost.bytes_read <= 2 * x.nbytes + small
    assert float(value) > 0


@pytest.mark.parametrize("call", FAILURES.values(), ids=FAILURES.keys())
def test_the_error_of_a_damaged_chunk_arrives_as_it_was_raised(call: Callable[..., Any], tmp_path: Path) -> None:
    x = jz.DiskArray.from_numpy(X, chunks=(2, 4), path=tmp_path / "x.zarr", compressors="auto")
    for file in (tmp_path / "x.zarr" / "c").rglob("*"):
        if file.is_file():
            file.write_bytes(b"junk")
    with pytest.raises(jz.errors.DamagedChunkError, match=r"x\.zarr"):
        call(x)
    np.testing.assert_allclose(jax.jit(jz.sum)(on_disk()), X.sum(), rtol=1e-5)


WATCHED = """
import os, sys
if hasattr(os, "sched_setaffinity") and sys.argv[1] == "pinned":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, numpy as np, jask_zarr as jz
x = np.random.default_rng(0).normal(size=(512, 600)).astype("float32")
w = jnp.asarray(np.random.default_rng(1).normal(size=(600, 500)).astype("float32"))
disk = jz.DiskArray.from_numpy(x, chunks=(128, 600))
step = jax.jit(jax.value_and_grad(lambda w, x: jz.mean(jz.square(jz.tanh(x @ w)))))
for k in range(5):
    value, gradient = step(w, disk)
    w = w - gradient
loop = jax.jit(lambda x, w: jax.lax.scan(lambda c, _: (c * 0.5, jz.sum(c @ w)), x, None, length=3))
carry, sums = loop(disk, w)
print(float(value), float(jnp.sum(sums)), carry.to_numpy().shape)
"""


IN_THREADS = """
import threading
def work():
    v = w
    for k in range(3):
        v = v - step(v, disk)[1]
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("extra", ["", IN_THREADS], ids=["one thread", "four threads"])
@pytest.mark.parametrize("cores", ["pinned", "all"])
def test_callbacks_that_compute_do_not_hang(cores: str, extra: str) -> None:
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", WATCHED + extra, cores]
    done = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(512, 600)" in done.stdout


def _resources() -> dict[str, int]:
    gc.collect()
    jax.effects_barrier()
    process = psutil.Process()
    return {
        "scratch bytes": jz.scratch_usage(),
        "handles": handles.size(),
        "live arrays": len(force.live_values()),
        "open files": len(process.open_files()),
        "threads": process.num_threads(),
        "programs": len(force._programs),
    }


def _eager_step(w: Any, m: Any, x: Any, rate: float) -> Any:
    m = m * 0.9 + jax.grad(lambda w: jz.mean(jz.square(x @ w)))(w)
    return w.update_(w - m * rate), m


_jitted_step = jax.jit(_eager_step)


def _functional_step(w: Any, m: Any, x: Any, rate: float) -> Any:
    m = m * 0.9 + jax.grad(lambda w: jz.mean(jz.square(x @ w)))(w)
    return w - m * rate, m


_jitted_functional_step = jax.jit(_functional_step)


@pytest.mark.long
@pytest.mark.parametrize("step", [_eager_step, _jitted_step, _functional_step, _jitted_functional_step])
def test_nothing_grows_over_a_thousand_steps(step: Callable[..., Any], tmp_path: Path) -> None:
    x = on_disk(X[:, :2], (4, 2))
    w = jz.DiskArray.from_numpy(np.ones((2, 2), "float32"), chunks=(2, 2), path=tmp_path / "w.zarr")
    m = jz.zeros_like(w)
    expected, momentum = np.ones((2, 2), "float32"), np.zeros((2, 2), "float32")
    seen, memory = [], []
    steps = 1000 if step in (_eager_step, _jitted_step) else 300
    for k in range(1, steps + 1):
        w, m = step(w, m, x, 1e-3)
        momentum = momentum * np.float32(0.9) + X[:, :2].T @ (X[:, :2] @ expected) * (2 / 16)
        expected = expected - momentum * np.float32(1e-3)
        if k in (steps // 2, steps):
            seen.append(_resources())
            memory.append(psutil.Process().memory_info().rss)
    np.testing.assert_allclose(w.to_numpy(), expected, rtol=1e-3)
    np.testing.assert_allclose(m.to_numpy(), momentum, rtol=1e-2, atol=1e-5)
    slack = {"live arrays": 300, "programs": 2, "threads": 2} if step is _functional_step else {"threads": 2}
    for name, count in seen[1].items():
        assert count <= seen[0][name] + slack.get(name, 0), (name, seen)
    assert memory[1] < memory[0] + 30e6, memory
