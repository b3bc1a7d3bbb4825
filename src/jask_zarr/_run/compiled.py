"""The compiled tile functions of a pass, one for each tile shape; kept as long as the pass is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from jask_zarr._plan.plan import Pass
from jask_zarr._plan.tile_function import small_constants, tile_function
from jask_zarr._run.tile import Tile

_passes: WeakKeyDictionary[Pass, CompiledPass] = WeakKeyDictionary()
_lock = Lock()


def compiled(p: Pass) -> CompiledPass:
    """The compiled form of a pass, made at the first run."""
    with _lock:
        if p not in _passes:
            _passes[p] = CompiledPass(p)
        return _passes[p]


class CompiledPass:
    """Compiles the tile function at the first tile of each shape."""

    def __init__(self, p: Pass) -> None:
        self.pass_ = p
        small = small_constants(p)
        self.held = tuple(version for version in p.memory if version[0] not in small)
        self.functions: dict[tuple[int, ...], Any] = {}
        self.lock = Lock()

    def hold(self, values: Sequence[Any]) -> list[Any]:
        """The in-memory arguments as arrays on the device."""
        with jax.enable_x64(True):
            return [v if isinstance(v, jax.Array) else jax.device_put(np.asarray(v)) for v in values]

    def call(
        self, tile: Tile, origins: Sequence[Any], streams: Sequence[Any], memory: Sequence[Any]
    ) -> tuple[Any, ...]:
        """The results of one tile."""
        starts = np.array([tile.starts[loop.label] for loop in self.pass_.loops], np.int64)
        with jax.enable_x64(True):
            return self.function(tile)(starts, list(origins), list(streams), list(memory))

    def function(self, tile: Tile) -> Any:
        key = tuple(tile.sizes[loop.label] for loop in self.pass_.loops)
        with self.lock:
            if key not in self.functions:
                self.functions[key] = self._compile(tile)
            return self.functions[key]

    def _compile(self, tile: Tile) -> Any:
        p, avals = self.pass_, self.pass_.sweep.program.avals
        starts = jax.ShapeDtypeStruct((len(p.loops),), np.int64)
        origins = [_struct(avals[v].shape, avals[v].dtype) for v in p.origins]
        streams = [_struct(tile.extent(s.shape, s.index), avals[s.version[0]].dtype) for s in p.streams]
        memory = [_struct(avals[v].shape, avals[v].dtype) for v, _ in self.held]
        return jax.jit(tile_function(p, tile.sizes)).lower(starts, origins, streams, memory).compile()

    def tile_bytes(self, tile: Tile) -> int:
        """Bytes that one tile task holds: what it reads, XLA's buffers and the results."""
        with jax.enable_x64(True):
            memory = self.function(tile).memory_analysis()
        avals = self.pass_.sweep.program.avals
        reads = sum(
            math.prod(tile.extent(s.shape, s.index)) * np.dtype(avals[s.version[0]].dtype).itemsize
            for s in self.pass_.streams
        )
        return reads + (memory.temp_size_in_bytes + memory.output_size_in_bytes if memory is not None else 0)


def _struct(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)
