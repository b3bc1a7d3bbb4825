"""Checkpoints: what goes in comes out, anybody can read it, and it never changes or breaks."""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

import jask_zarr as jz
from elsewhere import by_tensorstore
from jask_zarr import errors

VALUES = np.arange(35, dtype="f4").reshape(7, 5)
Point = namedtuple("Point", "x y")


@pytest.fixture
def weights(tmp_path):
    return jz.DiskArray.from_numpy(VALUES, path=tmp_path / "w.zarr", chunks=(3, 2))


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(b)
        if jnp.issubdtype(getattr(a, "dtype", None), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


TREES = {
    "an array": lambda w: w,
    "an expression": lambda w: w * 2 + 1,
    "containers": lambda w: {"a": [w, (w + 1, None)], "b": {}, "c": (), "d": [], "e": None},
    "keys that are numbers": lambda w: {1: w, 10: w * 2, 2: w * 3},
    "names that are no names": lambda w: {"a/b": w, "..": w + 1, "__a": 1, "a b": w + 2, "a_b": w + 3, "": w + 4},
    "a name below another": lambda w: {"a": jnp.ones(2), "a/b": jnp.zeros(2), "b": {"c": 1.5}, "b/c": jnp.ones(1)},
    "scalars": lambda w: [1, -(2**70), 2.5, float("inf"), True, "text", 1 + 2j, np.float32(3), np.int8(4)],
    "in memory": lambda w: [jnp.arange(4), np.arange(4.0), jnp.float32(2), np.zeros((0, 3)), jnp.bfloat16(1.5)],
    "a random key": lambda w: {"key": jax.random.key(7), "raw": jax.random.PRNGKey(8)},
    "a named tuple": lambda w: Point(w, Point(1, w + 1)),
    "an optimizer's state": lambda w: jz.jit(optax.adamw(1e-2).init)({"w": w, "b": jnp.ones(3)}),
}


@pytest.mark.parametrize("name", TREES)
def test_what_goes_in_comes_out(tmp_path, weights, name):
    tree = TREES[name](weights)
    jz.checkpoint(tmp_path / "c", tree)
    same(jz.restore(tmp_path / "c"), tree)
    same(jz.restore(tmp_path / "c", like=tree), tree)


def test_anybody_can_read_it(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", {"layer": {"w": weights, "b": weights[0] * 2}, "step": 3})
    group = zarr.open_group(LocalStore(tmp_path / "c"), mode="r")
    assert sorted(group["layer"].array_keys()) == ["b", "w"]
    np.testing.assert_array_equal(group["layer/w"][...], VALUES)
    np.testing.assert_array_equal(by_tensorstore(tmp_path / "c/layer/b"), VALUES[0] * 2)
    json.loads((tmp_path / "c/zarr.json").read_text())
    np.testing.assert_array_equal(jz.open(tmp_path / "c", path="layer/w").to_numpy(), VALUES)


def test_a_checkpoint_in_another_store(weights):
    store = MemoryStore()
    tree = {"w": weights, "n": 1}
    jz.checkpoint(store, tree)
    same(jz.restore(store), tree)


def test_time_travel_by_transactions(weights):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    commits = []
    for step in range(2):
        session = repository.writable_session("main")
        jz.checkpoint(session.store, {"w": weights + step, "step": step})
        commits.append(session.commit(f"step {step}"))
    for step, commit in enumerate(commits):
        tree = jz.restore(repository.readonly_session(snapshot_id=commit).store)
        assert tree["step"] == step
        np.testing.assert_array_equal(tree["w"].to_numpy(), VALUES + step)


# --- it does not change ---------------------------------------------------------------------


def links(directory):
    return {f.stat().st_nlink for f in Path(directory).rglob("*") if f.is_file() and f.name != "zarr.json"}


def test_chunks_of_a_store_are_linked_and_updates_do_not_reach_them(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", {"w": weights})
    assert links(tmp_path / "c/w") == {2}
    weights = weights.update_(weights * 0)
    assert links(tmp_path / "c/w") == {1}
    zarr.open_array(LocalStore(tmp_path / "w.zarr"), mode="r+")[0, 0] = 9
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")["w"].to_numpy(), VALUES)


@pytest.mark.parametrize("options", [{"zarr_format": 2}, {"path": None}])
def test_what_cannot_be_linked_is_copied(tmp_path, options):
    array = jz.DiskArray.from_numpy(VALUES, **({"path": tmp_path / "a", "chunks": (3, 2)} | options))
    jz.checkpoint(tmp_path / "c", [array])
    assert links(tmp_path / "c/value") | links(tmp_path / "c") == {1}
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")[0].to_numpy(), VALUES)


def test_what_is_done_with_restored_arrays_does_not_reach_the_checkpoint(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", [weights, weights + 1])
    first, second = jz.restore(tmp_path / "c")
    assert float(jz.sum(first.update_(first * 0))) == 0
    step = jz.jit(lambda a: a * 2, donate_argnums=0)
    np.testing.assert_array_equal(step(second).to_numpy(), 2 * VALUES + 2)
    again = jz.restore(tmp_path / "c")
    np.testing.assert_array_equal(again[0].to_numpy(), VALUES)
    np.testing.assert_array_equal(again[1].to_numpy(), VALUES + 1)


def test_training_goes_on_from_a_checkpoint_as_without_one(tmp_path, weights):
    optimizer = optax.adam(1e-1)

    def step(w, state):
        updates, state = optimizer.update(jax.grad(lambda w: jnp.mean((w - 3) ** 2))(w), state, w)
        return optax.apply_updates(w, updates), state

    step, init = jz.jit(step, donate_argnums=(0, 1)), jz.jit(optimizer.init)
    state = (weights, init(weights))
    for _ in range(2):
        state = step(*state)
    jz.checkpoint(tmp_path / "c", state)
    restored = jz.restore(tmp_path / "c")
    for _ in range(2):
        state, restored = step(*state), step(*restored)
    same(restored, state)


# --- replacing one --------------------------------------------------------------------------


def test_a_checkpoint_takes_the_place_of_another(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", {"w": weights, "old": jnp.ones(2)})
    old = jz.restore(tmp_path / "c")
    jz.checkpoint(tmp_path / "c", {"w": weights * 2})
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")["w"].to_numpy(), VALUES * 2)
    assert sorted(os.listdir(tmp_path)) == ["c", "w.zarr"]
    with pytest.raises(errors.StaleArrayError, match="restore it again"):
        old["w"].to_numpy()


def test_a_checkpoint_is_made_of_the_one_it_replaces(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", [weights])
    (array,) = jz.restore(tmp_path / "c")
    jz.checkpoint(tmp_path / "c", [array, array + 1])
    first, second = jz.restore(tmp_path / "c")
    np.testing.assert_array_equal(first.to_numpy(), VALUES)
    np.testing.assert_array_equal(second.to_numpy(), VALUES + 1)


def test_a_link_to_a_checkpoint_stays_one(tmp_path, weights):
    (tmp_path / "latest").symlink_to("c")
    for factor in (1, 2):
        jz.checkpoint(tmp_path / "latest", [weights * factor])
    assert (tmp_path / "latest").is_symlink()
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")[0].to_numpy(), VALUES * 2)
    assert sorted(os.listdir(tmp_path)) == ["c", "latest", "w.zarr"]


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(tmp_path, weights, monkeypatch):
    jz.checkpoint(tmp_path / "c", [np.zeros(2), np.zeros(2)])
    checkpoint = importlib.import_module("jask_zarr.checkpoint")
    leaf = checkpoint._leaf

    def too_late(*args):
        found = leaf(*args)
        monkeypatch.undo()
        jz.checkpoint(tmp_path / "c", [np.ones(2), np.ones(2)])
        return found

    monkeypatch.setattr(checkpoint, "_leaf", too_late)
    first, second = jz.restore(tmp_path / "c")
    assert first.max() == second.max() == 1


@pytest.mark.parametrize("tree", [[object()], [jnp.ones(2), {"a": b"bytes"}], [{1.5: 1}], [np.array(["text"])]])
def test_what_cannot_be_kept_is_refused_and_the_old_one_stays(tmp_path, weights, tree):
    jz.checkpoint(tmp_path / "c", [weights])
    with pytest.raises(TypeError):
        jz.checkpoint(tmp_path / "c", tree)
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")[0].to_numpy(), VALUES)
    assert sorted(os.listdir(tmp_path)) == ["c", "w.zarr"]


def test_a_stale_array_is_not_kept(tmp_path, weights):
    weights.update_(weights + 1)
    with pytest.raises(errors.StaleArrayError):
        jz.checkpoint(tmp_path / "c", [weights])
    assert os.listdir(tmp_path) == ["w.zarr"]


KILLED = """if True:
    import os, signal, sys
    import numpy as np
    import jask_zarr as jz
    folder, stop = sys.argv[1], int(sys.argv[2])
    a = jz.DiskArray.from_numpy(np.full((8, 8), 1, "f4"), path=folder + "/a", chunks=(2, 8))
    if not os.path.exists(folder + "/c"):
        jz.checkpoint(folder + "/c", [a, a + 1, 1])
    count = 0
    def watch(event, args):
        global count
        if event in ("open", "os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir", "ctypes.call_function"):
            count += 1
            if count == stop:
                os.kill(os.getpid(), signal.SIGKILL)
    new = [a * 5, a * 6, 2]
    sys.addaudithook(watch)
    jz.checkpoint(folder + "/c", new)
    print(count)
"""


def killed(folder, stop):
    command = [sys.executable, "-c", KILLED, str(folder), str(stop)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_killed_at_any_moment_the_old_one_or_the_new_one_is_there(tmp_path):
    (tmp_path / "whole").mkdir()
    done = killed(tmp_path / "whole", -1)
    assert done.returncode == 0, done.stderr
    seen = set()
    for stop in np.linspace(1, int(done.stdout), 8).astype(int):
        folder = tmp_path / str(stop)
        folder.mkdir()
        assert killed(folder, stop).returncode == -signal.SIGKILL
        first, second, number = jz.restore(folder / "c")
        seen.add(number)
        assert number in (1, 2)
        expected = {1: (1, 2), 2: (5, 6)}[number]
        np.testing.assert_array_equal(first.to_numpy(), np.full((8, 8), expected[0]))
        np.testing.assert_array_equal(second.to_numpy(), np.full((8, 8), expected[1]))
        assert sorted(os.listdir(folder)) == ["a", "c"]
    assert 1 in seen


def test_where_directories_are_not_exchanged_a_killed_replacement_is_undone(tmp_path, weights, monkeypatch):
    monkeypatch.setattr("jask_zarr._disk.swap._exchange", None)
    jz.checkpoint(tmp_path / "c", [weights])
    jz.checkpoint(tmp_path / "c", [weights + 1])
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")[0].to_numpy(), VALUES + 1)
    host = os.uname().nodename.replace("/", "_")
    os.rename(tmp_path / "c", tmp_path / f".c.jask_zarr-{host}-{2**22 + 5}-1-x.old")
    np.testing.assert_array_equal(jz.restore(tmp_path / "c")[0].to_numpy(), VALUES + 1)


# --- reading others -------------------------------------------------------------------------


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path, weights):
    with pytest.raises(errors.ArrayNotFoundError, match="nowhere"):
        jz.restore(tmp_path / "nowhere")
    with pytest.raises(errors.NotAnArrayError, match=r"no checkpoint|not a checkpoint"):
        jz.restore(tmp_path / "w.zarr")
    zarr.create_group(LocalStore(tmp_path / "g"))
    with pytest.raises(errors.NotAnArrayError, match="not a checkpoint"):
        jz.restore(tmp_path / "g")
    assert sorted(os.listdir(tmp_path)) == ["g", "w.zarr"]


def test_a_tree_of_another_form_is_refused(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", [weights, 1])
    with pytest.raises(errors.ShapeMismatchError, match="2 leaves"):
        jz.restore(tmp_path / "c", like=[weights])
    with pytest.raises(errors.ShapeMismatchError, match=r"\(7, 5\)"):
        jz.restore(tmp_path / "c", like=[jnp.ones(3), 1])


def test_a_file_names_no_code_that_is_run(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", Point(weights, 1))
    text = (tmp_path / "c/zarr.json").read_text()
    for name in ("antigravity:fly", "os:system", "subprocess:Popen", "no.such:Type"):
        (tmp_path / "c/zarr.json").write_text(text.replace(f"{__name__}:Point", name))
        tree = jz.restore(tmp_path / "c")
        assert tree._fields == ("x", "y")
        assert "antigravity" not in sys.modules


def test_members_outside_the_checkpoint_are_not_read(tmp_path, weights):
    jz.checkpoint(tmp_path / "c", [weights])
    text = (tmp_path / "c/zarr.json").read_text()
    (tmp_path / "c/zarr.json").write_text(text.replace('"disk": "0"', '"disk": "../w.zarr"'))
    assert "../w.zarr" in (tmp_path / "c/zarr.json").read_text()
    with pytest.raises(errors.JaskZarrError):
        jz.restore(tmp_path / "c")


def test_a_folder_that_is_not_a_checkpoint_is_not_replaced(tmp_path):
    notes = tmp_path / "run" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("precious")
    w = jz.DiskArray.from_numpy(np.ones(4, "float32"), path=tmp_path / "run" / "w.zarr")
    with pytest.raises(FileExistsError, match="not a checkpoint"):
        jz.checkpoint(tmp_path / "run", {"n": 1})
    assert notes.read_text() == "precious"
    assert w.to_numpy().sum() == 4
    with pytest.raises(FileExistsError, match="not a checkpoint"):
        jz.checkpoint(tmp_path / "run" / "w.zarr", {"n": 1})


PENDING = {
    "random numbers": lambda: jz.random.normal(jax.random.key(0), (1000, 600)),
    "a product": lambda: jz.ones((1000, 400)) @ jz.ones((400, 600)),
    "a transpose": lambda: jz.DiskArray.from_numpy(np.ones((1000, 600), "float32"), chunks=(1, 600)).T,
}


@pytest.mark.parametrize("kind", PENDING)
def test_what_is_pending_is_kept_within_a_budget_in_which_it_can_be_saved(tmp_path, kind):
    jz.set_memory_budget("2.5MB", scratch_dir=tmp_path)
    pending = PENDING[kind]()
    jz.checkpoint(tmp_path / "kept", {"pending": pending})
    restored = jz.restore(tmp_path / "kept")["pending"]
    saved = pending.save(tmp_path / "saved")
    np.testing.assert_array_equal(restored.to_numpy(), saved.to_numpy())
