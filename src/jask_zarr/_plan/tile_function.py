"""The function that computes one tile of a pass: its steps, bound at tile shapes.

It is traced with 64-bit types enabled, whatever the user's setting: every equation states its own dtypes, and partial
sums of floats and integers are taken in the wider type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jask_zarr._plan.labels import Axis, Index, axes, chain
from jask_zarr._plan.plan import Pass
from jask_zarr._plan.rules_exp import relative_sum
from jask_zarr._plan.rules_square import moments
from jask_zarr._plan.sweep import Step, Sweep, Version
from jask_zarr._plan.wider import wider

SMALL_CONSTANT = 1 << 16


@dataclass(frozen=True)
class TileOf:
    """Static sizes and traced starts of the tile at hand."""

    sweep: Sweep
    sizes: dict[int, int]
    starts: dict[int, jax.Array]
    begins: dict[int, jax.Array]
    """Where the walk along a label began, to which the tile belongs."""
    origins: dict[int, jax.Array]
    tiles: dict[Version, jax.Array]
    """What has been read or computed."""

    def shape(self, shape: Sequence[int], index: Index) -> tuple[int, ...]:
        return tuple(n if a is None else a.length(self.sizes[a.label]) for n, a in zip(shape, index, strict=True))

    def is_first(self, label: int) -> jax.Array:
        return self.starts[label] == self.begins[label] if label in self.starts else jnp.ones((), bool)

    def start(self, axis: Axis) -> jax.Array:
        start = self.starts.get(axis.label, jnp.zeros((), jnp.int64))
        begin = axis.begin(start, self.sizes[axis.label])
        for origin in axis.origins:
            begin = begin + origin.sign * jnp.clip(self.origins[origin.value].astype(jnp.int64), 0, origin.limit)
        return begin

    def positions(self, axis: Axis) -> jax.Array:
        """Element numbers that the tile covers along a dim."""
        if axis.rows is None:
            return self.start(axis) + lax.iota(jnp.int64, axis.length(self.sizes[axis.label]))
        rows = self._rows(axis.rows.value, axis.of_rows).astype(jnp.int64)
        return jnp.clip(rows, 0, axis.rows.limit) + self.start(axis._replace(scale=0))

    def _rows(self, value: int, axis: Axis) -> jax.Array:
        version = next(v for v in self.tiles if v[0] == value and self.sweep.indices[v] == (axis, None))
        return self.tiles[version][:, 0]

    def spans(self, label: int) -> bool:
        return self.sizes[label] == self.sweep.sizes[label] and label not in self.sweep.groups

    def cut(self, array: jax.Array, index: Index, computed: Index) -> jax.Array:
        """Cut out of `array` what the index asks for, along the dims that `computed` left whole."""
        for d, (wanted, have) in enumerate(zip(index, computed, strict=True)):
            if wanted is not None and have is None:
                array = self._cut_dim(array, d, wanted)
        return array

    def _cut_dim(self, array: jax.Array, d: int, axis: Axis) -> jax.Array:
        length = axis.length(self.sizes[axis.label])
        may_pass_end = axis.label in self.sweep.groups
        if length == array.shape[d] and axis.plain and not may_pass_end:
            return array
        if array.shape[d] == 0:  # every element is masked later
            return jnp.zeros((*array.shape[:d], length, *array.shape[d + 1 :]), array.dtype)
        affine = not axis.origins and axis.rows is None and not may_pass_end
        if affine and self._is_inside(axis, array.shape[d]):
            return lax.dynamic_slice_in_dim(array, self.start(axis), length, d)
        return jnp.take(array, self.positions(axis), axis=d, mode="clip")

    def _is_inside(self, axis: Axis, n: int) -> bool:
        """Whether no tile reaches beyond a dim of `n` elements."""
        size = self.sweep.sizes[axis.label]
        first = axis.begin(0, size) if axis.backwards else axis.offset
        return first >= 0 and (axis.offset if axis.backwards else axis.begin(size, 0) + axis.extra) <= n


def tile_function(p: Pass, sizes: dict[int, int]) -> Callable[..., tuple[Any, ...]]:
    """Build ``f(starts, origins, streams, memory) -> results`` for tiles of the given sizes.

    ``starts`` holds the first index along each loop, and that of the first tile of the walk; ``origins`` the values of
    ``p.origins``; ``streams`` a tile for each of ``p.streams``; ``memory`` the whole array of each of ``p.memory`` that
    is not a constant.
    """
    small = small_constants(p)

    def compute(
        starts: jax.Array, origins: Sequence[Any], streams: Sequence[Any], memory: Sequence[Any]
    ) -> tuple[Any, ...]:
        tiles: dict[Version, jax.Array] = {s.version: t for s, t in zip(p.streams, streams, strict=True)}
        tile = TileOf(
            p.sweep,
            sizes,
            {loop.label: starts[0, n] for n, loop in enumerate(p.loops)},
            {loop.label: starts[1, n] for n, loop in enumerate(p.loops)},
            dict(zip(p.origins, origins, strict=True)),
            tiles,
        )
        held = iter(memory)
        arrays = {v: small[v[0]] if v[0] in small else next(held) for v in p.memory}
        for version in sorted(arrays, key=lambda v: _lookups(p.sweep.indices[v])):
            index, array = p.sweep.indices[version], jnp.asarray(arrays[version])
            tiles[version] = tile.cut(array, index, (None,) * len(index))
        partials = {r.version: r.combine for r in p.results if r.combine is not None}
        consumed = {v for step in p.sweep.steps for v in step.operands}
        results: dict[Version, Any] = {}
        for step in p.sweep.steps:
            if step.result in partials:
                results[step.result] = _partial(step, tile, tiles)
            if step.result not in partials or step.result in consumed:
                tiles[step.result] = _evaluate(step, tile, tiles)
        return tuple(results.get(r.version, tiles.get(r.version)) for r in p.results)

    return compute


def _lookups(index: Index) -> int:
    """How often row numbers are looked up on the way: those that go by others come after these."""
    return max((len([*chain(axis)]) for axis in axes(index)), default=0)


def small_constants(p: Pass) -> dict[int, Any]:
    """Constants that are part of the function; larger ones are arguments."""
    constants = p.sweep.program.constants
    return {v[0]: constants[v[0]] for v in p.memory if v[0] in constants and constants[v[0]].nbytes <= SMALL_CONSTANT}


def _operands(step: Step, tiles: dict[Version, jax.Array]) -> list[jax.Array]:
    return [tiles[v] for v in step.operands]


def _evaluate(step: Step, tile: TileOf, tiles: dict[Version, jax.Array]) -> jax.Array:
    result = step.rule.evaluate(step.equation, step.slot, step.access, tile, _operands(step, tiles))
    return tile.cut(result, step.index, step.access.computed)


def _partial(step: Step, tile: TileOf, tiles: dict[Version, jax.Array]) -> Any:
    """The partial result of one tile, in the form that the runner combines."""
    combine = step.rule.combine
    if combine in ("sum", "prod"):
        return _wide_reduction(step, tile, tiles)
    if combine in ("argmax", "argmin"):
        return _arg_reduction(step, tile, tiles)
    if combine == "rescaled":
        return relative_sum(step.equation, _operands(step, tiles))
    if combine == "recentred":
        return moments(step.equation, _operands(step, tiles))
    return _evaluate(step, tile, tiles)


def _wide_reduction(step: Step, tile: TileOf, tiles: dict[Version, jax.Array]) -> Any:
    (operand,) = _operands(step, tiles)
    reduce = jnp.sum if step.rule.combine == "sum" else jnp.prod
    axes = step.equation.params["axes"]
    result = reduce(operand.astype(wider(operand.dtype)), axis=axes)
    if jnp.issubdtype(operand.dtype, jnp.integer):
        return result, reduce(operand.astype(jnp.float64), axis=axes)
    return result


def _arg_reduction(step: Step, tile: TileOf, tiles: dict[Version, jax.Array]) -> Any:
    (operand,) = _operands(step, tiles)
    (d,) = step.equation.params["axes"]
    pick = lax.argmax if step.rule.combine == "argmax" else lax.argmin
    position = pick(operand, d, jnp.int64)
    value = jnp.take_along_axis(operand, jnp.expand_dims(position, d), axis=d).squeeze(d)
    axis = step.access.operands[0][d]
    return value, position if axis is None else position + tile.start(axis)
