"""Arrays larger than memory, in zarr stores, that behave as native JAX values."""

from jask_zarr import errors as errors
from jask_zarr import numpy as numpy
from jask_zarr import random as random
from jask_zarr._config import durability, memory_budget, set_durability, set_executor, set_memory_budget
from jask_zarr._disk import BlockedArray, IOCost, SpillFile, io_cost, scratch_usage
from jask_zarr._tracing.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from jask_zarr._tracing.creation import open_array as open
from jask_zarr._tracing.hitype import DiskArray, DiskArrayType
from jask_zarr._tracing.jit import jit
from jask_zarr._tracing.lift import compute, lift, materialize
from jask_zarr.checkpoint import checkpoint, restore
from jask_zarr.explain import explain
from jask_zarr.numpy import *  # noqa: F403
from jask_zarr.numpy import __all__ as _operations
from jask_zarr.rechunk import rechunk

__version__ = "0.1.0"

__all__ = [
    # arrays
    "DiskArray", "DiskArrayType", "open", "zeros", "ones", "full", "empty", "arange", "eye",
    "zeros_like", "ones_like", "full_like", "empty_like", "asarray",
    # values
    "compute", "materialize",
    # functions
    "lift", "jit", *_operations,
    # seeing and setting
    "set_memory_budget", "memory_budget", "set_durability", "durability", "set_executor", "explain",
    "io_cost", "IOCost", "scratch_usage",
    # storage
    "rechunk", "checkpoint", "restore",
    "BlockedArray", "SpillFile",
    "errors", "numpy", "random",
]  # fmt: skip
