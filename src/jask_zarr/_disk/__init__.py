"""Bytes: zarr arrays as grids of blocks, scratch arrays, crash-safe replacement. No JAX."""

from .blocks import BlockedArray
from .cost import IOCost, io_cost
from .dtypes import is_64_bit, narrowed
from .packing import Packing
from .scratch import SpillFile, scratch_usage
from .staging import StagedUpdate, commit, stage

__all__ = [
    "BlockedArray",
    "IOCost",
    "Packing",
    "SpillFile",
    "StagedUpdate",
    "commit",
    "io_cost",
    "is_64_bit",
    "narrowed",
    "scratch_usage",
    "stage",
]
