"""The compiled tile functions of a pass, one for each tile shape; kept as long as the pass is."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from jask_zarr import _config
from jask_zarr._plan.passes import Pass
from jask_zarr._plan.tile_function import small_constants, tile_function

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
        self.loops = p.loops
        self.small = small_constants(p)
        self.memory = p.memory
        self.build = lambda sizes: tile_function(p, sizes)
        self.functions: dict[tuple[tuple[int, int], ...], Any] = {}
        self.lock = Lock()

    def hold(self, values: Sequence[Any]) -> list[Any]:
        """The in-memory arguments as arrays on the device."""
        held = [v for version, v in zip(self.memory, values, strict=True) if version[0] not in self.small]
        with jax.enable_x64(True):
            return [v if isinstance(v, jax.Array) else jax.device_put(np.asarray(v)) for v in held]

    def call(self, sizes: dict[int, int], starts: np.ndarray, origins: dict[int, Any], streams: Sequence[Any],
             memory: Sequence[Any]) -> tuple[Any, ...]:
        arguments = (starts, [np.asarray(o) for o in origins.values()], list(streams), list(memory))
        with jax.enable_x64(True):
            return self.function(sizes, arguments)(*arguments)

    def function(self, sizes: dict[int, int], arguments: Any) -> Any:
        key = tuple(sorted(sizes.items()))
        with self.lock:
            if key not in self.functions:
                self.functions[key] = jax.jit(self.build(dict(sizes))).lower(*arguments).compile()
            return self.functions[key]

    def workers(self, spare: int, sizes: dict[int, int], run: Any) -> int:
        return _config.threads() + 1
