"""The memory budget, the scratch directory and the number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jask_zarr import _config
from jask_zarr.errors import InvalidSizeError, ScratchDirectoryError


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    monkeypatch.setattr(_config, "_settings", _config._Settings())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512_000_000),
        ("4GB", 4_000_000_000),
        ("4 GB", 4_000_000_000),
        ("1.5GiB", 1_610_612_736),
        ("2k", 2000),
        ("2KiB", 2048),
        ("3T", 3 * 10**12),
        (" 100 b ", 100),
        (".5kb", 500),
        ("17", 17),
        (17, 17),
        # more digits than a float holds
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_size_is_a_number_and_a_unit(text, size):
    assert _config.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4 apples", "-4GB", "1e9", "4GBB", "1.2.3MB", 1.5, None, True, b"4GB"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(InvalidSizeError, match="512MB"):
        _config.parse_size(text)


@pytest.mark.parametrize("size", [0, -1, "0GB"])
def test_a_budget_is_positive(size):
    with pytest.raises(InvalidSizeError, match="positive"):
        _config.set_memory_budget(size)


def test_the_budget_that_was_set_is_the_budget():
    _config.set_memory_budget("1GiB")
    assert _config.memory_budget() == 2**30


def test_the_default_budget_is_a_quarter_of_the_available_memory_and_stays():
    first = _config.memory_budget()
    assert first == pytest.approx(_config.available_memory() / 4, rel=0.5)
    assert _config.memory_budget() == first


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        pytest.param("0::/a/b\n", {"a/b/memory.max": "7"}, [7], id="version 2"),
        pytest.param("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "9"}, [9], id="a parent's"),
        pytest.param("0::/host/path\n", {"memory.max": "5"}, [5], id="inside a container"),
        pytest.param("3:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "8"}, [8], id="version 1"),
        pytest.param("0::/\n", {}, [], id="none"),
    ],
)
def test_limits_of_control_groups_are_found(tmp_path, membership, files, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert _config._cgroup_limits(str(tmp_path), membership) == limits


MOUNTS = r"""22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /tmp rw - tmpfs tmpfs rw
24 23 8:2 / /tmp/disk\040one rw shared:1 - xfs /dev/sdb rw
25 22 0:6 / /data rw - ramfs ramfs rw
26 22 8:3 / /data rw - ext4 /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/tmp/x", "tmpfs"),
        ("/tmpfile", "ext4"),
        ("/tmp/disk one/x", "xfs"),
        ("/data/x", "ext4"),  # the later mount hides the earlier one
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(path, kind):
    assert _config.file_system_type(Path(path), MOUNTS) == kind


@pytest.mark.skipif(_config.file_system_type(Path("/dev/shm")) != "tmpfs", reason="no tmpfs")
def test_a_scratch_directory_in_memory_is_refused_unless_allowed():
    with pytest.raises(ScratchDirectoryError, match=r"backed by memory \(tmpfs\).*scratch_dir="):
        _config.set_memory_budget("1GB", scratch_dir="/dev/shm")
    _config.set_memory_budget("1GB", scratch_dir="/dev/shm", allow_tmpfs=True)
    assert _config.scratch_directory() == Path("/dev/shm")


def test_a_scratch_directory_is_made_and_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _config.set_memory_budget("1GB", scratch_dir="a/b")
    monkeypatch.chdir("/")
    assert _config.scratch_directory() == tmp_path / "a" / "b"
    assert _config.scratch_directory().is_dir()


def test_a_scratch_directory_that_cannot_be_made_is_refused_and_nothing_changes(tmp_path):
    (tmp_path / "file").write_text("")
    before = _config._settings
    with pytest.raises(ScratchDirectoryError, match="cannot be written"):
        _config.set_memory_budget("1GB", scratch_dir=tmp_path / "file" / "below")
    assert _config._settings == before


def test_a_new_budget_keeps_the_scratch_directory(tmp_path):
    _config.set_memory_budget("1GB", scratch_dir=tmp_path)
    _config.set_memory_budget("2GB")
    assert _config.scratch_directory() == tmp_path


def test_the_default_scratch_directory_follows_the_system_and_is_not_in_memory(tmp_path):
    program = "from jask_zarr import _config; print(_config.scratch_directory())"
    run = [sys.executable, "-c", program]
    found = subprocess.run(run, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == tmp_path


def test_threads_are_the_processors_that_this_process_may_use():
    assert 1 <= _config.threads() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_process_pinned_to_one_processor_uses_one_thread():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert _config.threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_errors_are_also_those_of_python():
    with pytest.raises(ValueError, match="MB"):
        _config.parse_size("much")
    with pytest.raises(OSError, match="written"):
        _config.set_memory_budget(1, scratch_dir="/proc/none")


@pytest.mark.parametrize("limit", [0, "-1GB", "0 GB"])
def test_a_scratch_limit_is_positive(limit):
    with pytest.raises(InvalidSizeError):
        _config.set_memory_budget("1GB", scratch_limit=limit)


def test_settings_that_are_not_named_stay():
    _config.set_memory_budget("1GB", scratch_limit="2GB")
    _config.set_durability("power")
    _config.set_memory_budget("3GB")
    assert (_config.memory_budget(), _config.scratch_limit()) == (3 * 10**9, 2 * 10**9)
    assert _config.durability() == "power"


def test_durability_is_against_one_of_two_things():
    assert _config.durability() == "process"
    with pytest.raises(ValueError, match=r"'process'.*'power'"):
        _config.set_durability("fire")
