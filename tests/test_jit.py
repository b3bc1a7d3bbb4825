"""Ops inside `jax.jit`: compiled once, for any files and chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr as jz
from helpers import Op, assert_close, assert_same, check, disk
from table import CORE, OPS


@pytest.mark.parametrize("op", OPS, ids=str)
def test_jit(op: Op) -> None:
    check(op, "jit")


@pytest.mark.parametrize("transformation", ["jit_of_grad", "grad_of_jit"])
@pytest.mark.parametrize("op", [op for op in CORE if op.grad], ids=str)
def test_jit_and_grad(op: Op, transformation: str) -> None:
    check(op, transformation)


VALUES = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)


def test_one_trace_for_any_chunks_and_files() -> None:
    traces = []

    @jax.jit
    def step(a):
        traces.append(a)
        return jz.sum(jz.exp(a), axis=0)

    for grid in ("uneven", "one", "thin", "mixed"):
        assert_same(step(disk(VALUES, grid)), jnp.exp(VALUES).sum(0))
    assert len(traces) == 1


def test_each_call_gives_fresh_arrays() -> None:
    double = jax.jit(lambda a: a * 2)
    first, second = double(disk(VALUES)), double(disk(VALUES + 1))
    assert_close(first, jnp.asarray(VALUES * 2))
    assert_close(second, jnp.asarray((VALUES + 1) * 2))


def test_scalars_and_arrays_leave_together() -> None:
    run = jax.jit(lambda a, s: (jz.mean(a) * s, a * s, {"row": a[1]}))
    got = run(disk(VALUES), 2.0)
    x = jnp.asarray(VALUES)
    assert_same(got, (jnp.mean(x) * 2, x * 2, {"row": x[1]}), 4)


def test_closed_over_arrays() -> None:
    a = disk(VALUES)
    total = jax.jit(lambda s: jz.sum(a) * s)
    for s in (1.0, 3.0):
        np.testing.assert_allclose(total(s), VALUES.sum() * s, rtol=1e-5)


def test_nested_jit() -> None:
    inner = jax.jit(lambda a: jz.tanh(a) * 2)
    got = jax.jit(lambda a: inner(a) + inner(a * 2))(disk(VALUES))
    assert_close(got, jnp.tanh(VALUES) * 2 + jnp.tanh(VALUES * 2) * 2, 4)
