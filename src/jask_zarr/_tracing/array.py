"""`DiskArray`: the value that users hold.

Methods that are operations are attached from above (`hitype.attach`); here is what an array is,
what brings its values into memory, and what stores them.
"""

import os
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat, _config, _disk, errors
from jask_zarr._run import check_target
from jask_zarr._tracing import force, guards, updates
from jask_zarr._tracing.expr import Stored, Traced, Value, collect, record, resident
from jask_zarr._tracing.expr import stored as stored_value
from jask_zarr._tracing.function import Function, trace
from jask_zarr._tracing.sources import Source, source_of
from jask_zarr._tracing.writing import write, write_new


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

    def __init__(self, value: Value, handle: Any = None) -> None:
        if not isinstance(value, Value):
            raise TypeError(
                f"DiskArray cannot be made of a {type(value).__name__} directly: use "
                "jask_zarr.open(store) or DiskArray.from_numpy(array, chunks=...)"
            )
        self._value = value
        self._handle = handle
        if not value.is_traced:
            force.watch(self)

    # what it is
    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return guards.dtype_of(self, self._value.dtype)

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
        force.force([value])
        return force.read(value) if isinstance(value.leaf, Stored) else np.array(value.leaf.array)

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
        return lambda: guards.as_jax_array(self)

    @property
    def sharding(self) -> Any:
        """An array on disk is on no device; `zeros_like` asks before it makes a dense array."""
        guards.check_sharding(self)
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
        if keywords.get("overwrite"):
            _refuse_own_store(value, path)
        chunks = chunks or self.chunks or force.plan_for([value], [force.CHOOSE]).output_chunks[0]
        check_target(path)
        options = {"shape": self.shape, "dtype": self.dtype, "chunks": chunks, **keywords}
        return DiskArray(stored_value(write_new(path, lambda array: write(value, array), **options)))

    def to_zarr(self) -> Any:
        """The stored `zarr.Array` itself (a scratch array if the array has no store yet)."""
        value = self._concrete("to_zarr")
        if not isinstance(value.leaf, Stored):
            chunks = force.plan_for([value], [force.CHOOSE]).output_chunks[0]
            array = _disk.SpillFile.create(self.shape, self.dtype, chunks)
            write(value, array)
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


@lru_cache(maxsize=1024)
def _filler(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Function:
    return trace(lambda v: [jnp.broadcast_to(v, shape)], [jax.ShapeDtypeStruct((), dtype)])


def filled(shape: tuple[int, ...], value: Any, dtype: Any) -> DiskArray:
    """An array of one value everywhere; takes no space and no time."""
    shape, dtype = tuple(shape), np.dtype(dtype)
    (value,) = record(_filler(shape, dtype), [resident(np.asarray(value, dtype))])
    return DiskArray(value)


def _reopen(path: str, mode: str) -> DiskArray:
    return _of_store(_disk.BlockedArray.open(path, mode=mode))


def _refuse_own_store(value: Value, path: Any) -> None:
    """What is computed from a store cannot be written over it: it would be gone before it is read."""
    for leaf in collect([value]).leaves:
        if isinstance(leaf.leaf, Stored) and _is_within(leaf.leaf.source.origin.array, path):
            raise ValueError(
                f"the array to save is computed from the store at {leaf.leaf.source.array.path or path!r}, which "
                "overwrite=True would replace: replace its values with update_, or save to another path"
            )


def _is_within(array: Any, path: Any) -> bool:
    directory = _disk.place_of(path).directory
    if directory is not None:
        target = os.path.realpath(directory)
        return array.path is not None and os.path.commonpath([target, os.path.realpath(array.path)]) == target
    try:
        return array.identity == _disk.BlockedArray.open(path, mode="r").identity
    except (errors.ArrayNotFoundError, errors.NotAnArrayError):
        return False


def _of_store(array: Any) -> DiskArray:
    return DiskArray(stored_value(source_of(array)))


def _storage(array: Any) -> str:
    codec = array.codecs
    stored = array.stored_bytes()
    ratio = f", {array.nbytes / stored:.1f}x smaller" if stored else ""
    return f"{codec}, {stored:,} bytes stored{ratio}"


def _leaf_tracer(value: Value) -> Any:
    return next(leaf.leaf.tracer for leaf in collect([value]).leaves if isinstance(leaf.leaf, Traced))


guards.register("filled", filled)
