"""Random bits: each element's bits follow from its position, so that they do not depend on the tiles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p

from jask_zarr._plan.labels import Index, Labels
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import Access, Arrays, Tile, access_whole, along, evaluate_source, out_shape, whole


def counts_elements(equation: Equation) -> bool:
    """Is this the counter-based generator with one key?"""
    key = equation.source.invars[0].aval
    return key.shape == () and "fry" in str(key.dtype) and getattr(jax.config, "jax_threefry_partitionable", True)


def access_random_bits(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    if not counts_elements(equation):
        return access_whole(equation, slot, index, labels)
    return Access((whole(()),), index)


def evaluate_random_bits(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    """Threefry of each element's number in C order, as `jax.random.bits` computes it."""
    if not counts_elements(equation):
        return evaluate_source(equation, slot, access, tile, operands)
    number = _numbers(equation, access, tile)
    key = jax.random.key_data(operands[0])
    high, low = (number >> 32).astype(jnp.uint32), number.astype(jnp.uint32)
    first, second = threefry2x32_p.bind(*(jnp.broadcast_to(k, number.shape) for k in (key[0], key[1])), high, low)
    width = equation.params["bit_width"]
    if width == 64:
        return (first.astype(jnp.uint64) << 32) | second.astype(jnp.uint64)
    return (first ^ second).astype(f"uint{width}")


def _numbers(equation: Equation, access: Access, tile: Tile) -> jax.Array:
    shape = out_shape(equation)
    extent = tile.shape(shape, access.computed)
    number = jnp.zeros(extent, jnp.uint64)
    stride = 1
    for d in reversed(range(len(shape))):
        axis = access.computed[d]
        at = lax.iota(jnp.int64, extent[d]) if axis is None else tile.positions(axis)
        number = number + along(at.astype(jnp.uint64), d, len(shape)) * jnp.uint64(stride)
        stride *= shape[d]
    return number
