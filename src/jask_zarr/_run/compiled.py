"""The compiled tile functions of a pass, one for each tile shape and device; kept as long as the pass is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jask_zarr import _compat
from jask_zarr._plan.plan import Pass
from jask_zarr._plan.tile_function import small_constants, tile_function
from jask_zarr._run.tile import Tile
from jask_zarr.errors import NotPortableError

Shape = tuple[int, ...]

_passes: WeakKeyDictionary[Pass, CompiledPass] = WeakKeyDictionary()
_lock = Lock()


def compiled(p: Pass) -> CompiledPass:
    """The compiled form of a pass, made at the first run."""
    with _lock:
        if p not in _passes:
            _passes[p] = CompiledPass(p)
        return _passes[p]


class _PassOn:
    """The tile function of a copy: results are what was read. XLA would copy it once more."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __call__(self, starts: Any, origins: Any, streams: Sequence[Any], memory: Any) -> list[Any]:
        return [streams[n] for n in self.numbers]

    def memory_analysis(self) -> None:
        """It has no buffers."""


class CompiledPass:
    """Compiles the tile function at the first tile of each shape on each device."""

    def __init__(self, p: Pass) -> None:
        self._pass = ref(p)  # the table would keep a pass that its own value refers to
        small = small_constants(p)
        self.held = tuple(version for version in p.memory if version[0] not in small)
        self.functions: dict[Any, Any] = {}
        self.locks: dict[Any, Lock] = {}

    @property
    def pass_(self) -> Pass:
        """The pass; somebody who runs it keeps it."""
        p = self._pass()
        assert p is not None
        return p

    @property
    def held_bytes(self) -> int:
        """Bytes of the in-memory arguments; every device that computes tiles has a copy."""
        return sum(self.pass_.sweep.program.nbytes(v) for v, _ in self.held)

    def hold(self, values: Sequence[Any], device: Any) -> list[Any]:
        """The in-memory arguments as arrays on a device."""
        with jax.enable_x64(True):
            return [jax.device_put(v if isinstance(v, jax.Array) else np.asarray(v), device) for v in values]

    def shape(self, tile: Tile) -> Shape:
        """The tile's lengths along the loops."""
        return tuple(tile.sizes[loop.label] for loop in self.pass_.loops)

    def function(self, shape: Shape, device: Any) -> Any:
        """``f(starts, origins, streams, memory) -> results``, compiled; call it with 64-bit types enabled."""
        key = shape, device
        with self.locks.setdefault(key, Lock()), jax.enable_x64(True):
            if key not in self.functions:
                copied = self._copied()
                self.functions[key] = self._compiled(shape, device) if copied is None else _PassOn(copied)
            return self.functions[key]

    def _compiled(self, shape: Shape, device: Any) -> Any:
        arguments = self._arguments(shape, SingleDeviceSharding(device))
        return jax.jit(self._function(shape)).lower(*arguments).compile()

    def _copied(self) -> tuple[int, ...] | None:
        """Of a pass that computes nothing: which stream each result is."""
        streams = {stream.version: n for n, stream in enumerate(self.pass_.streams)}
        read = self.pass_.sweep.as_read()
        if read is None or not streams.keys() >= set(read):
            return None
        numbers = dict(zip(self.pass_.sweep.targets, (streams[version] for version in read), strict=True))
        return tuple(numbers[result.version] for result in self.pass_.results)

    def _function(self, shape: Shape) -> Any:
        return tile_function(self.pass_, self._tile(shape).sizes)

    def _tile(self, shape: Shape) -> Tile:
        labels = (loop.label for loop in self.pass_.loops)
        return Tile({}, {**self.pass_.sweep.sizes, **dict(zip(labels, shape, strict=True))})

    def _arguments(self, shape: Shape, sharding: Any = None) -> tuple[Any, ...]:
        """Shapes and dtypes of the tile function's arguments."""
        p, avals, tile = self.pass_, self.pass_.sweep.program.avals, self._tile(shape)

        def struct(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)

        starts = struct((2, len(p.loops)), np.int64)
        origins = [struct(avals[v].shape, avals[v].dtype) for v in p.origins]
        streams = [struct(tile.extent(s.shape, s.index), avals[s.version[0]].dtype) for s in p.streams]
        memory = [struct(avals[v].shape, avals[v].dtype) for v, _ in self.held]
        return starts, origins, streams, memory

    @cached_property
    def artefacts(self) -> dict[Shape, bytes]:
        """The tile function of every shape, for other processes."""
        with jax.enable_x64(True):
            return {shape: self._artefact(shape) for shape in product(*(loop.lengths for loop in self.pass_.loops))}

    def _artefact(self, shape: Shape) -> bytes:
        try:
            return _compat.exported(self._function(shape), *self._arguments(shape))
        except (NotImplementedError, ValueError, TypeError, KeyError) as error:
            raise NotPortableError(
                f"A computation cannot be sent to other processes, because jax.export refuses it: {error}. "
                "Run it in this process: jz.set_executor(None)."
            ) from error

    def tile_bytes(self, device: Any) -> int:
        """Bytes that the task of the largest tile holds: what it reads, XLA's buffers and the results."""
        shape = tuple(loop.tile for loop in self.pass_.loops)
        memory, tile = self.function(shape, device).memory_analysis(), self._tile(shape)
        avals = self.pass_.sweep.program.avals
        reads = sum(
            math.prod(tile.extent(s.shape, s.index)) * np.dtype(avals[s.version[0]].dtype).itemsize
            for s in self.pass_.streams
        )
        return reads + (memory.temp_size_in_bytes + memory.output_size_in_bytes if memory is not None else 0)
