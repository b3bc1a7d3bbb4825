"""Scans along an axis that is split: of blocks, each from what all blocks before it come to.

    cumsum(x)[i]  ==  sum(all blocks before that of x[i])  +  cumsum(that block)[i]

and so for products, maxima, minima and log-sum-exps, in either direction. The totals of the blocks are one walk over
the data, and the scans of the blocks another; a scan whose axis is whole in a tile takes one, so both ways are planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jask_zarr._plan.labels import Axis, Index, Labels
from jask_zarr._plan.program import LARGE, Builder, Equation, Program
from jask_zarr._plan.rule import Access, Arrays, Tile, out_shape
from jask_zarr._plan.rules_window import padded
from jask_zarr._plan.wider import wider_inexact

SCAN = core.Primitive("scan_of_blocks")
"""Operands: the array, and for each block, and one more, what those before it come to."""
BLOCK = 1024
"""Elements of a block at least."""


@dataclass(frozen=True)
class Kind:
    """What a scan does with two elements, with all, and what changes nothing."""

    combine: Callable[[Any, Any], jax.Array]
    reduce: Callable[..., jax.Array]
    scan: Callable[..., jax.Array]
    identity: Callable[[Any], Any]


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


KINDS = {
    "cumsum": Kind(lax.add, jnp.sum, lax.cumsum, lambda dtype: 0),
    "cumprod": Kind(lax.mul, jnp.prod, lax.cumprod, lambda dtype: 1),
    "cummax": Kind(lax.max, jnp.max, lax.cummax, _lowest),
    "cummin": Kind(lax.min, jnp.min, lax.cummin, _highest),
    "cumlogsumexp": Kind(jnp.logaddexp, jax.nn.logsumexp, lax.cumlogsumexp, _lowest),
}


def in_blocks(program: Program, chunks: Mapping[int, tuple[int, ...]]) -> Program:
    """The program with all large scans in blocks; itself if it has none."""
    if not any(_is_large(program, equation) for equation in program.equations):
        return program
    builder, apart = Builder.with_values_of(program), dict(program.apart)
    for equation in program.equations:
        if _is_large(program, equation):
            with jax.enable_x64(True):
                _replace(builder, equation, _block(program, equation, chunks), apart)
        else:
            builder.keep(equation)
    return builder.rewritten(program, apart=apart)


def _is_large(program: Program, equation: Equation) -> bool:
    if equation.name not in KINDS:
        return False
    shape, dtype = program.shape(equation.inputs[0]), program.dtype(equation.inputs[0])
    return math.prod(shape) > LARGE and shape[equation.params["axis"]] > BLOCK and not jnp.issubdtype(dtype, jnp.bool_)


def _block(program: Program, equation: Equation, chunks: Mapping[int, tuple[int, ...]]) -> int:
    """Elements of a block: parts, or several, of the chunks of an array on disk with a dim of that size."""
    n = program.shape(equation.inputs[0])[equation.params["axis"]]
    stored = (c for v, grid in chunks.items() for size, c in zip(program.shape(v), grid, strict=True) if size == n)
    chunk = min(stored, default=BLOCK)
    if chunk <= 2 * BLOCK:
        return chunk * -(-BLOCK // chunk)
    parts = (chunk // k for k in range(2, chunk // BLOCK + 1) if chunk % k == 0 and chunk // k <= 4 * BLOCK)
    return next(parts, chunk)


def _replace(builder: Builder, equation: Equation, block: int, apart: dict[int, str]) -> None:
    params = {**equation.params, "kind": equation.name, "block": block}
    with_params = replace(equation, params=params)
    (operand,) = equation.inputs
    totals, before = builder.traced(lambda x: _totals(with_params, x), [operand], equation.caller)
    apart[totals] = apart[before] = "what the blocks of a scan come to is needed first"
    inputs = [core.Var(builder.avals[v]) for v in (operand, before)]
    source = equation.source.replace(primitive=SCAN, invars=inputs)
    builder.keep(replace(with_params, primitive=SCAN, inputs=(operand, before), source=source))


def _wide(dtype: Any) -> Any:
    return wider_inexact(dtype) or dtype


def _totals(equation: Equation, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What each block comes to, and what those before it do: of one more block than there are."""
    kind, d, backwards = KINDS[equation.params["kind"]], equation.params["axis"], equation.params["reverse"]
    x = x.astype(_wide(x.dtype))
    blocks = _blocks(equation, x, d)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        totals = kind.reduce(blocks, axis=d + 1)
    else:  # sums that do not fit are an error, scans wrap
        totals = lax.index_in_dim(kind.scan(blocks, d + 1, backwards), 0 if backwards else -1, d + 1, keepdims=False)
    before = kind.scan(totals, axis=d, reverse=backwards)
    ends = [(0, 0, 0)] * x.ndim
    ends[d] = (-1, 2, 0) if backwards else (1, 0, 0)
    return totals, lax.pad(before, jnp.asarray(kind.identity(x.dtype), x.dtype), ends)


def _blocks(equation: Equation, x: jax.Array, d: int) -> jax.Array:
    """Dim `d` cut into blocks, the last one filled up."""
    kind, block, n = KINDS[equation.params["kind"]], equation.params["block"], x.shape[d]
    config = [(0, -n % block if e == d else 0, 0) for e in range(x.ndim)]
    filled = lax.pad(x, jnp.asarray(kind.identity(x.dtype), x.dtype), config)
    return filled.reshape(*x.shape[:d], -1, block, *x.shape[d + 1 :])


# --- the rule ---------------------------------------------------------------------------------------------------------


def access(equation: Equation, slot: int, index: Index, labels: Labels) -> Access:
    """Tiles are whole blocks; one that ends within a block is read up to that block's end, if the scan begins there."""
    d, block, n = equation.params["axis"], equation.params["block"], out_shape(equation)[equation.params["axis"]]
    axis = index[d]
    if axis is None or not axis.plain or labels.group(axis.label):  # a tile may begin within a block
        computed = (*index[:d], None, *index[d + 1 :])
        return Access((computed, computed), computed)
    labels.require_multiple(axis.label, block)
    more = block - 1 if equation.params["reverse"] and labels.sizes[axis.label] < n else 0
    read = (*index[:d], axis._replace(extra=more), *index[d + 1 :])
    before = (*index[:d], Axis(axis.label, divisor=block, extra=2 if more else 1), *index[d + 1 :])
    return Access((read, before), index)


def evaluate(equation: Equation, slot: int, access: Access, tile: Tile, operands: Arrays) -> jax.Array:
    x, before = operands
    kind, d, backwards = KINDS[equation.params["kind"]], equation.params["axis"], equation.params["reverse"]
    shape, n = tile.shape(out_shape(equation), access.computed), out_shape(equation)[d]
    x = padded(tile, x.astype(before.dtype), access.operands[0][d], d, n, kind.identity(before.dtype))
    blocks = _blocks(equation, x, d)
    before = lax.slice_in_dim(before, 0, blocks.shape[d], axis=d)
    scanned = kind.combine(*jnp.broadcast_arrays(jnp.expand_dims(before, d + 1), kind.scan(blocks, d + 1, backwards)))
    flat = scanned.reshape(*x.shape[:d], -1, *x.shape[d + 1 :])
    return lax.slice_in_dim(flat, 0, shape[d], axis=d).astype(operands[0].dtype)
