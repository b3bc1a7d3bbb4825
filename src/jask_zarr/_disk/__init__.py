"""Bytes: zarr arrays as grids of blocks, scratch arrays, crash-safe replacement. No JAX."""

from .blocks import BlockedArray
from .cost import IOCost, io_cost
from .dtypes import is_64_bit, narrowed
from .packing import Packing
from .scratch import SpillFile, scratch_usage
from .staging import StagedUpdate, commit, held, stage
from .stores import place_of
from .swap import link_files, replacing
from .swap import recover as recover_directory

__all__ = [
    "BlockedArray",
    "IOCost",
    "Packing",
    "SpillFile",
    "StagedUpdate",
    "commit",
    "held",
    "io_cost",
    "is_64_bit",
    "link_files",
    "narrowed",
    "place_of",
    "recover_directory",
    "replacing",
    "scratch_usage",
    "stage",
]
