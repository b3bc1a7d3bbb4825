"""Where an array may be: each kind of store reads, computes, and updates or refuses clearly."""

import functools
import http.server
import signal
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, ZipStore

import jask_zarr as jz
from jask_zarr import errors

VALUES = np.arange(35, dtype="f4").reshape(7, 5)


def create(store, **options):
    zarr.create_array(store, data=VALUES, chunks=(3, 2), **options)
    return store


def memory(_):
    store = create(MemoryStore())
    return lambda: store


def folder(path):
    create(LocalStore(path / "a"))
    return lambda: path / "a"


def fsspec_memory(path):
    pytest.importorskip("fsspec")
    url = f"memory://{path}"
    create(FsspecStore.from_url(url))
    return lambda: FsspecStore.from_url(url)


def url(path):
    pytest.importorskip("fsspec")
    create(f"memory://{path}/url")
    return lambda: f"memory://{path}/url"


def fsspec_local(path):
    pytest.importorskip("fsspec")
    create(FsspecStore.from_url(f"file://{path}/f", storage_options={"auto_mkdir": True}))
    return lambda: FsspecStore.from_url(f"file://{path}/f", storage_options={"auto_mkdir": True})


def obstore_memory(_):
    store = pytest.importorskip("obstore.store").MemoryStore()
    create(ObjectStore(store))
    return lambda: ObjectStore(store)


def obstore_local(path):
    module = pytest.importorskip("obstore.store")
    create(ObjectStore(module.LocalStore(prefix=path)))
    return lambda: ObjectStore(module.LocalStore(prefix=path))


def icechunk_session(_):
    icechunk = pytest.importorskip("icechunk")
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    create(session.store)
    return lambda: session.store


S3 = """if True:
    import sys
    import boto3
    from moto.server import ThreadedMotoServer
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client("s3", "us-east-1", endpoint_url=address, aws_access_key_id="id", aws_secret_access_key="key")
    client.create_bucket(Bucket="bucket")
    print(address, flush=True)
    sys.stdin.read()
"""


@functools.cache
def s3_address():
    """The address of an object store on this machine, which goes when this process does."""
    pytest.importorskip("moto.server")
    server = subprocess.Popen([sys.executable, "-c", S3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


@pytest.fixture
def s3(monkeypatch):
    """The environment that leads S3 clients to the server."""
    _, address = s3_address()
    settings = {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key", "REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


def bucket_of(path):
    return f"s3://bucket{path}"


def s3_url(path):
    pytest.importorskip("s3fs")
    create(bucket_of(path))
    return lambda: bucket_of(path)


def s3_fsspec(path):
    pytest.importorskip("s3fs")
    create(FsspecStore.from_url(bucket_of(path)))
    return lambda: FsspecStore.from_url(bucket_of(path))


def s3_obstore(path):
    module = pytest.importorskip("obstore.store")
    create(ObjectStore(module.S3Store("bucket", prefix=str(path))))
    return lambda: ObjectStore(module.S3Store("bucket", prefix=str(path)))


LOCAL = [memory, fsspec_memory, url, fsspec_local, obstore_memory, obstore_local, icechunk_session]
REMOTE = [s3_url, s3_fsspec, s3_obstore]


@pytest.fixture(params=[*LOCAL, *REMOTE], ids=lambda kind: kind.__name__)
def store(request, tmp_path):
    """A call that gives the same store, as a new object where the library makes one."""
    if request.param in REMOTE:
        request.getfixturevalue("s3")
    return request.param(tmp_path)


def test_a_store_reads_computes_and_differentiates(store):
    array = jz.open(store())
    np.testing.assert_array_equal(array.to_numpy(), VALUES)
    assert float(jz.sum(array * 2)) == 2 * VALUES.sum()
    np.testing.assert_array_equal(jax.grad(lambda x: jz.sum(x**2))(array).to_numpy(), 2 * VALUES)


def test_a_store_is_updated_and_read_by_others(store):
    array = jz.open(store())
    pending = array + 1
    updated = array.update_(array[::-1] * 2)
    np.testing.assert_array_equal(updated.to_numpy(), VALUES[::-1] * 2)
    np.testing.assert_array_equal(np.asarray(zarr.open_array(store(), mode="r")[...]), VALUES[::-1] * 2)
    np.testing.assert_array_equal(pending.to_numpy(), VALUES + 1)


def test_a_store_opened_twice_is_one_store(store):
    first, second = jz.open(store()), jz.open(store())
    first.update_(first * 0)
    with pytest.raises(errors.StaleArrayError):
        second.to_numpy()


@pytest.mark.parametrize("second", ["the same array", "another opening"])
@pytest.mark.parametrize("kind", [memory, folder], ids=lambda kind: kind.__name__)
def test_a_store_that_is_donated_twice_is_said_to_be_one(tmp_path, kind, second):
    store = kind(tmp_path)
    a = jz.open(store())
    b = a if second == "the same array" else jz.open(store())
    with pytest.raises(ValueError, match="two of the donated arguments are"):
        jz.jit(lambda a, b: (a + 1, b + 2), donate_argnums=(0, 1))(a, b)
    np.testing.assert_array_equal(a.to_numpy(), VALUES)
    total, plus = jz.jit(lambda a, b: (a + b, b + 2), donate_argnums=0)(a, b)
    np.testing.assert_array_equal(total.to_numpy(), 2 * VALUES)
    np.testing.assert_array_equal(plus.to_numpy(), VALUES + 2)


def test_a_failed_computation_leaves_the_store_as_it_was(store):
    array = jz.open(store())
    jz.set_memory_budget("10kB")
    with pytest.raises(errors.MemoryBudgetError):
        array.update_(array + jz.sum(jz.full((10**6, 5), 1.0).sort(axis=0)[0]))
    np.testing.assert_array_equal(jz.open(store()).to_numpy(), VALUES)


def test_donated_stores_of_different_kinds_receive_their_values(tmp_path):
    create(LocalStore(tmp_path / "a"))
    arrays = [jz.open(tmp_path / "a"), jz.open(create(MemoryStore()))]
    step = jz.jit(lambda a, b: (a + b, a - b), donate_argnums=(0, 1))
    total, difference = step(*arrays)
    np.testing.assert_array_equal(total.to_numpy(), 2 * VALUES)
    np.testing.assert_array_equal(difference.to_numpy(), 0 * VALUES)


UPDATES = """if True:
    import sys
    import jask_zarr as jz
    array = jz.open(sys.argv[1])
    while True:
        array = array.update_(array + 1)
        print("updated", flush=True)
"""


@pytest.mark.usefixtures("s3")
def test_each_chunk_in_a_bucket_is_replaced_whole_when_the_updater_is_killed(tmp_path):
    store = s3_fsspec(tmp_path)()
    zarr.create_array(store, shape=(4, 64), chunks=(1, 8), dtype="f4", fill_value=0, overwrite=True)
    with subprocess.Popen([sys.executable, "-c", UPDATES, bucket_of(tmp_path)], stdout=subprocess.PIPE) as child:
        for _ in range(3):
            assert child.stdout.readline() == b"updated\n"
        child.send_signal(signal.SIGKILL)
    values = zarr.open_array(store, mode="r")[...].reshape(4, 8, 8)
    assert (values.min(axis=2) == values.max(axis=2)).all(), "a chunk of two generations"
    assert values.min() >= 3
    assert values.max() - values.min() <= 1
    again = jz.open(bucket_of(tmp_path))
    np.testing.assert_array_equal(again.update_(again * 0 + 7).to_numpy(), 7)


# --- stores that are only read --------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, says nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """A web server for a directory: its address, and the directory."""
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()


def on_the_web(web):
    pytest.importorskip("aiohttp")
    create(LocalStore(web[1] / "a.zarr"))
    return f"{web[0]}/a.zarr"


def on_the_web_by_obstore(web):
    module = pytest.importorskip("obstore.store")
    create(LocalStore(web[1] / "a.zarr"))
    options = {"allow_http": True}
    return ObjectStore(module.HTTPStore(f"{web[0]}/a.zarr", client_options=options), read_only=False)


def in_a_zip(web):
    with ZipStore(web[1] / "a.zip", mode="w") as store:
        create(store)
    return web[1] / "a.zip"


def read_only_session(_):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    create(session.store)
    session.commit("first")
    return repository.readonly_session("main").store


READ_ONLY = [on_the_web, on_the_web_by_obstore, in_a_zip, read_only_session]


@pytest.mark.parametrize("kind", READ_ONLY, ids=lambda kind: kind.__name__)
def test_a_store_that_cannot_be_written_is_read_and_refuses_updates_at_once(web, kind):
    array = jz.open(kind(web))
    assert float(jz.sum(array)) == VALUES.sum()
    with pytest.raises(errors.ReadOnlyStoreError, match=r"save\(path\)"):
        array.update_(array + 1)
    np.testing.assert_array_equal(array.to_numpy(), VALUES)


def test_what_is_not_on_the_web_is_not_found(web):
    with pytest.raises(errors.ArrayNotFoundError, match=r"b\.zarr"):
        jz.open(on_the_web(web).replace("a.zarr", "b.zarr"))


# --- transactions ---------------------------------------------------------------------------


def test_an_update_belongs_to_the_sessions_transaction():
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    create(session.store, name="x")
    first = session.commit("first")
    session = repository.writable_session("main")
    array = jz.open(session.store, path="x")
    array.update_(array + 1)
    np.testing.assert_array_equal(jz.open(repository.readonly_session("main").store, path="x").to_numpy(), VALUES)
    session.commit("second")
    np.testing.assert_array_equal(jz.open(repository.readonly_session("main").store, path="x").to_numpy(), VALUES + 1)
    old = repository.readonly_session(snapshot_id=first).store
    np.testing.assert_array_equal(jz.open(old, path="x").to_numpy(), VALUES)


def test_an_abandoned_transaction_leaves_nothing():
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    create(session.store, name="x")
    session.commit("first")
    session = repository.writable_session("main")
    array = jz.open(session.store, path="x")
    array.update_(array + 1)
    session.discard_changes()
    np.testing.assert_array_equal(jz.open(repository.readonly_session("main").store, path="x").to_numpy(), VALUES)
