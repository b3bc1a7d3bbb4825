"""Shared by all tests: no dtype surprises between tests, and memory small enough to matter."""

from collections.abc import Iterator

import jax
import pytest

import jask_zarr as jz


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit dtypes for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def tiny_budget(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A memory budget so small that arrays of a few hundred bytes are cut into tiles."""
    before = jz.memory_budget()
    jz.set_memory_budget(TINY, scratch_dir=tmp_path_factory.getbasetemp())
    yield
    jz.set_memory_budget(before)


TINY = 4000
