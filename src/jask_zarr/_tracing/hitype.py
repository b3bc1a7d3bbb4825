"""`DiskArrayType`: what JAX's transformations see of a `DiskArray`.

The type is a shape and a dtype: it has no path, so a function is traced and compiled once for
any files and chunks. It lowers to one integer (see `handles`). Operators and methods that are
operations are attached from above, by `attach`, to the value and to the type at once.
"""

from typing import Any

import jax
import numpy as np

from jask_zarr import _compat
from jask_zarr._tracing import force, guards, handles, sinks, updates
from jask_zarr._tracing.array import DiskArray as DiskArray
from jask_zarr._tracing.array import filled
from jask_zarr._tracing.expr import Traced, Value

MAX_LOWERED_DEPTH = 32
"""Recorded calls on top of one another before an array that a compiled function takes is forced."""


class DiskArrayType(_compat.HiType):
    """The type of a `DiskArray` in JAX: its shape and dtype."""

    mat = None
    is_high = True
    has_qdd = False

    def __init__(self, shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> None:
        self.shape = tuple(int(n) for n in shape)
        self._dtype = np.dtype(dtype)
        self.weak_type = bool(weak_type)

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return guards.dtype_of(self, self._dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self._dtype, self.weak_type))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DiskArrayType) and (self.shape, self._dtype, self.weak_type) == (
            other.shape,
            other._dtype,
            other.weak_type,
        )

    def __repr__(self) -> str:
        return f"DiskArrayType(shape={self.shape}, dtype={self.dtype})"

    def str_short(self, short_dtypes: bool = False, **_: Any) -> str:
        dims = ",".join(map(str, self.shape))
        return f"Disk{self.dtype.name}[{dims}]"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def sharding(self) -> Any:
        """JAX reads it; `zeros_like` with a dtype reads it before it makes a dense array."""
        guards.check_sharding(self)
        return _compat.no_sharding(self.shape)

    @property
    def __jax_array__(self) -> Any:
        if _compat.called_by_operator():
            raise AttributeError("the operator of the array on disk is used")
        return _compat.aval_method(guards.as_jax_array)

    def update_weak_type(self, weak_type: bool) -> "DiskArrayType":
        return DiskArrayType(self.shape, self.dtype, weak_type)

    def strip_weak_type(self) -> "DiskArrayType":
        return self.update_weak_type(False)

    def normalize(self) -> "DiskArrayType":
        return self.strip_weak_type()

    # lowering
    def lo_ty(self) -> list[Any]:
        return [_compat.scalar_aval(np.dtype("int32"))]

    def lower_val(self, value: Any) -> list[Any]:
        if value.ndim > self.ndim:  # the rows that `scan` goes over
            return [_lower_rows(value)]
        return [_lower(value)]

    def raise_val(self, number: Any) -> DiskArray:
        if isinstance(number, _compat.Tracer):
            return self._of_tracer(number)
        try:
            numbers = np.asarray(number)
        except _compat.jax_runtime_error as error:
            raise sinks.original_failure(error) from None
        entries = [handles.find(int(n)) for n in numbers.ravel()]
        updates.flush_handles(entries)
        for entry in entries:
            handles.adopt(entry)
        values = [entry._value for entry in entries]
        return DiskArray(values[0] if numbers.ndim == 0 else sinks.stack(values))

    def _of_tracer(self, number: Any) -> DiskArray:
        leaf = Traced(number, is_handle=True)
        shape = (*number.aval.shape, *self.shape)
        return DiskArray(Value(shape, self.dtype, self.weak_type, leaf=leaf))

    # autodiff
    def to_tangent_aval(self) -> "DiskArrayType":
        return DiskArrayType(self.shape, _compat.tangent_dtype(self.dtype))

    def to_ct_aval(self) -> "DiskArrayType":
        return self.to_tangent_aval()

    def vspace_zero(self) -> Any:
        if self._dtype == jax.dtypes.float0:
            return _no_gradient(self.shape)
        return filled(self.shape, 0, self.dtype)

    def vspace_add(self, x: Any, y: Any) -> Any:
        return guards.operations["add"](x, y)

    # vmap and scan
    def dec_rank(self, size: Any, spec: Any) -> "DiskArrayType":
        if spec is None:
            return self
        return DiskArrayType((*self.shape[:spec], *self.shape[spec + 1 :]), self.dtype)

    def inc_rank(self, size: Any, spec: Any) -> "DiskArrayType":
        if spec is None:
            return self
        return DiskArrayType((*self.shape[:spec], size, *self.shape[spec:]), self.dtype)

    def leading_axis_spec(self) -> int:
        return 0


def _no_gradient(shape: tuple[int, ...]) -> np.ndarray:
    """What `jax.vjp` gives for an integer argument."""
    if _compat.is_in_grad():
        raise TypeError(
            f"grad requires real- or complex-valued inputs, but got integers or booleans: an array of shape {shape} on "
            "disk. Cast it (x.astype('float32')), or leave its position out of argnums."
        )
    return np.broadcast_to(np.zeros((), jax.dtypes.float0), shape)


def _lower(array: DiskArray) -> Any:
    value = array._value
    if array._handle is not None:
        return array._handle.escape()
    if isinstance(value.leaf, Traced) and np.ndim(value.leaf.tracer) == 0:
        return value.leaf.tracer
    if value.is_traced:
        return sinks.leave(value)
    _prepare(value)
    return handles.lower(value)


def _lower_rows(array: DiskArray) -> Any:
    value = array._value
    if isinstance(value.leaf, Traced) and np.ndim(value.leaf.tracer) == 1:
        return value.leaf.tracer
    if value.is_traced:
        return sinks.leave_rows(value)
    _prepare(value)
    return handles.lower_many(sinks.rows(value))


def _prepare(value: Value) -> None:
    """Free what earlier calls used, and do not let loops pile up expressions."""
    force.check(value)
    updates.flush()
    handles.quiet_point()
    if value.is_costly or value.depth > MAX_LOWERED_DEPTH:
        force.force([value])


class UpdateHandle:
    """The number of an updated array inside a compiled function."""

    def __init__(self, site: sinks.UpdateSite, tracer: Any) -> None:
        self.site, self.tracer = site, tracer

    def escape(self) -> Any:
        self.site.escapes = True
        return self.tracer


_BINARY = "add sub mul truediv floordiv mod divmod pow matmul lshift rshift xor and or"
_REFLECTED = {f"r{name}": name for name in _BINARY.split()} | dict(eq="eq", ne="ne", lt="gt", gt="lt", le="ge", ge="le")
"""Which operator of an ordinary left operand each operator of ours stands for."""


def attach(name: str, function: Any) -> None:
    """Make an operation an operator, method or property of arrays and of their tracers.

    Parameters
    ----------
    name : str
        As on the array: ``"__add__"``, ``"sum"``, ``"T"``.
    function : callable or property
        Its first argument is the array.
    """
    setattr(DiskArray, name, function)
    short = name.strip("_")
    if name.startswith("__") and short in _REFLECTED:
        _compat.defer_operator(_REFLECTED[short], function, lambda aval: isinstance(aval, DiskArrayType))
    if isinstance(function, property):
        setattr(DiskArrayType, name, _compat.aval_property(function.fget))
    elif name.startswith("__"):
        setattr(DiskArrayType, f"_{short}", staticmethod(function))
    else:
        setattr(DiskArrayType, name, _compat.aval_method(function))


DiskArray.aval = property(lambda x: DiskArrayType(x.shape, x._value.dtype, x.weak_type))  # type: ignore[attr-defined]
_compat.register_hitype(DiskArray, lambda x: x.aval)
_compat.attend_calls(lambda x: isinstance(x, DiskArray), sinks.original_failure, updates.flush)
