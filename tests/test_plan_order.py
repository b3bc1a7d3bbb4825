"""Many rows added to a table that does not fit: each tile takes its own, in the order in which they come."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jask_zarr as jz

RNG = np.random.default_rng(0)
ROWS, WIDTH, COUNT, CHUNK = 4000, 64, 3000, 100
TABLE = RNG.integers(-9, 9, size=(ROWS, WIDTH)).astype("float32")
UPDATES = RNG.integers(-9, 9, size=(COUNT, WIDTH)).astype("float32")
NUMBERS = {
    "random": RNG.integers(0, ROWS, size=COUNT),
    "repeated": RNG.integers(0, 7, size=COUNT),
    "one": np.full(COUNT, 1234),
    "the last": np.full(COUNT, ROWS - 1),
    "rising": np.arange(COUNT),
    "negative": -1 - RNG.integers(0, ROWS, size=COUNT),
    "out of bounds": RNG.integers(-2 * ROWS, 2 * ROWS, size=COUNT),
    "all out of bounds": np.full(COUNT, 10 * ROWS),
    "unsigned": RNG.integers(0, ROWS, size=COUNT).astype("uint16"),
    "in three dims": RNG.integers(0, ROWS, size=(10, 60, COUNT // 600)),
}
RANDOM = NUMBERS["random"]


@pytest.fixture(autouse=True)
def small_budget():
    jz.set_memory_budget("1MB")


def on_disk(values, chunk=CHUNK, path=None):
    return jz.DiskArray.from_numpy(values, chunks=(chunk, *values.shape[1:]), path=path)


def cases(often, modes):
    """All numbers in all modes on request; by default a few."""
    pairs = ((name, mode) for name in NUMBERS for mode in modes)
    return [pytest.param(*pair, marks=() if pair in often else pytest.mark.soak) for pair in pairs]


def check(function, *arrays):
    """That a function adds in order, and gives what JAX gives."""
    got = jz.lift(function)(*map(on_disk, arrays))
    assert jz.explain(got).plan.program.orders
    want = np.asarray(function(*map(jnp.asarray, arrays)))
    np.testing.assert_allclose(got.to_numpy(allow_large=True), want, rtol=1e-6, atol=1e-4)


def squares(table, numbers=RANDOM, mode="clip"):
    return jnp.sum(jnp.square(jnp.take(table, numbers, axis=0, mode=mode)))


LOOKED_UP = {("repeated", "clip"), ("out of bounds", "fill"), ("in three dims", "wrap")}
ADDED = {("one", "clip"), ("out of bounds", None)}


@pytest.mark.parametrize(("name", "mode"), cases(LOOKED_UP, ("clip", "fill", "wrap")))
def test_the_gradient_of_a_look_up_is_that_of_jax(name, mode):
    check(jax.grad(lambda table: jnp.nansum(jnp.square(jnp.take(table, NUMBERS[name], axis=0, mode=mode)))), TABLE)


@pytest.mark.parametrize(("name", "mode"), cases(ADDED, ("clip", "drop", "promise_in_bounds", None)))
def test_stored_rows_are_added_as_jax_adds_them(name, mode):
    numbers = NUMBERS[name]
    check(
        lambda table, updates: table.at[numbers].add(updates.reshape(*numbers.shape, WIDTH), mode=mode), TABLE, UPDATES
    )


def twice(table):
    """The gradient of the gradient's square."""
    return jax.grad(lambda t: jnp.sum(jnp.square(jax.grad(lambda u: jnp.sum(jnp.take(u, RANDOM, axis=0) ** 3))(t))))(
        table
    )


FUNCTIONS = {
    "computed updates": (lambda t, u: t.at[RANDOM].add(jnp.tanh(u) * 2), (TABLE, UPDATES)),
    "updates from a product": (lambda t, u: t.at[RANDOM].add(u @ u[:WIDTH]), (TABLE, UPDATES)),
    "updates from a scan along the rows": (lambda t, u: t.at[RANDOM].add(jnp.cumsum(u, 1)), (TABLE, UPDATES)),
    "one number for all rows": (lambda t: t.at[RANDOM].add(2.0), (TABLE,)),
    "rows of columns": (lambda t, u: t.T.at[:, RANDOM].add(u.T), (TABLE, UPDATES)),
    "numbers on disk": (lambda t, r: t.at[r].add(1.0), (TABLE, RANDOM.astype("int32"))),
    "a step": (lambda t: t - 0.5 * jax.grad(squares)(t), (TABLE,)),
    "a part of the gradient": (lambda t: jax.grad(squares)(t)[33:3917], (TABLE,)),
    "two look-ups": (jax.grad(lambda t: squares(t) + squares(t, NUMBERS["rising"])), (TABLE,)),
    "two tables": (lambda t, u: jax.grad(lambda a, b: jnp.sum(a[RANDOM] * b[RANDOM]))(t, u), (TABLE, TABLE[::-1])),
    "the sum of the gradient": (lambda t: jnp.sum(jax.grad(squares)(t), 0) + jnp.zeros((4000, 1)), (TABLE,)),
    "second order": (twice, (TABLE,)),
    "integers": (lambda t, u: t.at[RANDOM].add(u), (TABLE.astype("int32"), UPDATES.astype("int32"))),
}  # fmt: skip


OFTEN = ("updates from a product", "two look-ups", "second order")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.soak) for n in FUNCTIONS])
def test_agrees_with_jax(name):
    function, arrays = FUNCTIONS[name]
    check(function, *arrays)


@pytest.mark.parametrize(("rows", "width", "chunk"), [(4000, 64, 7), (4000, 64, 500), (1000, 256, 50)])
def test_agrees_with_jax_whatever_the_chunks(rows, width, chunk):
    table = RNG.normal(size=(rows, width)).astype("float32")
    gradient = jax.grad(lambda t: squares(t, RANDOM % rows))
    got = jz.lift(gradient)(on_disk(table, chunk)).to_numpy(allow_large=True)
    np.testing.assert_allclose(got, gradient(jnp.asarray(table)), rtol=1e-6, atol=1e-4)


def test_a_compiled_step_updates_the_table_in_its_store(tmp_path):
    step = jz.jit(lambda table: table - 0.5 * jax.grad(squares)(table), donate_argnums=0)
    step(on_disk(TABLE, path=tmp_path / "table"))
    want = TABLE - 0.5 * np.asarray(jax.grad(squares)(jnp.asarray(TABLE)))
    np.testing.assert_allclose(jz.open(tmp_path / "table").to_numpy(allow_large=True), want, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_look_ups_gradient_reads_and_writes_each_chunk_once(times, seed, tmp_path):
    table = on_disk(np.tile(TABLE, (times, 1)), path=tmp_path / "table")
    numbers = np.random.default_rng(seed).integers(0, times * ROWS, size=times * COUNT)
    with jz.io_cost() as cost:
        jz.lift(jax.grad(lambda t: squares(t, numbers)))(table).save(tmp_path / "gradient", chunks=table.chunks)
    assert cost.bytes_written == table.nbytes
    chunks_read = cost.bytes_read * len(table) // CHUNK // table.nbytes
    assert len(table) // CHUNK <= chunks_read <= 1.1 * len(table) // CHUNK  # again where many rows belong


@pytest.mark.parametrize("times", [1, 3])
def test_stored_rows_are_read_once_for_scratch_and_once_from_there(times, tmp_path):
    table, updates = (on_disk(np.tile(a, (times, 1)), path=tmp_path / n) for a, n in ((TABLE, "t"), (UPDATES, "u")))
    numbers = RNG.permutation(times * ROWS)[: times * COUNT]
    with jz.io_cost() as cost:
        jz.lift(lambda t, u: t.at[numbers].add(u))(table, updates).save(tmp_path / "sum", chunks=table.chunks)
    assert cost.bytes_read <= 1.1 * (table.nbytes + 2 * updates.nbytes)
    assert cost.bytes_written == table.nbytes + updates.nbytes


def test_numbers_are_not_sorted_where_that_makes_other_passes_read_far_more():
    """Tied embeddings: the table is looked up and multiplied."""
    table, numbers = TABLE[:1000, :16], RANDOM[:600] % 1000

    def loss(t):
        logits = t[numbers[:300]] @ t.T / 81
        return optax.softmax_cross_entropy_with_integer_labels(logits, numbers[300:]).mean()

    jz.set_memory_budget("100kB")
    plan = jz.explain(jax.value_and_grad(loss), on_disk(table, 50)).plan
    assert sum(p.tiling.traffic for p in plan.passes) < 100 * table.nbytes
