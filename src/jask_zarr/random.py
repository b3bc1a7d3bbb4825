"""The `jax.random` namespace for arrays of any size.

Every function draws what its namesake in `jax.random` draws from the same key, bit for bit, in
whatever tiles it is computed: a number follows from the key and its position, so a tile computes
its own numbers and nothing is ever whole in memory. The result is pending, as that of any other
operation: a mask for dropout is drawn where it is used, and drawn again in the backward pass
rather than stored.

That holds for keys of JAX's default generator, threefry. Numbers of the other generators depend on
all that are drawn together: they are drawn whole, within the memory budget.

Examples
--------
>>> import jask_zarr as jz
>>> key, other = jz.random.split(jz.random.key(0))
>>> noise = jz.random.normal(key, (100_000, 100_000))
>>> noise
DiskArray(shape=(100000, 100000), dtype=float32, pending)
>>> noise[:2, :2].shape
(2, 2)
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
from jax.random import PRNGKey, clone, fold_in, key, key_data, key_impl, split, wrap_key_data

from jask_zarr._tracing.arguments import Arguments, Statics
from jask_zarr._tracing.creation import stored_if
from jask_zarr._tracing.guards import is_dense_tracing
from jask_zarr._tracing.lift import Call, recorded

__all__ = [  # noqa: RUF022
    # keys
    "PRNGKey", "clone", "fold_in", "key", "key_data", "key_impl", "split", "wrap_key_data",
    # numbers
    "bernoulli", "bits", "categorical", "cauchy", "choice", "double_sided_maxwell", "exponential", "geometric",
    "gumbel", "laplace", "logistic", "lognormal", "maxwell", "multivariate_normal", "normal", "pareto",
    "permutation", "rademacher", "randint", "rayleigh", "triangular", "truncated_normal", "uniform", "wald",
    "weibull_min",
]  # fmt: skip

_STRUCTURE = ("shape", "dtype", "axis", "mode", "replace", "independent", "method")
_STORAGE = ("chunks", "path", "shards", "compressors", "filters", "serializer", "zarr_format", "overwrite",
            "attributes", "dimension_names", "fill_value")  # fmt: skip


def _drawn(draw: Callable[..., Any], count: str = "") -> Callable[..., Any]:
    """The function of `jax.random` with a pending result; an int named `count` is structure."""
    structure = Statics.of(draw, (), _STRUCTURE)
    counted = Statics.of(draw, (), (*_STRUCTURE, count))
    calls: dict[Any, Call] = {}

    @wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        storage = {name: kwargs.pop(name) for name in _STORAGE if name in kwargs}
        is_counted = bool(count) and isinstance(kwargs.get(count, args[1] if len(args) > 1 else None), int)
        given = Arguments.of(args, kwargs, counted if is_counted else structure)
        if is_dense_tracing():
            return draw(*args, **kwargs)
        return stored_if(recorded(draw, given, calls), storage)

    drawn.__doc__ = _DOC.format(name=draw.__name__)
    return drawn


_DOC = """As `jax.random.{name}`: the same numbers, as an array that is computed when it is needed.

Parameters
----------
key, shape, dtype, ...
    As in `jax.random.{name}`; the key may be typed or raw. Parameters of the distribution may
    be on disk.
chunks, path, **keywords
    Compute the array now and store it, as `DiskArray.save` does; in scratch if there is no path.
"""

bits = _drawn(jax.random.bits)
uniform = _drawn(jax.random.uniform)
randint = _drawn(jax.random.randint)
normal = _drawn(jax.random.normal)
truncated_normal = _drawn(jax.random.truncated_normal)
lognormal = _drawn(jax.random.lognormal)
multivariate_normal = _drawn(jax.random.multivariate_normal)
bernoulli = _drawn(jax.random.bernoulli)
rademacher = _drawn(jax.random.rademacher)
categorical = _drawn(jax.random.categorical)
geometric = _drawn(jax.random.geometric)
exponential = _drawn(jax.random.exponential)
gumbel = _drawn(jax.random.gumbel)
laplace = _drawn(jax.random.laplace)
logistic = _drawn(jax.random.logistic)
cauchy = _drawn(jax.random.cauchy)
rayleigh = _drawn(jax.random.rayleigh)
maxwell = _drawn(jax.random.maxwell)
double_sided_maxwell = _drawn(jax.random.double_sided_maxwell)
pareto = _drawn(jax.random.pareto)
triangular = _drawn(jax.random.triangular)
wald = _drawn(jax.random.wald)
weibull_min = _drawn(jax.random.weibull_min)
choice = _drawn(jax.random.choice, count="a")
permutation = _drawn(jax.random.permutation, count="x")
