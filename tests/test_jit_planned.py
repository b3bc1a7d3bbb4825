"""`jz.jit`: plain JAX and optax steps, planned as a whole, against the same step in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jask_zarr as jz

ROWS, FEATURES, HIDDEN, CLASSES = 96, 8, 6, 3
CHUNKS = {"w1": (3, 4), "w2": (4, 3)}
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "adamw": lambda: optax.adamw(0.05, weight_decay=0.1),
    "lion": lambda: optax.lion(0.01),
    "clipped chain": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.05)),
    "schedule": lambda: optax.adam(optax.cosine_decay_schedule(0.1, 20)),
}


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def data():
    rng = np.random.default_rng(1)
    return rng.normal(size=(ROWS, FEATURES)).astype("float32"), rng.integers(CLASSES, size=ROWS).astype("int32")


def loss(params, x, y):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def step_of(tx):
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def on_disk(params, folder):
    """Matrices in stores, biases in memory."""
    return {
        name: jz.DiskArray.from_numpy(values, chunks=CHUNKS[name], path=folder / name)
        if name in CHUNKS
        else jnp.asarray(values)
        for name, values in params.items()
    }


def stored_data():
    x, y = data()
    return jz.DiskArray.from_numpy(x, chunks=(10, 5)), jz.DiskArray.from_numpy(y, chunks=(7,))


def dense(tree):
    return jax.tree.map(lambda leaf: leaf.to_numpy() if isinstance(leaf, jz.DiskArray) else np.asarray(leaf), tree)


def assert_close(tree, reference, tolerance=2e-4):
    leaves, expected = jax.tree.leaves(dense(tree)), jax.tree.leaves(reference)
    for got, want in zip(leaves, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("budget", ["100MB", 20_000])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_training_in_memory(name, budget, tmp_path):
    tx = OPTIMIZERS[name]()
    params, (x, y) = on_disk(parameters(), tmp_path), stored_data()
    reference = jax.tree.map(jnp.asarray, parameters())
    jz.set_memory_budget(budget)
    state, reference_state = jz.jit(tx.init)(params), tx.init(reference)
    step, plain = jz.jit(step_of(tx), donate_argnums=(0, 1)), jax.jit(step_of(tx))
    for _ in range(4):
        params, state, value = step(params, state, x, y)
        reference, reference_state, expected = plain(reference, reference_state, *map(jnp.asarray, data()))
        assert float(value) == pytest.approx(float(expected), rel=1e-4)
    assert_close((params, state), (reference, reference_state))
    reopened = {name: jz.open(tmp_path / name).to_numpy() for name in CHUNKS}
    assert_close(reopened, {name: reference[name] for name in CHUNKS})


def test_state_of_arrays_on_disk_is_on_disk(tmp_path):
    state = jz.jit(optax.adam(0.1).init)(on_disk(parameters(), tmp_path))
    assert isinstance(state[0].mu["w1"], jz.DiskArray)
    assert isinstance(state[0].mu["b1"], jax.Array)
    assert isinstance(state[0].count, jax.Array)


def test_donated_stores_are_replaced_and_the_old_arrays_stale(tmp_path):
    old = jz.DiskArray.from_numpy(np.arange(6, dtype="float32"), chunks=(2,), path=tmp_path / "w")
    new = jz.jit(lambda w: w * 2, donate_argnums=0)(old)
    assert jz.open(tmp_path / "w").to_numpy().tolist() == new.to_numpy().tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(jz.errors.StaleArrayError, match="update_"):
        old.to_numpy()


def test_donated_arrays_may_swap(tmp_path):
    a, b = (jz.DiskArray.from_numpy(np.full(4, k, "float32"), chunks=(2,), path=tmp_path / str(k)) for k in (1, 2))
    a, b = jz.jit(lambda a, b: (b, a), donate_argnums=(0, 1))(a, b)
    assert a.to_numpy().tolist() == [2.0] * 4
    assert b.to_numpy().tolist() == [1.0] * 4
    assert jz.open(tmp_path / "1").to_numpy().tolist() == [2.0] * 4


def test_an_unchanged_donated_array_keeps_its_store(tmp_path):
    a = jz.DiskArray.from_numpy(np.ones(4, "float32"), chunks=(2,), path=tmp_path / "a")
    with jz.io_cost() as cost:
        a, _ = jz.jit(lambda a: (a, a.sum()), donate_argnums=0)(a)
    assert cost.blocks_written == 0
    assert a.to_numpy().tolist() == [1.0] * 4


def test_without_donation_nothing_is_replaced(tmp_path):
    a = jz.DiskArray.from_numpy(np.ones(4, "float32"), chunks=(2,), path=tmp_path / "a")
    b = jz.jit(lambda a: a + 1)(a)
    assert isinstance(b, jz.DiskArray)
    assert (a.to_numpy().tolist(), b.to_numpy().tolist()) == ([1.0] * 4, [2.0] * 4)


@pytest.mark.parametrize(
    ("function", "disk"),
    [
        (lambda a: a.sum(), False),
        (lambda a: a.sum(0), False),
        (lambda a: a * 2, True),
        (lambda a: jnp.zeros((300, 300)), True),
    ],
)
def test_where_outputs_go(function, disk):
    jz.set_memory_budget("1MB")
    a = jz.DiskArray.from_numpy(np.ones((6, 4), "float32"), chunks=(2, 2))
    assert isinstance(jz.jit(function)(a), jz.DiskArray) == disk
    assert isinstance(jz.jit(function, out_on_disk=False)(a), jax.Array)


def test_the_data_is_read_once_for_value_and_gradient():
    x, y = stored_data()
    params = jax.tree.map(jnp.asarray, parameters())
    with jz.io_cost() as cost:
        jz.jit(jax.value_and_grad(loss))(params, x, y)
    assert cost.bytes_read == x.nbytes + y.nbytes
    assert cost.blocks_read == 10 * 2 + 14


def test_an_adam_step_reads_the_data_at_most_twice_and_each_parameter_once_each_way(tmp_path):
    tx = optax.adam(0.1)
    params, (x, y) = on_disk(parameters(), tmp_path), stored_data()
    state = jz.jit(tx.init)(params)
    matrices = sum(params[name].nbytes for name in CHUNKS)
    with jz.io_cost() as cost:
        jz.jit(step_of(tx), donate_argnums=(0, 1))(params, state, x, y)
    assert cost.bytes_read <= 2 * (x.nbytes + y.nbytes) + 2 * matrices
    assert cost.bytes_written == matrices


def test_traced_once_planned_once(tmp_path):
    traces = []

    def step(w, x):
        traces.append(1)
        return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    planned = jz.jit(step, donate_argnums=0)
    for k in range(3):
        w = jz.DiskArray.from_numpy(np.ones((4, 2), "float32"), chunks=(2, 2), path=tmp_path / f"w{k}")
        x = jz.DiskArray.from_numpy(np.ones((6, 4), "float32"), chunks=(2, 2), path=tmp_path / f"x{k}")
        for _ in range(3):
            w = planned(w, x)
    assert len(traces) == 1


def test_closed_over_arrays_and_jz_operations_work_inside():
    x = jz.DiskArray.from_numpy(np.arange(12, dtype="float32").reshape(6, 2), chunks=(2, 2))
    value = jz.jit(lambda w: jz.sum(jz.tanh(x @ w)))(jnp.ones((2, 3)))
    assert float(value) == pytest.approx(float(jnp.tanh(x.to_numpy() @ np.ones((2, 3))).sum()), rel=1e-5)


def test_static_arguments_and_pytrees():
    a = jz.DiskArray.from_numpy(np.arange(6, dtype="float32").reshape(2, 3), chunks=(1, 3))
    total = jz.jit(lambda tree, axis: {"sum": tree["a"].sum(axis)}, static_argnums=1)
    assert total({"a": a}, 0)["sum"].tolist() == [3, 5, 7]
    assert total({"a": a}, 1)["sum"].tolist() == [3, 12]


def test_under_transformations_it_is_an_operation():
    a = jz.DiskArray.from_numpy(np.arange(6, dtype="float32"), chunks=(2,))
    planned = jz.jit(lambda a: jnp.sum(a**2))
    assert jax.grad(planned)(a).to_numpy().tolist() == [0, 2, 4, 6, 8, 10]
    assert float(jax.jit(planned)(a)) == 55


def test_an_error_leaves_all_donated_stores_as_they_were(tmp_path):
    a = jz.DiskArray.from_numpy(np.ones(4, "float32"), chunks=(2,), path=tmp_path / "a")
    big = jz.DiskArray.from_numpy(np.full(4, 2**30, "int32"), chunks=(2,))
    with pytest.raises(jz.errors.IntegerOverflowError):
        jz.jit(lambda a, n: (a * 2, n.sum()), donate_argnums=0)(a, big)
    assert a.to_numpy().tolist() == [1.0] * 4
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["c", "zarr.json"]


def test_an_unchanged_output_that_is_not_donated_is_a_copy(tmp_path):
    a = jz.DiskArray.from_numpy(np.ones(6, "float32"), chunks=(2,), path=tmp_path / "a")
    average = jz.jit(lambda p: {"average": p})(a)["average"]
    new, average = jz.jit(lambda p, q: (p * 3, q), donate_argnums=(0, 1))(a, average)
    assert (new.to_numpy().tolist(), average.to_numpy().tolist()) == ([3.0] * 6, [1.0] * 6)
    assert jz.open(tmp_path / "a").to_numpy().tolist() == [3.0] * 6


def test_the_old_value_may_be_returned_beside_the_new_one(tmp_path):
    a = jz.DiskArray.from_numpy(np.ones(6, "float32"), chunks=(2,), path=tmp_path / "a")
    new, old = jz.jit(lambda a: (a * 2, a), donate_argnums=0)(a)
    assert (new.to_numpy().tolist(), old.to_numpy().tolist()) == ([2.0] * 6, [1.0] * 6)


def test_lbfgs_state_keeps_the_old_parameters(tmp_path):
    tx = optax.scale_by_lbfgs(memory_size=2)
    w = jz.DiskArray.from_numpy(np.arange(1.0, 7, dtype="float32"), chunks=(2,), path=tmp_path / "w")
    reference = jnp.arange(1.0, 7)

    def step(w, state):
        updates, state = tx.update(jax.grad(lambda w: jnp.sum(w**4))(w), state, w)
        return w - 0.01 * updates, state

    state, reference_state = jz.jit(tx.init)(w), tx.init(reference)
    planned = jz.jit(step, donate_argnums=(0, 1))
    for _ in range(4):
        w, state = planned(w, state)
        reference, reference_state = jax.jit(step)(reference, reference_state)
    np.testing.assert_allclose(w.to_numpy(), reference, rtol=1e-4)


@pytest.mark.parametrize("key", [jax.random.key(1), jax.random.PRNGKey(1), jax.random.key(1, impl="rbg")])
def test_random_keys_are_arguments(key):
    a = jz.DiskArray.from_numpy(np.ones((6, 4), "float32"), chunks=(2, 3))
    noisy = jz.jit(lambda a, key: a + jax.random.normal(key, a.shape))(a, key)
    np.testing.assert_allclose(noisy.to_numpy(), 1 + jax.random.normal(key, (6, 4)), rtol=1e-5, atol=1e-6)
