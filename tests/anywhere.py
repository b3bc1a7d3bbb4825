"""Jobs whose results may not depend on where their tiles are computed.

Each is given a folder of its own. Run as a script, in a process that may
have several devices: ``anywhere.py FOLDER`` prints a line for each job, with the devices that computed tiles.
"""

import hashlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jask_zarr as jz
from jask_zarr._run import compiled

BUDGET = "3MB"
VALUES = np.random.default_rng(0).normal(size=(1200, 300)).astype("float32")
CHUNKS = (100, 150)


def stored(folder):
    return jz.DiskArray.from_numpy(VALUES, chunks=CHUNKS, path=Path(folder, "values"))


def elementwise(folder):
    a = stored(folder)
    return [(jz.tanh(a) * 2 + jz.sqrt(jz.abs(a))).save(Path(folder, "elementwise"))]


def update(folder):
    jz.set_memory_budget("1MB")
    a = stored(folder)
    mean = jz.mean(a, axis=0)
    return [a.update_(a * 0.5 - mean), mean]


def reduction(folder):
    a = stored(folder)
    return [jz.sum(a * a), jz.var(a, axis=0), jz.argmax(a), jz.softmax(a, axis=0)]


def normed(folder):
    """A layer norm along an axis that is split, and its gradient."""
    jz.set_memory_budget("600kB")

    def norm(a):
        return (a - a.mean(0)) * jax.lax.rsqrt(a.var(0) + 1e-3)

    gradient = jax.grad(lambda a: jnp.sum(jnp.sin(norm(a))))
    a = stored(folder)
    return [jz.lift(f)(a) for f in (norm, gradient)]


def contraction(folder):
    a = stored(folder)
    return [a.T @ a, (a @ a.T).save(Path(folder, "product"), chunks=(300, 300))]


def gradient(folder):
    def loss(a, w):
        return jnp.mean(jnp.tanh(a @ w) ** 2)

    return list(jz.lift(jax.grad(loss, (0, 1)))(stored(folder), jnp.full((300, 40), 0.01)))


def operand_in_memory(folder):
    """The operand takes a third of the budget, on every device that computes tiles."""
    w = jnp.linspace(-1.0, 1.0, 1000 * 250, dtype="float32").reshape(1000, 250)
    a = jz.DiskArray.from_numpy(VALUES.reshape(360, 1000), chunks=(20, 1000), path=Path(folder, "values"))
    return [jz.lift(lambda a, w: jnp.sum(jnp.tanh(a @ w)))(a, w)]


def adam(folder):
    a = stored(folder)
    tx = optax.adam(0.01)

    def step(w, state, a):
        value, g = jax.value_and_grad(lambda w: jnp.mean((a @ w - 1.0) ** 2))(w)
        updates, state = tx.update(g, state, w)
        return optax.apply_updates(w, updates), state, value

    w = jz.full((300, 64), 0.1, path=Path(folder, "w"), chunks=(100, 64))
    state, losses = jz.jit(tx.init)(w), []
    run = jz.jit(step, donate_argnums=(0, 1))
    for _ in range(3):
        w, state, loss = run(w, state, a)
        losses.append(loss)
    assert losses[0] > losses[-1]
    return [w, *jax.tree.leaves(state), *losses]


def rows_added(folder):
    """Many to few rows: a tile of the table takes them in rounds."""
    jz.set_memory_budget("1MB")
    numbers = np.random.default_rng(1).integers(0, 1200, 2000) ** 2 // 1200
    loss = jax.grad(lambda a: jnp.sum(jnp.tanh(jnp.take(a, numbers, axis=0))))
    return [jz.lift(loss)(stored(folder)), jz.lift(lambda a: a.at[numbers[:1200]].add(a))(stored(Path(folder, "b")))]


JOBS = [elementwise, update, reduction, normed, contraction, gradient, operand_in_memory, adam, rows_added]


def results(job, folder):
    """What a job gives, as bytes."""
    jz.set_memory_budget(BUDGET)
    return [_bytes(result) for result in job(Path(folder, job.__name__))]


def _bytes(result):
    values = result.to_numpy(allow_large=True) if isinstance(result, jz.DiskArray) else np.asarray(result)
    return values.tobytes()


def digest(found):
    return hashlib.sha256(b"|".join(found)).hexdigest()


def report(name, job, folder):
    compiled._passes.clear()
    found = digest(results(job, folder))
    devices = {device.id for form in compiled._passes.values() for _, device in form.functions}
    print(name, found, ",".join(map(str, sorted(devices))))


if __name__ == "__main__":
    for job in JOBS:
        report(job.__name__, job, sys.argv[1])
    with jax.default_device(jax.local_devices()[-1]):
        report("chosen_device", elementwise, Path(sys.argv[1], "chosen"))
