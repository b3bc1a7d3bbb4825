"""Damaged and hostile metadata: an error of ours or a right read, and nothing outside the store.

Mutations of ``zarr.json``, ``.zarray`` and ``.zattrs``, in their JSON and in their bytes. What is
read is what plain zarr reads. The number of mutations is a cut, always the same; ``-m soak`` runs
5,000 that are others each time.
"""

import copy
import json
import os
import random
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec
from zarr.storage import LocalStore

import jask_zarr as jz
from elsewhere import by_zarr
from jask_zarr import errors

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform == "win32", reason="uses an alarm"),
]
VALUES = np.arange(35, dtype="f4").reshape(7, 5)
STORES = {
    "v3": {"compressors": BloscCodec(cname="lz4")},
    "v3 shards": {"shards": (6, 4), "filters": TransposeCodec(order=(1, 0)), "compressors": Crc32cCodec()},
    "v2": {"zarr_format": 2, "filters": [numcodecs.Delta("<f4")], "compressors": numcodecs.GZip(1)},
    "v2 F": {"zarr_format": 2, "order": "F", "compressors": None, "fill_value": None},
}
HOSTILE = [
    None, True, False, -1, 0, 1, 2, 3, 7, 2**31, 2**63, 2**64, 10**30, -(2**70), 0.5, float("nan"), 1e308,
    "", ".", "..", "/", "../../../outside", "/outside", "NaN", "Infinity", "0x7fc00000", "\0", "x" * 5000, "é",
    [], [0], [-1, 5], [7, 5, 1], [[7], [5]], {}, {"name": "default"}, {"id": "pickle"}, {"name": "numcodecs.pickle"},
    "<f8", "|O", "<M8[s]", "float64", "int8", "bfloat16", "string", "group", "array", "gzip", "zstd", "pickle", 99,
]  # fmt: skip


def places(node, way=()):
    """Ways to all values of a document."""
    yield way
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*way, key))


def mutated(data, chance):
    """The bytes of a metadata file, changed in some way."""
    if chance.random() < 0.25:
        return mutated_bytes(bytearray(data), chance)
    document = copy.deepcopy(json.loads(data))
    for _ in range(chance.choice((1, 1, 2))):
        change(document, chance)
    return json.dumps(document).encode()


def mutated_bytes(data, chance):
    at = chance.randrange(len(data))
    kind = chance.randrange(4)
    if kind == 0:
        data[at] = chance.randrange(256)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = chance.choice((b"[" * 3000, b"\xff\xfe", b"9" * 30, b'"', b","))
    else:
        del data[at : at + chance.randrange(1, 9)]
    return bytes(data)


def change(document, chance):
    found = [way for way in places(document) if way]
    if not found:
        return
    *way, last = chance.choice(found)
    node = document
    for key in way:
        node = node[key]
    kind = chance.randrange(4)
    if kind == 0:
        del node[last]
    elif kind == 1 and isinstance(node[last], int):
        node[last] += chance.choice((-1, 1, 10**9))
    elif kind == 2 and isinstance(node, list):
        node.insert(last, copy.deepcopy(node[last]))
    else:
        node[last] = copy.deepcopy(chance.choice(HOSTILE))


@contextmanager
def watched(store, scratch):
    """Refuse, loudly, to take long and to write outside the store and the scratch directory."""
    outside = []

    def alarm(*_):
        raise AssertionError("took more than ten seconds")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(10)
    _writes.append((outside, (str(store), str(scratch), "/dev/", "/proc/")))
    try:
        yield
    finally:
        _writes.pop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert outside == []


_writes = []
_hooked = []


def _hook(event, arguments):
    if not _writes or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink"):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    if event == "os.remove" and arguments[1] != -1:
        return  # relative to a folder that is open
    found, allowed = _writes[-1]
    path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
    if isinstance(path, str | bytes | os.PathLike) and not os.path.realpath(os.fsdecode(path)).startswith(allowed):
        found.append((event, path))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    folder = tmp_path_factory.mktemp("originals")
    for name, options in STORES.items():
        array = zarr.create_array(LocalStore(folder / name), shape=(7, 5), chunks=(3, 2), dtype="f4", **options)
        array[...] = VALUES
        array.attrs["scale_factor"] = 0.5
    return folder


def fuzz(originals, tmp_path, count, seed):
    chance = random.Random(seed)
    read = 0
    jz.set_memory_budget("1MB", scratch_dir=tmp_path / "scratch")
    for number in range(count):
        store = tmp_path / "here" / "store"
        shutil.copytree(originals / chance.choice(list(STORES)), store)
        file = chance.choice([f for f in store.iterdir() if f.name in ("zarr.json", ".zarray", ".zattrs")])
        file.write_bytes(data := mutated(file.read_bytes(), chance))
        try:
            with watched(store, tmp_path / "scratch"):
                read += reads_right(store)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, mutation {number} of {file.name}: {data[:3000]!r}") from error
        shutil.rmtree(tmp_path / "here")
    assert sorted(os.listdir(tmp_path)) == ["scratch"]
    return read


def reads_right(store):
    """Whether the store can be read; then what is read is right, and so is what is updated."""
    try:
        array = jz.open(store)
        values = array.to_numpy()
    except errors.JaskZarrError:
        return False
    np.testing.assert_array_equal(values, by_zarr(store))
    try:
        jz.open(store, decode_cf=True)
        updated = array.update_(array * 0)
    except errors.JaskZarrError:
        np.testing.assert_array_equal(by_zarr(store), values)
        return True
    np.testing.assert_array_equal(updated.to_numpy(), by_zarr(store))
    return True


def test_mutated_metadata_is_refused_or_read_right(originals, tmp_path):
    assert 5 < fuzz(originals, tmp_path, 300, seed=300) < 290


@pytest.mark.soak
def test_metadata_mutated_5000_times_is_refused_or_read_right(originals, tmp_path):
    assert fuzz(originals, tmp_path, 5000, seed=random.randrange(2**32))


# --- paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "..", "a/./../../outside", "../store/../outside"])
def test_paths_do_not_lead_out_of_a_store(tmp_path, path):
    for name in ("store/a", "outside"):
        zarr.create_array(LocalStore(tmp_path / name), shape=(2,), dtype="f4")
    with pytest.raises((errors.JaskZarrError, ValueError)):
        jz.open(tmp_path / "store", path=path)
    with pytest.raises((errors.JaskZarrError, ValueError)):
        jz.BlockedArray.create(tmp_path / "store", (2,), "f4", path=path)
    assert sorted(os.listdir(tmp_path)) == ["outside", "store"]


@pytest.mark.parametrize("separator", ["/../../", "/../", "..", "", "\0", "//"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunk_keys_do_not_lead_out_of_a_store(tmp_path, zarr_format, separator):
    store = tmp_path / "store"
    zarr.create_array(LocalStore(store), shape=(7, 5), chunks=(3, 2), dtype="f4", zarr_format=zarr_format)
    file = store / ("zarr.json" if zarr_format == 3 else ".zarray")
    document = json.loads(file.read_text())
    if zarr_format == 3:
        document["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": separator}}
    else:
        document["dimension_separator"] = separator
    file.write_text(json.dumps(document))
    with pytest.raises(errors.JaskZarrError):
        jz.open(store).update_(1.0)
    assert os.listdir(tmp_path) == ["store"]


class Payload:
    def __reduce__(self):
        return os.mkdir, (os.path.abspath("executed"),)


@pytest.mark.parametrize("where", ["filters", "compressor"])
def test_a_codec_that_runs_code_of_the_file_is_refused(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    zarr.create_array(LocalStore(tmp_path / "a"), shape=(2,), chunks=(2,), dtype="f4", zarr_format=2, compressors=None)
    document = json.loads((tmp_path / "a/.zarray").read_text())
    codec = {"id": "pickle"}
    document[where] = [codec] if where == "filters" else codec
    (tmp_path / "a/.zarray").write_text(json.dumps(document))
    (tmp_path / "a/0").write_bytes(numcodecs.Pickle().encode(np.array([Payload()], object)))
    with pytest.raises(errors.JaskZarrError):
        jz.open(tmp_path / "a").to_numpy()
    assert not Path("executed").exists()
