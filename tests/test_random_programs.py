"""Random programs give on disk, in tiles, what `jax.numpy` gives in memory: values and gradients.

Each is run in one of the ways there are: as eager operations, lifted, or planned as a whole. Float32 sums are taken
in another order in tiles, and some programs magnify what that changes. So where a result differs from that of float32
in memory, both are measured against float64: on disk it may err a few times as much as in memory, and no more.
"""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import jask_zarr as jz
from helpers import REFERENCE, in_memory
from jask_zarr._plan import tiles
from programs import programs

BATCH = 25
CLOSE = 2e-5
"""Of the largest element: a hundred roundings of float32."""
MAGNIFIED = 8
"""How many times the error in memory is allowed where that is larger."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Arrays of a hundred bytes are cut into tiles."""
    monkeypatch.setattr(tiles, "TILE_BYTES", 64)


def loss(program, xp):
    """A scalar that depends on all results, on each in another way."""

    def total(*inputs):
        return reduce(xp.add, [xp.sum(xp.sin(result) * result) for result in program(xp, *inputs)])

    return total


def forward(program, xp):
    return lambda *inputs: program(xp, *inputs)


def gradient(program, xp):
    return jax.grad(loss(program, xp), tuple(range(len(program.shapes))))


WAYS = {
    "eager": lambda wanted, program: wanted(program, jz),
    "lift": lambda wanted, program: jz.lift(wanted(program, REFERENCE)),
    "jit": lambda wanted, program: jz.jit(wanted(program, REFERENCE)),
}


def in_tiles(run, program, budget):
    """In the smallest budget that the planner accepts, within a factor of two."""
    arrays = [jz.DiskArray.from_numpy(v, chunks=c) for v, c in zip(program.inputs(), program.chunks, strict=True)]
    while True:
        jz.set_memory_budget(budget)
        try:
            return [in_memory(result) for result in run(*arrays)]
        except jz.errors.MemoryBudgetError:
            assert budget < 10**7, "no budget is large enough"
            budget *= 2


def error(found, want):
    """The largest difference, as a part of the largest element, or of 0.1 where terms near 1 cancel."""
    found, want = np.asarray(found, "float64"), np.asarray(want, "float64")
    assert found.shape == want.shape
    return np.max(np.abs(found - want), initial=0) / max(np.max(np.abs(want), initial=0), 0.1)


def check(program, wanted, way, budget):
    found = in_tiles(WAYS[way](wanted, program), program, budget)
    plain = jax.jit(wanted(program, REFERENCE))(*map(jnp.asarray, program.inputs()))
    if max(map(error, found, plain), default=0) <= CLOSE:
        return
    with jax.enable_x64(True):
        true = jax.jit(wanted(program, REFERENCE))(*(jnp.asarray(v, "float64") for v in program.inputs()))
    for on_disk, memory, exact in zip(found, plain, true, strict=True):
        assert error(on_disk, exact) <= CLOSE + MAGNIFIED * error(memory, exact)


cases = st.tuples(
    programs(), st.sampled_from([forward, gradient]), st.sampled_from(sorted(WAYS)), st.sampled_from([1000, 8000])
)


@pytest.mark.parametrize("batch", [0, 1, 2, 3, *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 80))])
def test_programs_agree_with_jax(batch):
    @seed(batch)
    @settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def agrees(case):
        check(*case)

    agrees()
    if batch % 4 == 3:
        jax.clear_caches()  # what was compiled for one program is of no use to another


FOUND = {
    "a joined array of which a part is reshaped": lambda a: jnp.concatenate([jnp.reshape(a, (126,)), a[0, :4]]),
    "a slice that ends within a row of what is reshaped": lambda a: jnp.reshape(a, (18, 7))[:9] * 2,
    "and its gradient, of an array joined to itself": jax.grad(
        lambda a: jnp.sum(jnp.sin(jnp.reshape(jnp.concatenate([a[:, :7], a[:, 7:]]), (9, 14))) * a)
    ),
}


@pytest.mark.parametrize("chunks", [(9, 14), (3, 7), (2, 5)])
@pytest.mark.parametrize("name", FOUND)
def test_what_random_programs_have_found(name, chunks):
    values = np.linspace(-1, 1, 9 * 14).reshape(9, 14).astype("float32")
    found = jz.lift(FOUND[name])(jz.DiskArray.from_numpy(values, chunks=chunks))
    np.testing.assert_allclose(found.to_numpy(), FOUND[name](jnp.asarray(values)), rtol=1e-5, atol=1e-6)
