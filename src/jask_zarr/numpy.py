"""The `jax.numpy` namespace over arrays of any size.

Every op here is one line: ``lift`` of the JAX function of the same name.  What decides the
*structure* of a result (axes, shapes, dtypes) is static; everything else, Python scalars
included, is data, so that ``x * 0.1`` and ``x * 0.2`` share one plan.  Given no `DiskArray`, an
op is its JAX namesake and nothing more.

Examples
--------
>>> import numpy as np, jask_zarr as jz
>>> a = jz.DiskArray.from_numpy(np.arange(6.0, dtype="float32").reshape(2, 3), chunks=(1, 2))
>>> float(jz.sum(jz.square(a) - 1))
49.0
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jask_zarr._indexing import getitem
from jask_zarr._tracing import hitype
from jask_zarr._tracing.lift import lift

# fmt: off
__all__ = [  # noqa: RUF022
    "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "angle", "any", "arccos",
    "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "array_equal",
    "asin", "asinh", "astype", "atan", "atan2", "atanh", "average", "bitwise_and", "bitwise_count",
    "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "broadcast_arrays", "broadcast_to", "cbrt", "ceil", "celu", "clip", "concat", "concatenate", "conj",
    "conjugate", "copysign", "cos", "cosh", "count_nonzero", "cumprod", "cumsum", "deg2rad", "degrees",
    "diagonal", "diff", "digitize", "divide", "divmod", "dot", "einsum", "elu", "equal", "exp", "exp2",
    "expand_dims", "expm1", "fabs", "flip", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "gcd",
    "gelu", "glu", "greater", "greater_equal", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh",
    "heaviside", "hstack", "hypot", "imag", "inner", "interp", "invert", "isclose", "isfinite", "isin", "isinf",
    "isnan", "isneginf", "isposinf", "lcm", "leaky_relu", "left_shift", "less", "less_equal", "log", "log10",
    "log1p", "log2", "log_sigmoid", "log_softmax", "logaddexp", "logaddexp2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "matmul", "matrix_transpose", "max", "maximum", "mean", "median",
    "min", "minimum", "mish", "mod", "moveaxis", "multiply", "nan_to_num", "nanargmax", "nanargmin", "nanmax",
    "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
    "negative", "norm", "not_equal", "one_hot", "outer", "pad", "percentile", "permute_dims", "polyval",
    "positive", "pow", "power", "prod", "ptp", "quantile", "rad2deg", "radians", "ravel", "real", "reciprocal",
    "relu", "relu6", "remainder", "repeat", "reshape", "right_shift", "rint", "roll", "round", "searchsorted",
    "select", "selu", "sigmoid", "sign", "signbit", "silu", "sin", "sinc", "sinh", "soft_sign", "softmax",
    "softplus", "sort", "sparse_plus", "sparse_sigmoid", "split", "sqrt", "square", "squareplus", "squeeze",
    "stack", "standardize", "std", "stop_gradient", "subtract", "sum", "swapaxes", "swish", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "trace", "transpose", "tril", "triu", "true_divide",
    "trunc", "unstack", "var", "vdot", "vecdot", "vstack", "where",
]
# fmt: on

_PRECISION = ("precision", "preferred_element_type")
_REDUCE = ("axis", "dtype", "keepdims", "promote_integers")
_SEARCH = ("axis", "keepdims")
_MOMENT = ("axis", "dtype", "keepdims", "ddof", "correction")
_QUANTILE = ("axis", "overwrite_input", "method", "keepdims")
_SORT = ("axis", "kind", "order", "stable", "descending", "dtype")

# ------------------------------------------------------------------ arithmetic
add = lift(jnp.add)
subtract = lift(jnp.subtract)
multiply = lift(jnp.multiply)
divide = lift(jnp.divide)
true_divide = lift(jnp.true_divide)
floor_divide = lift(jnp.floor_divide)
remainder = lift(jnp.remainder)
mod = lift(jnp.mod)
fmod = lift(jnp.fmod)
divmod = lift(jnp.divmod)
negative = lift(jnp.negative)
positive = lift(jnp.positive)
reciprocal = lift(jnp.reciprocal)
square = lift(jnp.square)
float_power = lift(jnp.float_power)
maximum = lift(jnp.maximum)
minimum = lift(jnp.minimum)
fmax = lift(jnp.fmax)
fmin = lift(jnp.fmin)
clip = lift(jnp.clip)
abs = lift(jnp.abs)
absolute = lift(jnp.absolute)
fabs = lift(jnp.fabs)
sign = lift(jnp.sign)
copysign = lift(jnp.copysign)
heaviside = lift(jnp.heaviside)
gcd = lift(jnp.gcd)
lcm = lift(jnp.lcm)

_power = lift(jnp.power)
_integer_power = lift(jnp.power, static_argnums=(1,))


def power(x1: Any, x2: Any, /) -> Any:
    """Raise to a power, as `jax.numpy.power`; a Python int exponent is static (``x ** 2``)."""
    return _integer_power(x1, x2) if isinstance(x2, int) else _power(x1, x2)


pow = power

# ------------------------------------------------------------------ unary functions
sqrt = lift(jnp.sqrt)
cbrt = lift(jnp.cbrt)
exp = lift(jnp.exp)
exp2 = lift(jnp.exp2)
expm1 = lift(jnp.expm1)
log = lift(jnp.log)
log2 = lift(jnp.log2)
log10 = lift(jnp.log10)
log1p = lift(jnp.log1p)
logaddexp = lift(jnp.logaddexp)
logaddexp2 = lift(jnp.logaddexp2)
sin = lift(jnp.sin)
cos = lift(jnp.cos)
tan = lift(jnp.tan)
sinc = lift(jnp.sinc)
arcsin = lift(jnp.arcsin)
arccos = lift(jnp.arccos)
arctan = lift(jnp.arctan)
arctan2 = lift(jnp.arctan2)
hypot = lift(jnp.hypot)
sinh = lift(jnp.sinh)
cosh = lift(jnp.cosh)
tanh = lift(jnp.tanh)
arcsinh = lift(jnp.arcsinh)
arccosh = lift(jnp.arccosh)
arctanh = lift(jnp.arctanh)
deg2rad = lift(jnp.deg2rad)
rad2deg = lift(jnp.rad2deg)
degrees = lift(jnp.degrees)
radians = lift(jnp.radians)
real = lift(jnp.real)
imag = lift(jnp.imag)
conj = lift(jnp.conj)
conjugate = lift(jnp.conjugate)
angle = lift(jnp.angle, static_argnames=("deg",))

# ------------------------------------------------------------------ rounding, missing values
floor = lift(jnp.floor)
ceil = lift(jnp.ceil)
trunc = lift(jnp.trunc)
rint = lift(jnp.rint)
round = lift(jnp.round, static_argnames=("decimals",))
isnan = lift(jnp.isnan)
isinf = lift(jnp.isinf)
isposinf = lift(jnp.isposinf)
isneginf = lift(jnp.isneginf)
isfinite = lift(jnp.isfinite)
signbit = lift(jnp.signbit)
nan_to_num = lift(jnp.nan_to_num, static_argnames=("copy",))

# ------------------------------------------------------------------ comparison and choice
equal = lift(jnp.equal)
not_equal = lift(jnp.not_equal)
less = lift(jnp.less)
less_equal = lift(jnp.less_equal)
greater = lift(jnp.greater)
greater_equal = lift(jnp.greater_equal)
isclose = lift(jnp.isclose, static_argnames=("equal_nan",))
allclose = lift(jnp.allclose, static_argnames=("equal_nan",))
array_equal = lift(jnp.array_equal, static_argnames=("equal_nan",))
where = lift(jnp.where, static_argnames=("size",))
select = lift(jnp.select)

# ------------------------------------------------------------------ logic and bits
logical_and = lift(jnp.logical_and)
logical_or = lift(jnp.logical_or)
logical_xor = lift(jnp.logical_xor)
logical_not = lift(jnp.logical_not)
bitwise_and = lift(jnp.bitwise_and)
bitwise_or = lift(jnp.bitwise_or)
bitwise_xor = lift(jnp.bitwise_xor)
bitwise_not = lift(jnp.bitwise_not)
bitwise_count = lift(jnp.bitwise_count)
invert = lift(jnp.invert)
left_shift = lift(jnp.left_shift)
right_shift = lift(jnp.right_shift)

# ------------------------------------------------------------------ dtype
astype = lift(jnp.astype, static_argnums=(1,), static_argnames=("copy", "device"))
stop_gradient = lift(jax.lax.stop_gradient)

# ------------------------------------------------------------------ reductions
sum = lift(jnp.sum, static_argnames=_REDUCE)
prod = lift(jnp.prod, static_argnames=_REDUCE)
mean = lift(jnp.mean, static_argnames=_REDUCE)
average = lift(jnp.average, static_argnames=("axis", "returned", "keepdims"))
var = lift(jnp.var, static_argnames=_MOMENT)
std = lift(jnp.std, static_argnames=_MOMENT)
max = lift(jnp.max, static_argnames=_SEARCH)
min = lift(jnp.min, static_argnames=_SEARCH)
amax = lift(jnp.amax, static_argnames=_SEARCH)
amin = lift(jnp.amin, static_argnames=_SEARCH)
ptp = lift(jnp.ptp, static_argnames=_SEARCH)
argmax = lift(jnp.argmax, static_argnames=_SEARCH)
argmin = lift(jnp.argmin, static_argnames=_SEARCH)
any = lift(jnp.any, static_argnames=_SEARCH)
all = lift(jnp.all, static_argnames=_SEARCH)
count_nonzero = lift(jnp.count_nonzero, static_argnames=_SEARCH)
logsumexp = lift(jax.nn.logsumexp, static_argnames=("axis", "keepdims", "return_sign"))
norm = lift(jnp.linalg.norm, static_argnames=("ord", "axis", "keepdims"))
nansum = lift(jnp.nansum, static_argnames=_REDUCE)
nanprod = lift(jnp.nanprod, static_argnames=_REDUCE)
nanmean = lift(jnp.nanmean, static_argnames=_REDUCE)
nanvar = lift(jnp.nanvar, static_argnames=_MOMENT)
nanstd = lift(jnp.nanstd, static_argnames=_MOMENT)
nanmax = lift(jnp.nanmax, static_argnames=_SEARCH)
nanmin = lift(jnp.nanmin, static_argnames=_SEARCH)
nanargmax = lift(jnp.nanargmax, static_argnames=_SEARCH)
nanargmin = lift(jnp.nanargmin, static_argnames=_SEARCH)
median = lift(jnp.median, static_argnames=_QUANTILE)
quantile = lift(jnp.quantile, static_argnames=_QUANTILE)
percentile = lift(jnp.percentile, static_argnames=_QUANTILE)
nanmedian = lift(jnp.nanmedian, static_argnames=_QUANTILE)
nanquantile = lift(jnp.nanquantile, static_argnames=_QUANTILE)
nanpercentile = lift(jnp.nanpercentile, static_argnames=_QUANTILE)

# ------------------------------------------------------------------ products
matmul = lift(jnp.matmul, static_argnames=_PRECISION)
dot = lift(jnp.dot, static_argnames=_PRECISION)
vdot = lift(jnp.vdot, static_argnames=_PRECISION)
inner = lift(jnp.inner, static_argnames=_PRECISION)
vecdot = lift(jnp.vecdot, static_argnames=("axis", *_PRECISION))
outer = lift(jnp.outer)
tensordot = lift(jnp.tensordot, static_argnames=("axes", *_PRECISION))
einsum = lift(jnp.einsum, static_argnums=(0,), static_argnames=("optimize", *_PRECISION))

# ------------------------------------------------------------------ shape
transpose = lift(jnp.transpose, static_argnames=("axes",))
permute_dims = lift(jnp.permute_dims, static_argnames=("axes",))
matrix_transpose = lift(jnp.matrix_transpose)
swapaxes = lift(jnp.swapaxes, static_argnames=("axis1", "axis2"))
moveaxis = lift(jnp.moveaxis, static_argnames=("source", "destination"))
reshape = lift(jnp.reshape, static_argnames=("shape", "order", "copy"))
ravel = lift(jnp.ravel, static_argnames=("order",))
expand_dims = lift(jnp.expand_dims, static_argnames=("axis",))
squeeze = lift(jnp.squeeze, static_argnames=("axis",))
broadcast_to = lift(jnp.broadcast_to, static_argnames=("shape",))
broadcast_arrays = lift(jnp.broadcast_arrays)
concatenate = lift(jnp.concatenate, static_argnames=("axis", "dtype"))
stack = lift(jnp.stack, static_argnames=("axis", "dtype"))
vstack = lift(jnp.vstack, static_argnames=("dtype",))
hstack = lift(jnp.hstack, static_argnames=("dtype",))
split = lift(jnp.split, static_argnames=("indices_or_sections", "axis"))
unstack = lift(jnp.unstack, static_argnames=("axis",))
flip = lift(jnp.flip, static_argnames=("axis",))
roll = lift(jnp.roll, static_argnames=("shift", "axis"))
pad = lift(jnp.pad, static_argnames=("pad_width", "mode", "stat_length", "reflect_type"))
tile = lift(jnp.tile, static_argnames=("reps",))
repeat = lift(jnp.repeat, static_argnames=("repeats", "axis", "total_repeat_length"))
diagonal = lift(jnp.diagonal, static_argnames=("offset", "axis1", "axis2"))
trace = lift(jnp.trace, static_argnames=("offset", "axis1", "axis2", "dtype"))
tril = lift(jnp.tril, static_argnames=("k",))
triu = lift(jnp.triu, static_argnames=("k",))

# ------------------------------------------------------------------ look-up, order, scans
take = lift(jnp.take, static_argnames=("axis", "mode", "unique_indices", "indices_are_sorted", "fill_value"))
take_along_axis = lift(jnp.take_along_axis, static_argnames=("axis", "mode"))
sort = lift(jnp.sort, static_argnames=_SORT)
argsort = lift(jnp.argsort, static_argnames=_SORT)
cumsum = lift(jnp.cumsum, static_argnames=("axis", "dtype"))
cumprod = lift(jnp.cumprod, static_argnames=("axis", "dtype"))
diff = lift(jnp.diff, static_argnames=("n", "axis"))
searchsorted = lift(jnp.searchsorted, static_argnames=("side", "method"))
digitize = lift(jnp.digitize, static_argnames=("right", "method"))
isin = lift(jnp.isin, static_argnames=("assume_unique", "invert", "method"))
interp = lift(jnp.interp)
polyval = lift(jnp.polyval, static_argnames=("unroll",))

# ------------------------------------------------------------------ neural networks
softmax = lift(jax.nn.softmax, static_argnames=("axis",))
log_softmax = lift(jax.nn.log_softmax, static_argnames=("axis",))
standardize = lift(jax.nn.standardize, static_argnames=("axis",))
one_hot = lift(jax.nn.one_hot, static_argnames=("num_classes", "dtype", "axis"))
relu = lift(jax.nn.relu)
relu6 = lift(jax.nn.relu6)
leaky_relu = lift(jax.nn.leaky_relu)
elu = lift(jax.nn.elu)
celu = lift(jax.nn.celu)
selu = lift(jax.nn.selu)
gelu = lift(jax.nn.gelu, static_argnames=("approximate",))
glu = lift(jax.nn.glu, static_argnames=("axis",))
silu = lift(jax.nn.silu)
swish = lift(jax.nn.swish)
mish = lift(jax.nn.mish)
sigmoid = lift(jax.nn.sigmoid)
log_sigmoid = lift(jax.nn.log_sigmoid)
softplus = lift(jax.nn.softplus)
squareplus = lift(jax.nn.squareplus)
soft_sign = lift(jax.nn.soft_sign)
sparse_plus = lift(jax.nn.sparse_plus)
sparse_sigmoid = lift(jax.nn.sparse_sigmoid)
hard_tanh = lift(jax.nn.hard_tanh)
hard_sigmoid = lift(jax.nn.hard_sigmoid)
hard_silu = lift(jax.nn.hard_silu)
hard_swish = lift(jax.nn.hard_swish)

# ------------------------------------------------------------------ further names of the array API standard
acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
atan, atan2, atanh = arctan, arctan2, arctanh
bitwise_invert, bitwise_left_shift, bitwise_right_shift = bitwise_not, left_shift, right_shift
concat = concatenate


# ------------------------------------------------------------------ operators, methods, properties
def _reflected(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: op(other, self)


def _iterate(self: Any) -> Iterator[Any]:
    return (self[row] for row in range(len(self)))


def _reshape(self: Any, *shape: Any, order: str = "C") -> Any:
    return reshape(self, shape[0] if len(shape) == 1 else shape, order=order)


def _transpose(self: Any, *axes: Any) -> Any:
    return transpose(self, (axes[0] if len(axes) == 1 else axes) or None)


def _split(self: Any, indices: Any, axis: int) -> Any:
    return split(self, tuple(int(i) for i in indices), axis)  # as `jax.jacfwd` and `jax.hessian` ask for it


_BINARY = dict(add=add, sub=subtract, mul=multiply, truediv=divide, floordiv=floor_divide,
               mod=remainder, divmod=divmod, pow=power, matmul=matmul, lshift=left_shift,
               rshift=right_shift, xor=bitwise_xor)  # fmt: skip
_BINARY |= {"and": bitwise_and, "or": bitwise_or}
_COMPARE = dict(eq=equal, ne=not_equal, lt=less, le=less_equal, gt=greater, ge=greater_equal)
_UNARY = dict(neg=negative, pos=positive, abs=abs, invert=invert, round=round, getitem=getitem,
              iter=_iterate)  # fmt: skip
_METHODS = dict(sum=sum, prod=prod, mean=mean, var=var, std=std, max=max, min=min, any=any,
                all=all, argmax=argmax, argmin=argmin, ptp=ptp, cumsum=cumsum, cumprod=cumprod,
                sort=sort, argsort=argsort, clip=clip, round=round, conj=conj, dot=dot, take=take,
                repeat=repeat, astype=astype, ravel=ravel, flatten=ravel, squeeze=squeeze,
                swapaxes=swapaxes, diagonal=diagonal, trace=trace, reshape=_reshape,
                transpose=_transpose, _split=_split)  # fmt: skip
_PROPERTIES = dict(T=transpose, mT=matrix_transpose, real=real, imag=imag)

for _name, _op in (_BINARY | _COMPARE | _UNARY).items():
    hitype.attach(f"__{_name}__", _op)
for _name, _op in _BINARY.items():
    hitype.attach(f"__r{_name}__", _reflected(_op))
for _name, _op in _METHODS.items():
    hitype.attach(_name, _op)
for _name, _op in _PROPERTIES.items():
    hitype.attach(_name, property(_op))
