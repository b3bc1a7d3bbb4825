"""The planner alone: jaxprs and chunk grids in, passes out; no file is opened."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jask_zarr import _compat, errors
from jask_zarr._plan import CHOOSE, InputSpec, OutputSpec, Plan, make_plan

N = 4096
BIG = (N, N)  # 64 MiB of float32
CHUNK = (512, 512)  # 1 MiB
MIB = 1 << 20


def plan(function, shapes, chunks, budget=1 << 30, to=None, dtype="float32") -> Plan:
    """The plan of a function of arrays on disk (in memory where `chunks` has None)."""
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    jaxpr, consts = _compat.hoist_constants(jax.make_jaxpr(function)(*structs))
    inputs = (
        *(InputSpec(np.shape(c), np.asarray(c).dtype, None) for c in consts),
        *(InputSpec(shape, np.dtype(dtype), chunk) for shape, chunk in zip(shapes, chunks, strict=True)),
    )
    outputs = to or (None,) * len(jaxpr.jaxpr.outvars)
    return make_plan(jaxpr, inputs, tuple(OutputSpec(o) for o in outputs), budget)


def traffic(p: Plan) -> float:
    """Bytes read, in arrays of the size of `BIG`."""
    return sum(q.tiling.traffic for q in p.passes) / (64 * MIB)


def loss(a, b):
    return jnp.sum((a - b) ** 2)


def beside_a_look_up(a):
    """Two results, of which one needs rows that must be computed first."""
    rows = jnp.arange(N) * 7 % N
    return jnp.sum(a), jnp.sum(a * jnp.take(jnp.sin(jnp.arange(float(N))), rows)[:, None])


# function, operands on disk, outputs on disk, passes that read, arrays read
ONE_WALK = {
    "elementwise": (lambda a, b: jnp.tanh(a) * b + a, 2, (CHOOSE,), 1, 2),
    "sum": (loss, 2, (None,), 1, 2),
    "gradient": (jax.grad(loss), 2, (CHOOSE,), 1, 2),
    "value and gradients": (jax.value_and_grad(loss, (0, 1)), 2, (None, CHOOSE, CHOOSE), 1, 2),
    "an array used twice": (lambda a: jnp.sum(a * a), 1, (None,), 1, 1),
    "an array and its transpose": (lambda a: a + a.T, 1, (CHOOSE,), 1, 2),
    "sums over both axes": (lambda a: (a.sum(0), a.sum(1), a.max()), 1, (None,) * 3, 1, 1),
    "reshape": (lambda a: a.reshape(N // 4, 4, N) * 2, 1, (CHOOSE,), 1, 1),
    "beside a look-up": (beside_a_look_up, 1, (None, None), 1, 1),
    "a slice": (lambda a: a[: N // 2] * 2, 1, (CHOOSE,), 1, 0.5),
    "reversed": (lambda a: a[::-1] * 2, 1, (CHOOSE,), 1, 1),
    "a slice of the reverse": (lambda a: a[::-1][: N // 4] * 2, 1, (CHOOSE,), 1, 0.25),
    "logistic regression": (lambda a, w: jnp.sum(jax.nn.sigmoid(a @ w)), 1, (None,), 1, 1),
}


@pytest.mark.parametrize("name", ONE_WALK)
def test_one_walk_reads_every_chunk_once(name):
    function, count, to, passes, arrays = ONE_WALK[name]
    vectors = [(N,)] if name == "logistic regression" else []
    p = plan(function, [BIG] * count + vectors, [CHUNK] * count + [None] * len(vectors), to=to)
    reading = [q for q in p.passes if q.streams]
    assert len(reading) == passes
    assert traffic(p) == pytest.approx(arrays)


SPLIT = {
    "softmax over an axis that fits": (lambda a: jax.nn.softmax(a, 1), BIG, 256 * MIB, 1),
    "softmax over an axis that does not": (lambda a: jax.nn.softmax(a, 0), (N * 64, 64), 16 * MIB, 2),
    "minus its mean": (lambda a: a - a.mean(), BIG, 32 * MIB, 2),
    "variance": (lambda a: jnp.var(a), BIG, 32 * MIB, 1),
    "log-sum-exp": (lambda a: jax.nn.logsumexp(a), BIG, 32 * MIB, 1),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_reduction_in_the_middle_ends_a_pass(name):
    function, shape, budget, passes = SPLIT[name]
    to = (None if jax.eval_shape(function, jax.ShapeDtypeStruct(shape, "float32")).ndim == 0 else CHOOSE,)
    p = plan(function, [shape], [(512, min(512, shape[1]))], budget, to=to)
    reading = [q for q in p.passes if q.streams]
    assert len(reading) == passes
    assert all(q.tiling.resident <= budget for q in p.passes)


@pytest.mark.parametrize("budget", [16 * MIB, 32 * MIB, 64 * MIB, 256 * MIB])
@pytest.mark.parametrize("function", [lambda a, b: a @ b, lambda a, b: a.T @ b, lambda a, b: a @ a])
def test_matmul_stays_within_the_budget_and_reads_less_with_more(function, budget):
    p = plan(function, [BIG, BIG], [CHUNK, CHUNK], budget, to=(CHOOSE,))
    assert max(q.tiling.resident for q in p.passes) <= budget
    more = plan(function, [BIG, BIG], [CHUNK, CHUNK], budget * 4, to=(CHOOSE,))
    assert traffic(more) <= traffic(p)


def test_writes_are_whole_chunks_of_the_target():
    p = plan(lambda a: a * 2, [(1000, 1000)], [(300, 70)], 4 * MIB, to=((128, 250),))
    tiles = {loop.size: loop.tile for q in p.passes for loop in q.loops}
    sizes = p.passes[-1].tiling.sizes
    for axis, chunk in zip(p.passes[-1].results[0].index, (128, 250), strict=True):
        assert sizes[axis.label] % chunk == 0 or sizes[axis.label] == 1000
    assert all(tile <= size for size, tile in tiles.items())


@pytest.mark.parametrize("chunks", [(100, 100), (64, 1000), (7, 1000), (1, 1), (1000, 1000)])
def test_chosen_chunks_divide_the_tiles(chunks):
    p = plan(lambda a: jnp.exp(a), [(1000, 1000)], [chunks], 8 * MIB, to=(CHOOSE,))
    sizes = p.passes[-1].tiling.sizes
    for axis, chunk in zip(p.passes[-1].results[0].index, p.output_chunks[0], strict=True):
        assert sizes[axis.label] % chunk == 0 or chunk == 1000


def test_tiny_chunks_are_grouped():
    p = plan(lambda a: jnp.sum(a), [(1 << 20,)], [(1,)])
    assert p.passes[0].tiles < 100


def test_plan_time_does_not_depend_on_the_number_of_chunks():
    few = plan(lambda a: jnp.tanh(a).sum(), [(10**9,)], [(10**5,)])
    many = plan(lambda a: jnp.tanh(a).sum(), [(10**9,)], [(10**3,)])
    assert few.passes[0].tiles == pytest.approx(many.passes[0].tiles, rel=0.5)


def test_same_arguments_same_plan():
    jaxpr = jax.make_jaxpr(jnp.sin)(jax.ShapeDtypeStruct((8,), "float32"))
    spec = (InputSpec((8,), np.dtype("float32"), (4,)),)
    assert make_plan(jaxpr, spec, (OutputSpec(None),), MIB) is make_plan(jaxpr, spec, (OutputSpec(None),), MIB)


def test_what_cannot_fit_names_the_operation_the_line_and_the_numbers():
    with pytest.raises(errors.MemoryBudgetError) as caught:
        plan(lambda a: jnp.sort(a, axis=0), [(1 << 22, 1)], [(4096, 1)], budget=MIB, to=(CHOOSE,))
    text = str(caught.value)
    assert "sort" in text
    assert "test_plan.py:" in text
    assert "16,777,216 bytes" in text
    assert "1,048,576 bytes" in text
    assert "set_memory_budget" in text


def test_a_chunk_larger_than_the_budget_is_refused_before_anything_is_read():
    with pytest.raises(errors.MemoryBudgetError, match="1,048,576"):
        plan(lambda a: a.T @ a, [(1 << 20, 64)], [(1 << 20, 64)], budget=MIB, to=(CHOOSE,))


def network(depth, normalize=lambda x: x):
    def value(weights, x, y):
        for w in weights:
            x = jax.nn.relu(normalize(x @ w))
        return jnp.mean((x - y) ** 2)

    def flat(x, y, *weights):
        return jax.value_and_grad(value)(list(weights), x, y)

    return flat


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_a_training_step_reads_the_data_once(depth):
    shapes = [(1 << 18, 64), (1 << 18, 64), *[(64, 64)] * depth]
    p = plan(network(depth), shapes, [(4096, 64)] * 2 + [None] * depth, 256 * MIB)
    assert len([q for q in p.passes if q.streams]) == 1
    assert traffic(p) == pytest.approx(2.0)


@pytest.mark.parametrize("target", [(N, 64), (64, N), (N, 1), (3, N), (N, N)])
def test_a_target_chunk_as_long_as_a_dim_keeps_the_dim_whole(target):
    p = plan(lambda a: a + 1, [BIG], [CHUNK], 400 * MIB, to=(target,))
    sizes = p.passes[-1].tiling.sizes
    for axis, chunk in zip(p.passes[-1].results[0].index, target, strict=True):
        assert sizes[axis.label] % chunk == 0 or sizes[axis.label] == N


def calls(function):
    """How many calls of Python functions a function makes: work that can be counted, whatever the machine does."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def planning(function, shapes, chunks, to=None, budget=256 * MIB):
    """A function that plans, everything that comes before planning being done."""
    structs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    jaxpr, consts = _compat.hoist_constants(jax.make_jaxpr(function)(*structs))
    inputs = (
        *(InputSpec(np.shape(c), np.asarray(c).dtype, None) for c in consts),
        *(InputSpec(shape, np.dtype("float32"), chunk) for shape, chunk in zip(shapes, chunks, strict=True)),
    )
    outputs = tuple(OutputSpec(o) for o in to or (None,) * len(jaxpr.jaxpr.outvars))
    return lambda: make_plan(jaxpr, inputs, outputs, budget)


def chain(length):
    def function(a, b):
        for n in range(length // 2):
            a = jnp.sin(a) * b if n % 2 else a + b
        return a

    return function


def planning_steps(name, chunk):
    if name == "chain":
        return calls(planning(chain(200), [BIG, BIG], [(chunk, chunk)] * 2, (CHOOSE,)))
    if name == "product":
        return calls(planning(lambda a, b: a @ b.T, [BIG, BIG], [(chunk, chunk)] * 2, (CHOOSE,)))
    shapes = [(1 << 18, 256)] * 2 + [(256, 256)] * 24
    return calls(planning(network(24), shapes, [(chunk, 256)] * 2 + [None] * 24))


@pytest.mark.parametrize("name", ["chain", "product", "network"])
def test_the_steps_of_planning_do_not_grow_with_the_number_of_chunks(name):
    assert planning_steps(name, 4) < 1.5 * planning_steps(name, 1024) + 10_000


def test_the_steps_of_planning_grow_with_the_equations_alone():
    steps = [calls(planning(chain(n), [BIG, BIG], [CHUNK] * 2, (CHOOSE,))) for n in (50, 100, 200)]
    assert steps[2] < 2.5 * steps[1] < 2.5 * 2.5 * steps[0]
    assert steps[2] < 50_000


def normalized(x):
    return (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("stored", [False, True])
def test_the_steps_of_planning_grow_with_the_layers_of_a_network_that_normalizes(stored):
    """Four layers have 170 equations, and 250,000 calls take about 50 ms."""

    def steps(depth):
        shapes = [(1 << 20, 512)] * 2 + [(512, 512)] * depth
        chunks = [(1024, 512)] * 2 + [(512, 512) if stored else None] * depth
        return calls(planning(network(depth, normalized), shapes, chunks))

    few, many = steps(4), steps(12)
    assert few < 140_000
    assert many < 4 * few


def test_a_sort_is_not_done_again_for_each_tile_of_another_result():
    n = 2_500_000
    results = lambda x: (jnp.sort(x), jnp.sum(x), x * 2)  # noqa: E731
    p = plan(results, [(n,)], [(n,)], 40 * MIB, (CHOOSE, None, CHOOSE))
    (sorting,) = [q for q in p.passes if any(step.equation.name == "sort" for step in q.sweep.steps)]
    assert sorting.tiles <= 4


def several(of):
    return lambda x: (of(x), of(x) * 2, of(x) + 1, of(x)[::-1])


@pytest.mark.parametrize("of", [jnp.sort, lambda x: x.reshape(2048, -1).T @ x.reshape(2048, -1), lambda x: x * 2])
def test_results_in_memory_that_share_work_are_computed_together(of):
    p = plan(several(of), [(1 << 22,)], [None])
    assert len(p.passes) == 1


def test_gradients_that_are_divided_by_a_count_at_the_end_are_divided_in_few_passes():
    shapes = [(1 << 20, 512)] * 2 + [(512, 512)] * 24
    p = plan(network(24), shapes, [(1024, 512)] * 2 + [None] * 24, 256 * MIB)
    assert len(p.passes) <= 3


@pytest.mark.parametrize("shape", [(10**6,), (1000, 1000), (10**12,)])
def test_a_million_chunks_are_planned_in_few_steps(shape):
    assert calls(planning(lambda a: jnp.tanh(a).sum(), [shape], [(1,) * len(shape)])) < 20_000


@pytest.mark.parametrize("queries", [1 << 14, 1 << 16])
def test_attention_does_not_go_through_all_keys_for_each_query(queries):
    """Of many queries several at a time go through the keys, also where the keys fit as a whole."""
    shapes, budget = [(queries, 64)] * 3, queries << 10
    p = plan(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, shapes, [(1024, 64)] * 3, budget, (CHOOSE,))
    assert sum(q.tiles for q in p.passes) <= queries // 16
    assert sum(q.tiling.traffic for q in p.passes) <= 150 * queries * 64 * 4


@pytest.mark.parametrize(("count", "chunk", "budget"), [(1 << 18, 8192, 176_000_000), (750_000, 1024, 44_000_000)])
def test_tiles_that_go_by_sorted_rows_are_as_small_as_others(count, chunk, budget):
    """What belongs to a tile of the table is gone through once, however many there are."""
    rows = np.arange(count // 4) * 7 % count
    gradient = jax.grad(lambda t: jnp.sum(jnp.square(jnp.take(t, rows, axis=0))))
    p = plan(gradient, [(count, 256)], [(chunk, 256)], budget, ((chunk, 256),))
    assert p.passes[-1].tiling.workers == 3
    assert p.passes[-1].tiling.traffic == count * 256 * 4


def test_a_deep_network_that_does_not_fit_takes_smaller_tiles_not_more_walks():
    shapes = [(1 << 18, 256)] * 2 + [(256, 256)] * 24
    p = plan(network(24), shapes, [(8192, 256)] * 2 + [None] * 24, 128 * MIB)
    reading = [q for q in p.passes if q.streams]
    assert len(reading) == 1
    assert reading[0].tiling.resident <= 128 * MIB
