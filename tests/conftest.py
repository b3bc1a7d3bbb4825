"""Shared by all tests: settings that one test changes are restored for the next."""

from collections.abc import Iterator

import jax
import pytest
from hypothesis import settings

import jask_zarr as jz

settings.register_profile("same", derandomize=True)  # a change decides whether the suite passes, not the day
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _budget() -> Iterator[None]:
    """The memory budget that a test sets is its own."""
    before = jz.memory_budget()
    yield
    jz.set_memory_budget(before)


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit dtypes for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
