"""`update_`: let a store hold new values."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat, errors
from jask_zarr._tracing import handles, hitype, sinks, updates
from jask_zarr._tracing.expr import Stored
from jask_zarr._tracing.function import Function, trace
from jask_zarr._tracing.hitype import DiskArray, DiskArrayType, UpdateHandle
from jask_zarr._tracing.lift import Lifted, operand


def update_(array: Any, new: Any) -> Any:
    """Replace what the store of an array holds; gives the array of the new values.

    The store is replaced chunk by chunk, and on a local file system so that a crash at any moment
    leaves all of the old values or all of the new ones. The old array is donated: use the
    returned one. Arrays that were recorded from the old values, and that somebody still holds,
    keep the old values. Inside a compiled function all updates take place when it returns.

    Parameters
    ----------
    array : DiskArray
        An array in a store. One in scratch or memory is simply replaced by the new values.
    new : DiskArray, array or scalar
        Of the same shape and dtype; a scalar fills the array.

    Raises
    ------
    ShapeMismatchError, DtypeMismatchError, ReadOnlyStoreError
        Before anything is written.

    Examples
    --------
    >>> import numpy as np, jask_zarr as jz, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     w = jz.DiskArray.from_numpy(np.ones(3, "float32"), path=folder + "/w.zarr")
    ...     w = w.update_(w - 0.5)
    ...     jz.open(folder + "/w.zarr").to_numpy()
    array([0.5, 0.5, 0.5], dtype=float32)
    """
    old_type, new_type = _compat.typeof(array), _compat.typeof(new)
    _check_writable(array)
    function = _conforming(old_type, new_type)
    if new_type != old_type:
        (new,) = Lifted(function, (isinstance(new_type, DiskArrayType),), (True,)).run(new)
    return Updated(old_type).run(array, new)[0]


def _check_writable(array: Any) -> None:
    if isinstance(array, DiskArray):
        leaf = array._value.leaf
        if isinstance(leaf, Stored):
            leaf.source.check()
            if not leaf.source.is_scratch:
                leaf.source.array.check_writable()


def _conforming(old: Any, new: Any) -> Function:
    """What makes the new values fit: the cast and the broadcast of a scalar, or nothing."""
    _check(old, new)
    return _fitting(old.shape, old.dtype, tuple(new.shape), new.dtype, bool(new.weak_type))


@lru_cache(maxsize=1024)
def _fitting(shape: tuple[int, ...], dtype: Any, given: tuple[int, ...], like: Any, weak_type: bool) -> Function:
    struct = jax.ShapeDtypeStruct(given, like, weak_type=weak_type)
    return trace(lambda x: [jnp.broadcast_to(jax.lax.convert_element_type(x, dtype), shape)], [struct])


def _check(old: Any, new: Any) -> None:
    if tuple(new.shape) not in ((), tuple(old.shape)):
        raise errors.ShapeMismatchError(
            f"update_ of an array of shape {old.shape} with new values of shape "
            f"{tuple(new.shape)}: the shapes must be equal (a scalar fills the array)."
        )
    gives_way = new.weak_type and _promoted(old.dtype, new.dtype) == old.dtype
    if np.dtype(new.dtype) != old.dtype and not gives_way:
        raise errors.DtypeMismatchError(
            f"update_ of an array of {old.dtype} with new values of {new.dtype}: cast them on "
            f"purpose, new.astype({str(old.dtype)!r})."
        )


def _promoted(strong: Any, weak: Any) -> Any:
    value = np.zeros((), weak).item()
    return jnp.result_type(np.dtype(strong), type(value))


class Updated(_compat.HiPrimitive):
    """The update of a store, as JAX sees it; as a function it is its second argument."""

    effects = frozenset({_compat.update_effect})

    def __init__(self, aval: DiskArrayType) -> None:
        self.in_avals = (aval, aval.strip_weak_type())
        self.out_aval = (aval.strip_weak_type(),)
        self.params = {"aval": aval}
        super().__init__()

    def run(self, *args: Any) -> Sequence[Any]:
        if _compat.is_evaluating() and not any(isinstance(a, _compat.Tracer) for a in args):
            return self.expand(*args)
        return self(*args)

    def expand(self, array: Any, new: Any) -> tuple[Any, ...]:
        old_value, new_value = operand(array), operand(new)
        if not old_value.is_traced and _compat.is_evaluating():
            updates.flush()
            handles.quiet_point()
            return (DiskArray(updates.apply([(old_value, new_value)])[0]),)
        site = sinks.UpdateSite(old_value, new_value)
        return (DiskArray(new_value, UpdateHandle(site, site.emit())),)

    def jvp(self, primals: Any, tangents: Any) -> tuple[Any, Any]:
        return self(*primals), (tangents[1],)

    def lin(self, moving: Any, *primals: Any) -> tuple[Any, Any]:
        return self(*primals), ()

    def linearized(self, residuals: Any, *tangents: Any) -> tuple[Any, ...]:
        return (tangents[1],)

    def vjp_fwd(self, moving: Any, *args: Any) -> tuple[Any, Any]:
        return self(*args), ()

    def vjp_bwd(self, residuals: Any, cts: Any, *accums: Any) -> None:
        if _compat.is_linear_input(accums[1]) and not _compat.is_zero(cts[0]):
            accums[1].accum(cts[0])

    def batch(self, axis: Any, args: Any, dims: Any) -> tuple[Any, Any]:
        raise NotImplementedError("update_ cannot be mapped by vmap: update the array outside")


hitype.attach("update_", update_)
