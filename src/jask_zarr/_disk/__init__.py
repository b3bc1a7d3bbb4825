"""Bytes: zarr arrays as grids of blocks, scratch arrays, crash-safe replacement. No JAX."""

from .atomic import held
from .blocks import BlockedArray, signature
from .cost import IOCost, count_read, count_written, io_cost, own_io_cost
from .dtypes import is_64_bit, narrowed
from .owners import own_tag
from .packing import Packing
from .scratch import SpillFile, scratch_usage
from .staging import StagedUpdate, commit, one_version, stage
from .stores import check_creatable, check_portable, place_of
from .swap import link_files, replacing
from .swap import recover as recover_directory

__all__ = [
    "BlockedArray",
    "IOCost",
    "Packing",
    "SpillFile",
    "StagedUpdate",
    "check_creatable",
    "check_portable",
    "commit",
    "count_read",
    "count_written",
    "held",
    "io_cost",
    "is_64_bit",
    "link_files",
    "narrowed",
    "one_version",
    "own_io_cost",
    "own_tag",
    "place_of",
    "recover_directory",
    "replacing",
    "scratch_usage",
    "signature",
    "stage",
]
