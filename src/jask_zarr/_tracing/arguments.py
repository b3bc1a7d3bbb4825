"""The arguments of a call taken apart: arrays are data, everything else is structure."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat
from jask_zarr._tracing.hitype import DiskArray, DiskArrayType


@dataclass(frozen=True)
class Statics:
    """Which arguments are structure: by position, by name, as `jax.jit` takes them."""

    nums: frozenset[int]
    names: frozenset[str]

    @staticmethod
    def of(fn: Callable[..., Any], nums: int | Sequence[int], names: str | Sequence[str]) -> "Statics":
        """Positions name arguments and names have positions, as far as the signature tells."""
        given_nums = {nums} if isinstance(nums, int) else set(nums)
        given_names = {names} if isinstance(names, str) else set(names)
        positional = _positional(fn)
        found = {k for k, name in enumerate(positional) if name in given_names}
        named = {positional[k] for k in given_nums if 0 <= k < len(positional)}
        return Statics(frozenset(given_nums | found), frozenset(given_names | named))


def _positional(fn: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


@jax.tree_util.register_static
class Static:
    """An argument that is structure. Equal values of unlike types (1, 1.0, True) are unlike structure."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = _key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _key(value: Any) -> Any:
    """A static value as something that can be hashed: lists count as tuples."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(_key, value)))
    return (type(value), value)


@dataclass(frozen=True)
class Hole:
    """Where an array was; a random key travels as its numbers."""

    key_impl: str | None = None

    def fill(self, array: Any) -> Any:
        """The argument for the array that takes the place."""
        return array if self.key_impl is None else jax.random.wrap_key_data(array, impl=self.key_impl)


_DATA = (DiskArray, _compat.Tracer, jax.Array, np.ndarray, np.generic, bool, int, float, complex)


@dataclass(frozen=True)
class Arguments:
    """Arguments taken apart."""

    arrays: tuple[Any, ...]
    tree: Any
    rest: tuple[Any, ...]
    """The leaves, with a `Hole` where an array was."""

    @staticmethod
    def of(args: Sequence[Any], kwargs: dict[str, Any], statics: Statics) -> "Arguments":
        args = tuple(Static(a) if k in statics.nums else a for k, a in enumerate(args))
        kwargs = {k: Static(a) if k in statics.names else a for k, a in kwargs.items()}
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = tuple(map(_as_array, filter(_is_data, leaves)))
        return Arguments(arrays, tree, tuple(_hole(leaf) if _is_data(leaf) else leaf for leaf in leaves))

    def apply(self, fn: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function on these arguments with other arrays."""
        given = iter(arrays)
        leaves = [leaf.fill(next(given)) if isinstance(leaf, Hole) else leaf for leaf in self.rest]
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        return fn(*map(_unwrapped, args), **{k: _unwrapped(a) for k, a in kwargs.items()})

    @property
    def key(self) -> Any:
        """Equal for calls that have one trace."""
        types = tuple(_signature(a) for a in self.arrays)
        return (self.tree, self.rest, types, _compat.x64_is_enabled())


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _hole(leaf: Any) -> Hole:
    return Hole(str(jax.random.key_impl(leaf))) if _is_key(leaf) else Hole()


def _is_data(leaf: Any) -> bool:
    return isinstance(leaf, _DATA)


def _as_array(leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return jnp.array(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _unwrapped(arg: Any) -> Any:
    return arg.value if isinstance(arg, Static) else arg


def _signature(array: Any) -> Any:
    aval = _compat.typeof(array)
    return (isinstance(aval, DiskArrayType), tuple(aval.shape), aval.dtype, aval.weak_type)
