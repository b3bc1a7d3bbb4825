"""`DiskArray`, the value, and `DiskArrayType`, what JAX's transformations see of it.

The type is a shape and a dtype: it has no path, so a function is traced and compiled once for
any files and chunks. It lowers to one integer (see `handles`). Operators and methods that are
operations are attached from above, by `attach`, to the value and to the type at once.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat, _config, _disk, errors
from jask_zarr._tracing import force, handles, sinks, updates
from jask_zarr._tracing.expr import Stored, Traced, Value, collect, record, resident
from jask_zarr._tracing.expr import stored as stored_value
from jask_zarr._tracing.function import Function, trace
from jask_zarr._tracing.sources import Source, source_of

MAX_DEPTH = 128
"""Recorded calls on top of one another before the operands are forced."""
MAX_LOWERED_DEPTH = 32
"""The same for an array that is passed to a compiled function."""


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
        maker = _compat.dense_maker()
        return self._dtype if maker is None or is_dense_tracing() else filling_dtype(maker, self)

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
        if _compat.dense_maker() and not is_dense_tracing():
            raise dense_copy(f"an array of type {self}")
        return _compat.no_sharding(self.shape)

    @property
    def __jax_array__(self) -> Any:
        if _compat.called_by_operator():
            raise AttributeError("the operator of the array on disk is used")
        return _compat.aval_method(_as_jax_array)

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

    def raise_val(self, number: Any) -> "DiskArray":
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

    def _of_tracer(self, number: Any) -> "DiskArray":
        leaf = Traced(number, is_handle=True)
        shape = (*number.aval.shape, *self.shape)
        return DiskArray(Value(shape, self.dtype, self.weak_type, leaf=leaf))

    # autodiff
    def to_tangent_aval(self) -> "DiskArrayType":
        return DiskArrayType(self.shape, _compat.tangent_dtype(self.dtype))

    def to_ct_aval(self) -> "DiskArrayType":
        return self.to_tangent_aval()

    def vspace_zero(self) -> "DiskArray":
        return filled(self.shape, 0, self.dtype)

    def vspace_add(self, x: Any, y: Any) -> Any:
        return _operations["add"](x, y)

    # vmap and scan
    def dec_rank(self, size: int | None, spec: Any) -> "DiskArrayType":
        if spec is None:
            return self
        return DiskArrayType((*self.shape[:spec], *self.shape[spec + 1 :]), self.dtype)

    def inc_rank(self, size: int | None, spec: Any) -> "DiskArrayType":
        if spec is None:
            return self
        return DiskArrayType((*self.shape[:spec], size, *self.shape[spec:]), self.dtype)

    def leading_axis_spec(self) -> int:
        return 0


_operations: dict[str, Callable[..., Any]] = {}
"""Operations that JAX asks the type for; filled by the modules above."""


def filling_dtype(maker: str, like: Any) -> Any:
    """The answer to `jax.numpy.zeros_like`, which would make a dense array of that dtype."""
    if maker != "full_like":
        raise dense_copy(repr(like))
    dtype = like._dtype

    def make(new_shape: Any, value: Any) -> DiskArray:
        if isinstance(value, _compat.Tracer):
            raise dense_copy(repr(like))
        return filled(new_shape, value, dtype)

    return _compat.FillingDtype(make)


def dense_copy(what: str) -> errors.DenseCopyError:
    """What to say when JAX is about to build all of an array in memory."""
    return errors.DenseCopyError(
        f"JAX asked for all of {what} as one array in memory. Use the function of jask_zarr in "
        "place of that of jax.numpy (jask_zarr.zeros_like, jask_zarr.sum, ...), put plain JAX "
        "code (optax's init and apply_updates too) into jask_zarr.jit or jask_zarr.lift, or "
        "load the array with a.to_numpy()."
    )


def _lower(array: "DiskArray") -> Any:
    value = array._value
    if array._handle is not None:
        return array._handle.escape()
    if isinstance(value.leaf, Traced) and np.ndim(value.leaf.tracer) == 0:
        return value.leaf.tracer
    if value.is_traced:
        return sinks.leave(value)
    _prepare(value)
    return handles.lower(value)


def _lower_rows(array: "DiskArray") -> Any:
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


class DiskArray:
    """An array that may be larger than memory.

    It is *stored* (in a zarr array), *pending* (recorded operations that are computed when their
    values are needed) or small and in memory. Its value never changes.

    Create one with `jask_zarr.open`, `DiskArray.from_numpy`, `jask_zarr.zeros` and the like.

    Examples
    --------
    >>> import numpy as np, jax, jask_zarr as jz
    >>> a = jz.DiskArray.from_numpy(np.arange(6, dtype="float32").reshape(2, 3), chunks=(1, 3))
    >>> a.shape, a.chunks
    ((2, 3), (1, 3))
    >>> jax.grad(lambda a: jz.sum(a * a))(a).to_numpy()
    array([[ 0.,  2.,  4.],
           [ 6.,  8., 10.]], dtype=float32)
    """

    __slots__ = ("__weakref__", "_handle", "_value")

    __array_priority__ = 1000

    def __init__(self, value: Value, handle: UpdateHandle | None = None) -> None:
        if not isinstance(value, Value):
            raise TypeError(
                f"DiskArray cannot be made of a {type(value).__name__} directly: use "
                "jask_zarr.open(store) or DiskArray.from_numpy(array, chunks=...)"
            )
        self._value = value
        self._handle = handle
        if not value.is_traced:
            with force.lock:
                force.live.add(self)

    # what it is
    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        maker = _compat.dense_maker()
        return self._dtype if maker is None or is_dense_tracing() else filling_dtype(maker, self)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self._value.dtype

    @property
    def weak_type(self) -> bool:
        """Does its dtype give way in promotion, as that of a Python scalar does?"""
        return self._value.weak_type

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The size of all elements in memory, in bytes."""
        return self._value.nbytes

    @property
    def itemsize(self) -> int:
        """The size of one element in memory, in bytes."""
        return self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The shape of a stored chunk; None while the array is not in a store."""
        array = self._stored
        return None if array is None else tuple(array.chunks)

    @property
    def aval(self) -> DiskArrayType:
        """The type that JAX sees."""
        return DiskArrayType(self.shape, self.dtype, self.weak_type)

    @property
    def _stored(self) -> Any:
        leaf = self._value.leaf
        return leaf.source.array if isinstance(leaf, Stored) else None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array with no dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DiskArray(shape={self.shape}, dtype={self.dtype}, {self._state()})"

    def _state(self) -> str:
        array = self._stored
        if array is not None:
            stale = ", replaced by update_" if self._value.leaf.source.is_stale else ""
            return f"chunks={tuple(array.chunks)}, {_storage(array)}{stale}"
        return "pending" if self._value.is_pending else "in memory"

    __hash__ = object.__hash__

    # values in memory
    def to_numpy(self, *, allow_large: bool = False) -> np.ndarray:
        """The whole array in memory.

        Parameters
        ----------
        allow_large : bool
            Also load an array that is larger than the memory budget.

        Raises
        ------
        MemoryBudgetError
            If the array is larger than the memory budget and `allow_large` is false.

        Examples
        --------
        >>> import jask_zarr as jz
        >>> (jz.arange(4) * 2).to_numpy()
        array([0, 2, 4, 6], dtype=int32)
        """
        budget = _config.memory_budget()
        if self.nbytes > budget and not allow_large:
            raise errors.MemoryBudgetError(
                f"the whole array takes {self.nbytes:,} bytes in memory, more than the memory "
                f"budget of {budget:,} bytes. Select a part (a[:1000]), reduce it (a.mean()), "
                "save it (a.save(path)), or load it all the same with "
                "a.to_numpy(allow_large=True)."
            )
        return self._load()

    def _load(self) -> np.ndarray:
        value = self._concrete("to_numpy")
        if value.is_pending and value.nbytes <= _config.memory_budget() // 4:
            force.force([value])
        leaf = value.leaf
        if value.is_pending:
            return force.to_memory([value])[0]
        force.check(value)
        if isinstance(leaf, Stored):
            return leaf.source.array.read_box((0,) * self.ndim, self.shape)
        return np.array(leaf.array)

    def _concrete(self, what: str) -> Value:
        """The value, unless it is known only when a compiled function runs."""
        if self._value.is_traced:
            raise jax.errors.TracerArrayConversionError(_leaf_tracer(self._value))
        updates.flush()
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on disk cannot be given to numpy without a copy")
        values = self.to_numpy()
        return values if dtype is None else values.astype(dtype)

    @property
    def __jax_array__(self) -> Any:
        if _compat.called_by_operator():
            raise AttributeError("the operator of the DiskArray is used")
        return lambda: _as_jax_array(self)

    @property
    def sharding(self) -> Any:
        """An array on disk is on no device; `zeros_like` asks before it makes a dense array."""
        if _compat.dense_maker() and not is_dense_tracing():
            raise dense_copy(repr(self))
        raise AttributeError("a DiskArray has no sharding")

    def item(self) -> Any:
        """The value of an array with one element, as a Python scalar."""
        return self._one("item").item()

    def _one(self, what: str) -> np.ndarray:
        if self.size != 1:
            raise TypeError(f"{what}() needs an array with one element, not one of shape {self.shape}")
        return self.to_numpy().reshape(())

    def __bool__(self) -> bool:
        return bool(self._one("bool"))

    def __float__(self) -> float:
        return float(self._one("float"))

    def __int__(self) -> int:
        return int(self._one("int"))

    def __index__(self) -> int:
        return self._one("index").__index__()

    def __complex__(self) -> complex:
        return complex(self._one("complex"))

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(self.item(), spec)

    # forcing and storing
    def compute(self) -> "DiskArray":
        """Compute the array now, once; gives the array itself.

        Examples
        --------
        >>> import jask_zarr as jz
        >>> (jz.arange(4) + 1).compute()
        DiskArray(shape=(4,), dtype=int32, in memory)
        """
        force.force([self._concrete("compute")])
        force.check(self._value)
        return self

    def block_until_ready(self) -> "DiskArray":
        """As `compute`, under the name that JAX gives it."""
        return self.compute()

    def save(self, path: Any, *, chunks: Any = None, **keywords: Any) -> "DiskArray":
        """Stream the array into a new zarr array; gives the stored array.

        Parameters
        ----------
        path : str, Path or zarr store
            Where to write.
        chunks : tuple of int, optional
            The shape of a chunk; by default that of this array, or one the plan finds cheap.
        **keywords
            ``shards``, ``compressors``, ``filters``, ``zarr_format``, ``overwrite``,
            ``attributes``, ... as `zarr.create_array` takes them.

        Examples
        --------
        >>> import jask_zarr as jz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jz.arange(6).save(folder + "/a.zarr", chunks=(2,)).chunks
        (2,)
        """
        value = self._concrete("save")
        force.check(value)
        chunks = chunks or self.chunks or force.plan_for([value], [force.CHOOSE]).output_chunks[0]
        array = _disk.BlockedArray.create(path, self.shape, self.dtype, chunks=chunks, **keywords)
        force.write(value, array)
        return _of_store(array)

    def to_zarr(self) -> Any:
        """The stored `zarr.Array` itself (a scratch array if the array has no store yet)."""
        value = self._concrete("to_zarr")
        if not isinstance(value.leaf, Stored):
            chunks = force.plan_for([value], [force.CHOOSE]).output_chunks[0]
            array = _disk.SpillFile.create(self.shape, self.dtype, chunks)
            force.write(value, array)
            value.settle(Stored(Source(array, is_scratch=True)))
        force.check(value)
        return self._stored.zarr_array

    def __reduce__(self) -> Any:
        array = self._stored
        leaf = self._value.leaf
        if array is None or leaf.source.is_scratch or not getattr(array, "path", None):
            raise TypeError(
                f"cannot pickle {self!r}: only an array in a store on a local path is pickled "
                "(by its path). Save it first: a = a.save(path)."
            )
        force.check(self._value)
        mode = "r" if array.read_only else "r+"
        return (_reopen, (os.path.abspath(array.path), mode))


class _Dense(threading.local):
    trace: Any = None
    """The trace of the function that is traced as plain JAX code."""
    read: ClassVar[dict[int, tuple[Any, Any]]] = {}
    """The arrays on disk it has read so far, and their tracers."""


_dense = _Dense()


@contextmanager
def dense_tracing() -> Iterator[None]:
    """While a function is traced as plain JAX code: arrays on disk appear as ordinary tracers."""
    before = (_dense.trace, _dense.read)
    _dense.trace, _dense.read = _compat.current_trace(), {}
    try:
        yield
    finally:
        _dense.trace, _dense.read = before


def as_dense(x: Any) -> Any:
    """An array on disk as an ordinary tracer of the function that is traced.

    It is read in the function's own trace, also where an inner one (of a loop body) is current.
    """
    if not isinstance(x, DiskArray):
        return _operations["dense"](x)
    if id(x) not in _dense.read:
        with _compat.inside(_dense.trace):
            _dense.read[id(x)] = (x, _operations["dense"](x))
    return _dense.read[id(x)][1]


def is_dense_tracing() -> bool:
    """Is plain JAX code being traced?"""
    return _dense.trace is not None


def _as_jax_array(x: Any) -> Any:
    """What `jax.numpy` gets if it insists on an array of its own."""
    if is_dense_tracing():
        return as_dense(x)
    raise dense_copy(repr(x) if isinstance(x, DiskArray) else f"an array of type {_compat.typeof(x)}")


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


def register(name: str, operation: Callable[..., Any]) -> None:
    """Give the type an operation that it needs itself (``add``, ``dense``)."""
    _operations[name] = operation


_fillers: dict[Any, Function] = {}


def filled(shape: tuple[int, ...], value: Any, dtype: Any) -> DiskArray:
    """An array of one value everywhere; takes no space and no time."""
    shape, dtype = tuple(shape), np.dtype(dtype)
    if (shape, dtype) not in _fillers:
        scalar = jax.ShapeDtypeStruct((), dtype)
        _fillers[shape, dtype] = trace(lambda v: [jnp.broadcast_to(v, shape)], [scalar])
    return DiskArray(record(_fillers[shape, dtype], [resident(np.asarray(value, dtype))])[0])


def _reopen(path: str, mode: str) -> DiskArray:
    return _of_store(_disk.BlockedArray.open(path, mode=mode))


def _of_store(array: Any) -> DiskArray:
    return DiskArray(stored_value(source_of(array)))


def _storage(array: Any) -> str:
    codec = array.codecs
    stored = array.stored_bytes()
    ratio = f", {array.nbytes / stored:.1f}x smaller" if stored else ""
    return f"{codec}, {stored:,} bytes stored{ratio}"


def _leaf_tracer(value: Value) -> Any:
    return next(leaf.leaf.tracer for leaf in collect([value]).leaves if isinstance(leaf.leaf, Traced))


_compat.register_hitype(DiskArray, lambda array: array.aval)
_compat.attend_calls(lambda x: isinstance(x, DiskArray), sinks.original_failure, updates.flush)
