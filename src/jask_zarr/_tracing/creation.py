"""Where arrays come from: stores, arrays in memory, and nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jask_zarr import _compat, _disk, errors
from jask_zarr._tracing.array import filled
from jask_zarr._tracing.cast import CastArray
from jask_zarr._tracing.decoded import DecodedArray
from jask_zarr._tracing.expr import Value, record, stored
from jask_zarr._tracing.function import trace
from jask_zarr._tracing.hitype import DiskArray
from jask_zarr._tracing.lift import is_disk, operand
from jask_zarr._tracing.sources import Source, source_of
from jask_zarr._tracing.writing import write, write_new

Shape = int | Sequence[int]


def open_array(
    source: Any, path: str | None = None, mode: str = "r+", dtype: Any = None, *, decode_cf: bool = False
) -> DiskArray:
    """Open a zarr array, of format 2 or 3, as a value for JAX; nothing is loaded.

    Parameters
    ----------
    source : path, URL, zarr store, zarr.Array or zarr.Group
        Where the array is.
    path : str, optional
        The array's path inside the store or group.
    mode : {"r+", "r"}
        Whether `update_` is allowed. Nothing is ever created.
    dtype : optional
        Read the array as this dtype. Needed for 64-bit data without ``jax_enable_x64``.
    decode_cf : bool
        Decode numbers that are packed by the CF conventions (attributes ``scale_factor``,
        ``add_offset``, ``_FillValue``, ``missing_value``): what is missing becomes NaN, the rest is
        ``packed * scale_factor + add_offset``, as float32, or float64 for packed float64 and
        integers of 32 bits or more. Such an array is not updated. By default the numbers are
        those in the store, whatever the attributes say.

    Raises
    ------
    ArrayNotFoundError, NotAnArrayError, UnsupportedDtypeError, X64DisabledError
        X64DisabledError is for 64-bit data that would lose digits without anybody asking.

    Examples
    --------
    >>> import jask_zarr as jz, zarr, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> z = zarr.create_array(folder.name + "/z.zarr", shape=(4, 2), chunks=(2, 2), dtype="f4")
    >>> z[:] = 1.5
    >>> a = jz.open(folder.name + "/z.zarr")
    >>> a.shape, a.dtype, float(jz.sum(a))
    ((4, 2), dtype('float32'), 12.0)
    >>> folder.cleanup()
    """
    array = _disk.BlockedArray.open(source, path, mode=mode)
    known = source_of(array)
    packing = _disk.Packing.of(array.zarr_array) if decode_cf else None
    if packing is not None:
        wanted = packing.dtype(array.dtype) if dtype is None else np.dtype(dtype)
        _check_width(wanted, f"the array at {array.path or source!r} holds {array.dtype} data packed from {wanted}")
        return DiskArray(stored(Source(DecodedArray(array, packing, wanted), origin=known.origin)))
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    _check_width(wanted, f"the array at {array.path or source!r} holds {array.dtype} data")
    if wanted == array.dtype:
        return DiskArray(stored(known))
    cast = CastArray(array, wanted)
    return DiskArray(stored(Source(cast, origin=known.origin)))


def _check_width(dtype: np.dtype[Any], what: str) -> None:
    if _disk.is_64_bit(dtype) and not _compat.x64_is_enabled():
        raise errors.X64DisabledError(
            f"{what}, and JAX runs with 64-bit dtypes off. Turn them on at the start of the "
            'program, jax.config.update("jax_enable_x64", True), or give up digits on purpose '
            f'with dtype="{_disk.narrowed(dtype)}".'
        )


def from_numpy(
    values: Any,
    chunks: Sequence[int] | None = None,
    path: Any = None,
    *,
    dtype: Any = None,
    **keywords: Any,
) -> DiskArray:
    """Store an array that is in memory.

    Parameters
    ----------
    values : array_like
        What to store.
    chunks : tuple of int, optional
        The shape of a chunk.
    path : path or zarr store, optional
        Where to store it; in scratch by default, for as long as the array is used.
    dtype : optional
        Store it as this dtype.
    **keywords
        ``shards``, ``compressors``, ``filters``, ``zarr_format``, ``overwrite``, ``fill_value``,
        ... as `zarr.create_array` takes them.

    Examples
    --------
    >>> import numpy as np, jask_zarr as jz
    >>> jz.DiskArray.from_numpy(np.zeros((4, 6), "float32"), chunks=(2, 3)).chunks
    (2, 3)
    """
    values = np.asarray(values)
    dtype = values.dtype if dtype is None else np.dtype(dtype)
    _check_width(dtype, f"the values are {dtype}")
    values = np.ascontiguousarray(values, dtype).reshape(values.shape)
    options = {"shape": values.shape, "dtype": dtype, "chunks": chunks, **keywords}
    return _new(path, lambda array: array.write_box((0,) * values.ndim, values), **options)


def _new(path: Any, fill: Callable[[Any], None], **options: Any) -> DiskArray:
    if path is not None:
        return DiskArray(stored(write_new(path, fill, **options)))
    fill(array := _disk.SpillFile.create(**options))
    return DiskArray(stored(Source(array, is_scratch=True)))


def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    *,
    chunks: Sequence[int] | None = None,
    path: Any = None,
    **keywords: Any,
) -> DiskArray:
    """An array with one value everywhere.

    It costs nothing: it is a rule, or, with `chunks` or `path`, a zarr array that has a fill
    value and no chunks.

    Parameters
    ----------
    shape : int or tuple of int
    fill_value : scalar
    dtype : optional
        By default that of `fill_value` in JAX.
    chunks, path, **keywords
        As in `DiskArray.from_numpy`.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.full((2, 2), 7).to_numpy()
    array([[7, 7],
           [7, 7]], dtype=int32)
    """
    shape, dtype = _shape(shape), _dtype(dtype, fill_value)
    if chunks is None and path is None and not keywords:
        return filled(shape, fill_value, dtype)
    value = np.asarray(fill_value).astype(dtype)[()]
    options = {"shape": shape, "dtype": dtype, "chunks": chunks, "fill_value": value, **keywords}
    return _new(path, lambda array: None, **options)


def _shape(shape: Shape) -> tuple[int, ...]:
    return tuple(int(n) for n in np.atleast_1d(np.asarray(shape, np.int64)))


def _dtype(dtype: Any, like: Any) -> np.dtype[Any]:
    if dtype is None:
        return np.dtype(_compat.typeof(jnp.asarray(like)).dtype)
    _check_width(np.dtype(dtype), f"dtype {np.dtype(dtype)} was asked for")
    return np.dtype(dtype)


def zeros(shape: Shape, dtype: Any = None, **keywords: Any) -> DiskArray:
    """An array of zeros; see `full` for the keywords.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.zeros((1000, 1000)).dtype
    dtype('float32')
    """
    return full(shape, 0, _float_if_none(dtype), **keywords)


def ones(shape: Shape, dtype: Any = None, **keywords: Any) -> DiskArray:
    """An array of ones; see `full` for the keywords.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.ones(3).to_numpy()
    array([1., 1., 1.], dtype=float32)
    """
    return full(shape, 1, _float_if_none(dtype), **keywords)


def empty(shape: Shape, dtype: Any = None, **keywords: Any) -> DiskArray:
    """An array whose values do not matter yet: zeros, as in `jax.numpy`.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype, **keywords)


def _float_if_none(dtype: Any) -> Any:
    return jnp.zeros(0).dtype if dtype is None else dtype


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Shape | None = None, **keywords: Any) -> Any:
    """An array with one value everywhere, of the shape, dtype and chunks of another.

    Given an ordinary array it is `jax.numpy.full_like`.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.full_like(jz.ones((2, 3)), 4).dtype
    dtype('float32')
    """
    if not is_disk(a):
        return jnp.full_like(a, fill_value, dtype, shape)
    dtype = a.dtype if dtype is None else dtype
    return full(a.shape if shape is None else shape, fill_value, dtype, **keywords)


def zeros_like(a: Any, dtype: Any = None, shape: Shape | None = None, **keywords: Any) -> Any:
    """Zeros of the shape and dtype of another array; see `full_like`.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.zeros_like(jz.ones((2, 3))).shape
    (2, 3)
    """
    return full_like(a, 0, dtype, shape, **keywords)


def ones_like(a: Any, dtype: Any = None, shape: Shape | None = None, **keywords: Any) -> Any:
    """Ones of the shape and dtype of another array; see `full_like`.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.ones_like(jz.zeros(2)).to_numpy()
    array([1., 1.], dtype=float32)
    """
    return full_like(a, 1, dtype, shape, **keywords)


def empty_like(a: Any, dtype: Any = None, shape: Shape | None = None, **keywords: Any) -> Any:
    """An array of the shape and dtype of another, whose values do not matter yet.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.empty_like(jz.ones((2, 3))).shape
    (2, 3)
    """
    return full_like(a, 0, dtype, shape, **keywords)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, **keywords: Any) -> DiskArray:
    """Evenly spaced values, as `jax.numpy.arange`; takes no space.

    Parameters
    ----------
    start, stop, step : number
        As in `jax.numpy.arange`.
    dtype : optional
    chunks, path, **keywords
        Store it, as `DiskArray.save` does.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.arange(2, 8, 3).to_numpy()
    array([2, 5], dtype=int32)
    """
    if dtype is not None:
        _check_width(np.dtype(dtype), f"dtype {np.dtype(dtype)} was asked for")
    return stored_if(_made(lambda: jnp.arange(start, stop, step, dtype)), keywords)


def eye(n: int, m: int | None = None, k: int = 0, dtype: Any = None, **keywords: Any) -> DiskArray:
    """Ones on a diagonal, as `jax.numpy.eye`; takes no space.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> jz.eye(2).to_numpy()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if dtype is not None:
        _check_width(np.dtype(dtype), f"dtype {np.dtype(dtype)} was asked for")
    return stored_if(_made(lambda: jnp.eye(n, m, k, dtype)), keywords)


def _made(make: Any) -> DiskArray:
    function = trace(lambda: [make()], [])
    (value,) = record(function, [])
    return DiskArray(Value(value.shape, value.dtype, expr=value.expr, index=value.index))


def stored_if(array: Any, keywords: dict[str, Any]) -> Any:
    """An array, stored now if it was said how: in scratch unless there is a path."""
    if not keywords or not is_disk(array):
        return array
    keywords = dict(keywords)
    path = keywords.pop("path", None)
    if path is not None:
        return array.save(path, **keywords)
    options = {"shape": array.shape, "dtype": array.dtype, **keywords}
    return _new(None, lambda target: write(array._value, target), **options)


def asarray(x: Any) -> DiskArray:
    """An array in memory as a `DiskArray`, without a store: for mixing with arrays on disk.

    Examples
    --------
    >>> import numpy as np, jask_zarr as jz
    >>> jz.asarray(np.arange(3.0, dtype="float32"))
    DiskArray(shape=(3,), dtype=float32, in memory)
    """
    return x if is_disk(x) else DiskArray(operand(jnp.array(x)))


DiskArray.from_numpy = staticmethod(from_numpy)  # type: ignore[attr-defined]

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "open_array",
    "stored_if",
    "zeros",
    "zeros_like",
]
