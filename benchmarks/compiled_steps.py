"""One training step, compiled by `jz.jit` as plain JAX code, and by `jax.jit` with operations of the library.

``python benchmarks/compiled_steps.py`` trains a two-layer network, parameters on disk, both ways in turn, and prints
for each the median time of a step and the bytes it reads.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from models import network

import jask_zarr as jz

FEATURES, HIDDEN, CLASSES, CHUNK = 256, 128, 10, 8192
SHAPES = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
RATE = 0.1


def plain_loss(p: dict[str, Any], x: Any, y: Any) -> Any:
    return network([(p["w1"], p["b1"]), (p["w2"], p["b2"])], x, y)


def library_loss(p: dict[str, Any], x: Any, y: Any) -> Any:
    logits = jz.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return -jz.mean(jz.sum(jz.log_softmax(logits) * jz.one_hot(y, CLASSES), axis=-1))


def planned(p: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    value, gradient = jax.value_and_grad(plain_loss)(p, x, y)
    return {name: p[name] - RATE * gradient[name] for name in p}, value


def compiled(p: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    value, gradient = jax.value_and_grad(library_loss)(p, x, y)
    return {name: p[name].update_(p[name] - RATE * gradient[name]) for name in p}, value


STEPS: dict[str, Callable[..., Any]] = {"jz.jit": jz.jit(planned, donate_argnums=0), "jax.jit": jax.jit(compiled)}


def parameters(folder: str) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    values = {name: (rng.normal(size=shape) / 16).astype("float32") for name, shape in SHAPES.items()}
    return {name: jz.DiskArray.from_numpy(v, path=f"{folder}/{name}", chunks=v.shape) for name, v in values.items()}


def run_step(step: Callable[..., Any], p: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], float, float, int]:
    """New parameters, loss, seconds, bytes read."""
    begin = time.perf_counter()
    with jz.io_cost() as cost:
        p, value = step(p, x, y)
        loss = float(value)
        jz.compute(p)  # what a compiled function has updated is done by now
    return p, loss, time.perf_counter() - begin, cost.bytes_read


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1 << 18)
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    jz.set_memory_budget("256MB")
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        values = rng.normal(size=(given.rows, FEATURES)).astype("float32")
        x = jz.DiskArray.from_numpy(values, path=f"{folder}/x", chunks=(CHUNK, FEATURES))
        labels = rng.integers(0, CLASSES, given.rows).astype("int32")
        y = jz.DiskArray.from_numpy(labels, path=f"{folder}/y", chunks=(CHUNK,))
        params = {name: parameters(f"{folder}/{name}") for name in STEPS}
        seconds: dict[str, list[float]] = {name: [] for name in STEPS}
        for _ in range(1 + given.repeats):
            for name, step in STEPS.items():
                params[name], loss, took, nbytes = run_step(step, params[name], x, y)
                seconds[name].append(took)
                print(f"{name:8} loss {loss:.6f}  {took:.3f} s  {nbytes / 1e6:.1f} MB read")
    for name, times in seconds.items():
        print(f"{name:8} median of {given.repeats}, the first left out: {statistics.median(times[1:]):.3f} s")


if __name__ == "__main__":
    main()
