"""The table of ops: what is called, on which operands, with respect to what it is differentiated.

Every `test_*.py` of a transformation goes through `OPS`: a new op is one row here.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from helpers import FLOATS, Op, Operand

A, B, C = (Operand("mk") for _ in range(3))
POSITIVE, UNIT = Operand("mk", "positive"), Operand("mk", "unit")
INTEGER = ("int32",)
ANY_NUMBER = (*FLOATS, "int32")


def _named(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda xp, *operands: getattr(xp, name)(*operands, *args, **kwargs)


def _row(
    name: str,
    call: Callable[..., Any] | None = None,
    operands: tuple[Operand, ...] = (A,),
    grad: tuple[int, ...] | None = None,
    **settings: Any,
) -> Op:
    grad = tuple(range(len(operands))) if grad is None else grad
    return Op(name, call or _named(name), operands, grad, **settings)


_UNARY = [
    *[_row(n, dtypes=ANY_NUMBER) for n in ("negative", "positive", "square", "abs", "sign")],
    *[_row(n, dtypes=FLOATS) for n in ("exp", "exp2", "expm1", "sin", "cos", "tanh", "arctan",
        "sinh", "cosh", "arcsinh", "deg2rad", "rad2deg", "cbrt", "fabs", "sinc")],
    *[_row(n, operands=(POSITIVE,)) for n in ("sqrt", "log", "log2", "log10", "log1p",
        "reciprocal")],
    *[_row(n, operands=(UNIT,)) for n in ("tan", "arcsin", "arccos", "arctanh")],
    _row("arccosh", lambda xp, a: xp.arccosh(a + 1), (POSITIVE,)),
    *[_row(n, grad=()) for n in ("floor", "ceil", "trunc", "rint", "isnan", "isinf", "isfinite",
        "isposinf", "isneginf", "signbit")],
    _row("round", lambda xp, a: xp.round(a, 1), grad=()),
    _row("nan_to_num"),
    _row("real"),
    _row("conj"),
    _row("stop_gradient", lambda xp, a: a * xp.stop_gradient(a)),
]  # fmt: skip

_ACTIVATIONS = [
    *[_row(n) for n in ("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu",
        "mish", "sigmoid", "log_sigmoid", "softplus", "squareplus", "soft_sign", "hard_tanh",
        "hard_sigmoid", "hard_silu", "softmax", "log_softmax", "sparse_plus",
        "sparse_sigmoid", "standardize")],
    _row("gelu_exact", lambda xp, a: xp.gelu(a, approximate=False)),
    _row("leaky_relu_slope", lambda xp, a: xp.leaky_relu(a, 0.2)),
    _row("glu", operands=(Operand("mn"),)),
    _row("softmax_0", lambda xp, a: xp.softmax(a, axis=0)),
    _row("softmax_all", lambda xp, a: xp.softmax(a, axis=(0, 1))),
    _row("log_softmax_0", lambda xp, a: xp.log_softmax(a, axis=0)),
    _row("one_hot", lambda xp, i: xp.one_hot(i, 5), (Operand("mk", "small", "int32"),), ()),
]  # fmt: skip

_ROW, _COLUMN, _VECTOR = Operand("1k"), Operand("m1"), Operand("k")
_BINARY = [
    *[_row(n, operands=(A, B), dtypes=ANY_NUMBER)
      for n in ("add", "subtract", "multiply", "maximum", "minimum")],
    *[_row(n, operands=(A, B), smooth=False)
      for n in ("fmax", "fmin", "logaddexp", "logaddexp2", "arctan2", "hypot", "copysign")],
    *[_row(n, operands=(A, POSITIVE), dtypes=ANY_NUMBER) for n in ("divide", "true_divide")],
    *[_row(n, operands=(A, POSITIVE), dtypes=ANY_NUMBER, grad=(), smooth=False)
      for n in ("floor_divide", "divmod")],
    *[_row(n, operands=(A, POSITIVE), dtypes=ANY_NUMBER, grad=(0,)) for n in ("remainder", "fmod")],
    _row("heaviside", operands=(A, B), grad=()),
    _row("power", operands=(POSITIVE, B)),
    _row("float_power", operands=(POSITIVE, B)),
    _row("power_2", lambda xp, a: a**2, dtypes=ANY_NUMBER),
    _row("power_3", lambda xp, a: xp.power(a, 3)),
    _row("power_minus_1", lambda xp, a: a**-1, (POSITIVE,)),
    _row("power_float", lambda xp, a: a**1.5, (POSITIVE,)),
    _row("power_of_2", lambda xp, a: 2.0**a),
    _row("add_scalar", lambda xp, a: a + 2, dtypes=ANY_NUMBER),
    _row("scalar_minus", lambda xp, a: 1.5 - a),
    _row("times_numpy_scalar", lambda xp, a: a * np.float32(3)),
    _row("scalar_over", lambda xp, a: 1 / a, (POSITIVE,)),
    _row("minus_itself", lambda xp, a: -(+a) - abs(a)),
    _row("add_row", lambda xp, a, b: a + b, (A, _ROW), dtypes=ANY_NUMBER),
    _row("multiply_column", lambda xp, a, b: a * b, (A, _COLUMN)),
    _row("subtract_vector", lambda xp, a, b: b - a, (A, _VECTOR)),
    _row("row_by_column", lambda xp, a, b: a / b, (_ROW, Operand("m1", "positive"))),
    _row("three_grids", lambda xp, a, b, c: a * b + c / 2, (A, B, C)),
    _row("twice", lambda xp, a: a * a),
    _row("thrice", lambda xp, a: a * xp.tanh(a) + a),
    _row("with_memory", lambda xp, a: a * jnp.arange(a.shape[1], dtype=a.dtype)),
    _row("memory_first", lambda xp, a: jnp.arange(a.shape[1], dtype=a.dtype) - a),
    _row("numpy_first", lambda xp, a: np.arange(a.shape[1], dtype=np.float32) * a),
]  # fmt: skip

_INT = Operand("mk", "small", "int32")
_WHOLE = Operand("mk", "whole", "int32")
_MASK, _MASK_2 = Operand("mk", "bool", "bool"), Operand("mk", "bool", "bool")
_CHOICE = [
    *[_row(n, operands=(A, B), grad=(), dtypes=ANY_NUMBER)
      for n in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")],
    _row("comparisons", lambda xp, a, b: ((a < b) & (a <= 1)) | (a > b) ^ (a != 0), (A, B), ()),
    _row("equal_scalar", lambda xp, a: a == 1, (_INT,), ()),
    _row("isclose", lambda xp, a: xp.isclose(a, 1.0, atol=0.5), grad=()),
    _row("allclose", lambda xp, a, b: xp.allclose(a, a + 1e-9 * b), (A, B), ()),
    _row("array_equal", lambda xp, a, b: xp.array_equal(a, b), (A, B), ()),
    *[_row(n, operands=(_MASK, _MASK_2), grad=())
      for n in ("logical_and", "logical_or", "logical_xor", "bitwise_xor")],
    *[_row(n, operands=(_INT, _WHOLE), grad=())
      for n in ("bitwise_and", "bitwise_or", "left_shift", "right_shift", "gcd", "lcm")],
    *[_row(n, operands=(_MASK,), grad=()) for n in ("logical_not", "invert")],
    *[_row(n, operands=(_INT,), grad=()) for n in ("bitwise_not", "bitwise_count")],
    _row("bit_operators", lambda xp, i, j: (~i & j | 3) ^ (i << 1) ^ (i >> 1), (_INT, _WHOLE), ()),
    _row("where", operands=(_MASK, A, B), grad=(1, 2)),
    _row("where_scalar", lambda xp, m, a: xp.where(m, a, 0), (_MASK, A), (1,)),
    _row("where_vector", lambda xp, m, a, v: xp.where(m, a, v), (_MASK, A, _VECTOR), (1, 2)),
    _row("select", lambda xp, m, a, b: xp.select([m, a > 0], [a, b]), (_MASK, A, B), (1, 2)),
    _row("clip", lambda xp, a: xp.clip(a, -0.5, 0.5)),
    _row("clip_min", lambda xp, a: xp.clip(a, min=0)),
    _row("clip_arrays", lambda xp, a, b: xp.clip(a, b - 1, b), (A, B)),
    _row("astype_int", lambda xp, a: xp.astype(a, jnp.int32), grad=()),
    _row("astype_bfloat16", lambda xp, a: a.astype("bfloat16") * 2, dtypes=("float32",)),
    _row("astype_float", lambda xp, a: a.astype(jnp.float32), (_INT,), ()),
]  # fmt: skip


def _reduced(name: str, operand: Operand = A, grad: tuple[int, ...] = (0,), **settings: Any):
    kinds = {"": {}, "_0": {"axis": 0}, "_last_kept": {"axis": -1, "keepdims": True},
             "_both": {"axis": (1, 0)}}  # fmt: skip
    return [
        _row(name + suffix, _named(name, **kwargs), (operand,), grad, **settings) for suffix, kwargs in kinds.items()
    ]


def _searched(name: str):
    kinds = {"": {}, "_0": {"axis": 0}, "_last_kept": {"axis": -1, "keepdims": True}}
    return [_row(name + s, _named(name, **kw), grad=(), dtypes=ANY_NUMBER) for s, kw in kinds.items()]


_CUBE = Operand("mkn")
_REDUCTIONS = [
    *_reduced("sum", dtypes=ANY_NUMBER),
    *_reduced("mean"),
    *_reduced("max", dtypes=ANY_NUMBER),
    *_reduced("min", dtypes=ANY_NUMBER),
    *_reduced("var"),
    *_reduced("std"),
    *_reduced("logsumexp"),
    *_reduced("prod"),
    *_reduced("any", _MASK, ()),
    *_reduced("all", _MASK, ()),
    *_searched("argmax"),
    *_searched("argmin"),
    _row("sum_middle", lambda xp, a: a.sum(axis=1), (_CUBE,)),
    _row("sum_outer", lambda xp, a: xp.sum(a, axis=(0, -1)), (_CUBE,)),
    _row("sum_no_axis", lambda xp, a: xp.sum(a, axis=())),
    _row("sum_positional", lambda xp, a: xp.sum(a, 1)),
    _row("sum_where", lambda xp, a, m: xp.sum(a, where=m), (A, _MASK), (0,)),
    _row("sum_initial", lambda xp, a: xp.sum(a, initial=2.0)),
    _row("sum_dtype", lambda xp, i: xp.sum(i, dtype=jnp.float32), (_INT,), ()),
    _row("sum_bool", lambda xp, m: xp.sum(m, axis=0), (_MASK,), ()),
    _row("count_nonzero", grad=()),
    _row("mean_int", lambda xp, i: xp.mean(i, axis=0), (_INT,), ()),
    _row("var_ddof", lambda xp, a: xp.var(a, axis=0, ddof=1)),
    _row("average", lambda xp, a, w: xp.average(a, 0, w), (A, Operand("m", "positive"))),
    _row("ptp", lambda xp, a: xp.ptp(a, axis=1)),
    _row("norm"),
    _row("norm_rows", lambda xp, a: xp.norm(a, axis=1, keepdims=True)),
    _row("norm_1", lambda xp, a: xp.norm(a, ord=1, axis=0)),
    *[_row(n, operands=(Operand("mk", "nans"),), grad=())
      for n in ("nansum", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanprod")],
    _row("nanmean_0", lambda xp, a: xp.nanmean(a, axis=0), (Operand("mk", "nans"),)),
    _row("median", lambda xp, a: xp.median(a, axis=0)),
    _row("quantile", lambda xp, a: xp.quantile(a, jnp.array([0.25, 0.8]), axis=1), grad=()),
    _row("percentile", lambda xp, a: xp.percentile(a, 30.0), grad=()),
    _row("nanmedian", lambda xp, a: xp.nanmedian(a, axis=0), (Operand("mk", "nans"),), ()),
    _row("normalise", lambda xp, a: (a - a.mean(0)) / (1 + a.std(0))),
]  # fmt: skip

_PRODUCTS = [
    _row("matmul", operands=(A, Operand("kn")), dtypes=ANY_NUMBER),
    _row("matmul_operator", lambda xp, a, b: a @ b, (A, Operand("kn"))),
    _row("matmul_batched", lambda xp, a, b: a @ b, (Operand("bmk"), Operand("bkn"))),
    _row("matmul_broadcast", lambda xp, a, b: a @ b, (Operand("bmk"), Operand("kn"))),
    _row("matmul_vector", lambda xp, a, b: a @ b, (A, Operand("k"))),
    _row("vector_matmul", lambda xp, a, b: a @ b, (Operand("m"), A)),
    _row("matmul_itself", lambda xp, a: a @ a.T),
    _row("matmul_memory", lambda xp, a: a @ jnp.arange(2 * a.shape[1], dtype=a.dtype).reshape(-1, 2)),
    _row("dot", operands=(A, Operand("kn"))),
    _row("dot_vectors", _named("dot"), (Operand("k"), Operand("k"))),
    _row("vdot", operands=(A, B)),
    _row("inner", operands=(A, Operand("nk"))),
    _row("vecdot", operands=(A, B)),
    _row("outer", operands=(Operand("m"), Operand("k"))),
    _row("tensordot", lambda xp, a, b: xp.tensordot(a, b, 1), (_CUBE, Operand("nb"))),
    _row("tensordot_axes", lambda xp, a, b: xp.tensordot(a, b, axes=((0, 1), (0, 1))), (_CUBE, A)),
    _row("einsum", lambda xp, a, b: xp.einsum("mk,kn->nm", a, b), (A, Operand("kn"))),
    _row("einsum_batch", lambda xp, a, b: xp.einsum("bmk,mk->bk", a, b), (Operand("bmk"), A)),
    _row("einsum_three", lambda xp, a, b, c: xp.einsum("mk,kn,mn->", a, b, c),
         (A, Operand("kn"), Operand("mn"))),
]  # fmt: skip

_SHAPES = [
    _row("transpose"),
    _row("transpose_axes", lambda xp, a: xp.transpose(a, (2, 0, 1)), (_CUBE,)),
    _row("T", lambda xp, a: a.T * 2),
    _row("mT", lambda xp, a: a.mT, (_CUBE,)),
    _row("swapaxes", lambda xp, a: xp.swapaxes(a, 0, 2), (_CUBE,)),
    _row("moveaxis", lambda xp, a: xp.moveaxis(a, 0, -1), (_CUBE,)),
    _row("reshape_merge", lambda xp, a: a.reshape(a.shape[0], -1), (_CUBE,)),
    _row("reshape_split", lambda xp, a: xp.reshape(a, (a.shape[0], 2, -1)), (Operand("mn"),)),
    _row("reshape_flat", lambda xp, a: a.reshape((-1,))),
    _row("reshape_mixed", lambda xp, a: a.reshape(a.shape[1], a.shape[0])),
    _row("ravel"),
    _row("expand_dims", lambda xp, a: xp.expand_dims(a, 1)),
    _row("squeeze", lambda xp, a: xp.squeeze(a, 0), (_ROW,)),
    _row("broadcast_to", lambda xp, a: xp.broadcast_to(a, (3, *a.shape))),
    _row("broadcast_rows", lambda xp, a: xp.broadcast_to(a, (4, a.shape[1])), (_ROW,)),
    _row("concatenate", lambda xp, a, b: xp.concatenate([a, b]), (A, B)),
    _row("concatenate_1", lambda xp, a, b: xp.concatenate([a, b, a], axis=1), (A, B)),
    _row("stack", lambda xp, a, b: xp.stack([a, b], axis=1), (A, B)),
    _row("vstack", lambda xp, a, b: xp.vstack([a, b]), (A, _ROW)),
    _row("hstack", lambda xp, a, b: xp.hstack([a, b]), (A, _COLUMN)),
    _row("split", lambda xp, a: xp.split(a, [3], axis=0)),
    _row("split_equal", lambda xp, a: xp.split(a, 2, axis=1), (Operand("mn"),)),
    _row("unstack", lambda xp, a: xp.unstack(a, axis=0), (Operand("bk"),)),
    _row("flip", lambda xp, a: xp.flip(a, 0)),
    _row("roll", lambda xp, a: xp.roll(a, 2, axis=0)),
    _row("roll_flat", lambda xp, a: xp.roll(a, -3)),
    _row("pad", lambda xp, a: xp.pad(a, [(1, 2), (0, 1)])),
    _row("pad_value", lambda xp, a: xp.pad(a, 1, constant_values=3)),
    _row("pad_edge", lambda xp, a: xp.pad(a, ((1, 0), (0, 2)), mode="edge")),
    _row("tile", lambda xp, a: xp.tile(a, (2, 1))),
    _row("repeat", lambda xp, a: xp.repeat(a, 2, axis=0)),
    _row("diagonal"),
    _row("trace"),
    _row("tril"),
    _row("triu", lambda xp, a: xp.triu(a, 1)),
]

_ROWS_AT = Operand("n", "row", "int32")
_LOOK_UP = [
    _row("take", lambda xp, a, i: xp.take(a, i, axis=0), (A, _ROWS_AT), (0,)),
    _row("take_columns", lambda xp, a, i: xp.take(a, i, axis=1), (A, _ROWS_AT), (0,)),
    _row("take_along_axis", lambda xp, a, i: xp.take_along_axis(a, i, 1),
         (A, Operand("mb", "small", "int32")), (0,)),
    _row("index_int", lambda xp, a: a[2]),
    _row("index_last", lambda xp, a: a[..., -1]),
    _row("index_scalar", lambda xp, a: a[1, -2] * 3),
    _row("index_rows", lambda xp, a: a[1:5]),
    _row("index_box", lambda xp, a: a[2:, 1:-1]),
    _row("index_step", lambda xp, a: a[::2, 1::3]),
    _row("index_back", lambda xp, a: a[::-1, ::-2]),
    _row("index_new", lambda xp, a: a[None, :, None, 1]),
    _row("index_ellipsis", lambda xp, a: a[..., 1:3, None], (_CUBE,)),
    _row("index_empty", lambda xp, a: a[3:3]),
    _row("index_list", lambda xp, a: a[np.array([4, 0, -1, 4])]),
    _row("index_disk", lambda xp, a, i: a[i], (A, _ROWS_AT), (0,)),
    _row("index_mixed", lambda xp, a, i: a[1:, i], (A, _ROWS_AT), (0,)),
    _row("index_pairs", lambda xp, a, i: a[i, i], (A, _ROWS_AT), (0,)),
    _row("index_mask", lambda xp, a: a[np.arange(a.shape[0]) % 2 == 0]),
    _row("slices_shared", lambda xp, a: a[1:, :] - a[:-1, :]),
    _row("sort", lambda xp, a: xp.sort(a, axis=0)),
    _row("sort_last", dtypes=ANY_NUMBER, call=lambda xp, a: xp.sort(a)),
    _row("argsort", lambda xp, a: xp.argsort(a, axis=0), grad=()),
    _row("cumsum", lambda xp, a: xp.cumsum(a, axis=0)),
    _row("cumsum_last", lambda xp, a: a.cumsum(1), dtypes=ANY_NUMBER),
    _row("cumsum_flat", lambda xp, a: xp.cumsum(a)),
    _row("cumprod", lambda xp, a: xp.cumprod(a, axis=1)),
    _row("searchsorted", lambda xp, a: xp.searchsorted(jnp.array([-1.0, 0, 1]), a), grad=()),
    _row("digitize", lambda xp, a: xp.digitize(a, jnp.array([-1.0, 0, 1])), grad=()),
    _row("isin", lambda xp, i: xp.isin(i, jnp.array([0, 2])), (_INT,), ()),
    _row("interp", lambda xp, a: xp.interp(a, jnp.array([-1.0, 0, 1]), jnp.array([3.0, 1, 2]))),
    _row("polyval", lambda xp, a: xp.polyval(jnp.array([1.0, -2, 3]), a)),
    _row("diff", lambda xp, a: xp.diff(a, axis=0)),
]  # fmt: skip

OPS: list[Op] = [*_UNARY, *_ACTIVATIONS, *_BINARY, *_CHOICE, *_REDUCTIONS, *_PRODUCTS, *_SHAPES,
                 *_LOOK_UP]  # fmt: skip
DIFFERENTIABLE = [op for op in OPS if op.grad]

# One of each way in which dims of operands and results can relate: these go through every chunk
# grid, every dtype and every transformation.
_CORE = """
add divide power_2 add_row multiply_column row_by_column three_grids thrice exp sigmoid where clip less
softmax softmax_0 softmax_all log_softmax normalise
sum sum_0 sum_last_kept sum_both sum_middle mean_0 var var_0 max max_0 min_last_kept argmax argmin_0
logsumexp_0 prod_0 any_0 norm
matmul matmul_batched matmul_itself vector_matmul tensordot_axes einsum_three
transpose_axes T reshape_flat reshape_merge broadcast_to concatenate concatenate_1 stack split flip
roll pad tile repeat tril
take index_scalar index_box index_step index_mixed slices_shared sort cumsum
""".split()


def rows(*names: str) -> list[Op]:
    """The rows of these names, in order."""
    table = {op.name: op for op in OPS}
    return [table[name] for name in names]


CORE = rows(*_CORE)
