"""Where JAX is about to build all of an array on disk in memory.

1. `jax.numpy.zeros_like` and its kin read an array's shape and dtype only: they are given a dtype
   that makes them create an array on disk.
2. What insists on values (`jax.numpy.asarray`, `jax.numpy.sin`) is refused,
3. unless plain JAX code is being traced by `lift` or `jit`: then it gets an ordinary tracer.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jask_zarr import _compat, errors

operations: dict[str, Callable[..., Any]] = {}
"""Operations that arrays and their type need themselves: ``add``, ``dense``, ``filled``."""


def register(name: str, operation: Callable[..., Any]) -> None:
    """Provide one of `operations`, from a module above."""
    operations[name] = operation


def dtype_of(x: Any, dtype: Any) -> Any:
    """The dtype that an array on disk, or its type, shows to whoever asks."""
    maker = _compat.dense_maker()
    if maker is None or is_dense_tracing():
        return dtype
    if maker != "full_like":
        raise dense_copy(x)

    def make(shape: Any, value: Any) -> Any:
        if isinstance(value, _compat.Tracer):
            raise dense_copy(x)
        return operations["filled"](shape, value, dtype)

    return _compat.FillingDtype(make)


def check_sharding(x: Any) -> None:
    """JAX reads the sharding before it makes a dense array of another dtype."""
    if _compat.dense_maker() and not is_dense_tracing():
        raise dense_copy(x)


def dense_copy(x: Any) -> errors.DenseCopyError:
    """What to say when JAX is about to build all of an array in memory."""
    what = f"an array of type {_compat.typeof(x)}" if isinstance(x, _compat.Tracer) else repr(x)
    return errors.DenseCopyError(
        f"JAX asked for all of {what} as one array in memory. Use the function of jask_zarr in "
        "place of that of jax.numpy (jask_zarr.zeros_like, jask_zarr.sum, ...), put plain JAX "
        "code (optax's init and apply_updates too) into jask_zarr.jit or jask_zarr.lift, or "
        "load the array with a.to_numpy()."
    )


def as_jax_array(x: Any) -> Any:
    """What `jax.numpy` gets if it insists on an array of its own."""
    if is_dense_tracing():
        return as_dense(x)
    raise dense_copy(x)


class _Dense(threading.local):
    def __init__(self) -> None:
        self.trace: Any = None
        """The trace of the function that is traced as plain JAX code."""
        self.read: dict[int, tuple[Any, Any]] = {}
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
    if isinstance(x, _compat.Tracer):
        return operations["dense"](x)
    if id(x) not in _dense.read:
        with _compat.inside(_dense.trace):
            _dense.read[id(x)] = (x, operations["dense"](x))
    return _dense.read[id(x)][1]


def is_dense_tracing() -> bool:
    """Is plain JAX code being traced?"""
    return _dense.trace is not None
