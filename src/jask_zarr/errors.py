"""What can go wrong, as one tree.

Every error is a `JaskZarrError` and also the built-in error that a careful caller would
catch for it, so that ``except FileNotFoundError`` works without knowing this library.

>>> issubclass(ArrayNotFoundError, FileNotFoundError)
True
"""

__all__ = [
    "ArrayNotFoundError",
    "DamagedChunkError",
    "DenseCopyError",
    "DtypeMismatchError",
    "ForkedProcessError",
    "IntegerOverflowError",
    "InvalidSizeError",
    "JaskZarrError",
    "MemoryBudgetError",
    "NotAnArrayError",
    "NotPortableError",
    "ReadOnlyStoreError",
    "ScratchDirectoryError",
    "ScratchFullError",
    "ShapeMismatchError",
    "StaleArrayError",
    "StoreBusyError",
    "UnsupportedDtypeError",
    "WorkerLostError",
    "X64DisabledError",
]


class JaskZarrError(Exception):
    """Base class of all errors that jask_zarr raises on purpose."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "jask_zarr.errors"


class ArrayNotFoundError(JaskZarrError, FileNotFoundError):
    """There is nothing at the path, or nothing that is a zarr node."""


class NotAnArrayError(JaskZarrError, ValueError):
    """There is something at the path, but not an array: a group, a ``.npy`` file, broken JSON."""


class UnsupportedDtypeError(JaskZarrError, TypeError):
    """The stored data type has no counterpart in JAX (strings, dates, structures, objects)."""


class X64DisabledError(UnsupportedDtypeError):
    """The stored data has 64 bits and JAX is not allowed to hold them."""


class ReadOnlyStoreError(JaskZarrError, PermissionError):
    """The store cannot be written: opened with ``mode="r"``, a zip file, no permission."""


class ShapeMismatchError(JaskZarrError, ValueError):
    """Shapes that must agree do not."""


class DtypeMismatchError(JaskZarrError, TypeError):
    """Data types that must agree do not; nothing is cast silently."""


class MemoryBudgetError(JaskZarrError, MemoryError):
    """A tile, a chunk, a whole dimension or a whole array does not fit the memory budget."""


class InvalidSizeError(JaskZarrError, ValueError):
    """A size in bytes that cannot be read, such as ``"4 apples"``."""


class ScratchDirectoryError(JaskZarrError, OSError):
    """The scratch directory is backed by memory, or cannot be written."""


class ScratchFullError(JaskZarrError, OSError):
    """Temporary arrays would take more than the scratch limit, or than the disk has (ENOSPC)."""


class StaleArrayError(JaskZarrError, RuntimeError):
    """The array's store has received new values (`update_`, donation); use the array returned."""


class DenseCopyError(JaskZarrError, TypeError):
    """The call would have made a copy of an array on disk in memory, unasked."""


class DamagedChunkError(JaskZarrError, OSError):
    """A stored chunk cannot be decoded: it is cut short or its bytes have changed."""


class IntegerOverflowError(JaskZarrError, OverflowError):
    """An integer result does not fit its data type."""


class StoreBusyError(JaskZarrError, RuntimeError):
    """Another update of the same store is under way."""


class NotPortableError(JaskZarrError, TypeError):
    """What other processes would need, such as a store in memory, cannot be sent there."""


class ForkedProcessError(JaskZarrError, RuntimeError):
    """A child process, forked after JAX had started, was to compute: it would wait for ever for JAX's threads."""


class WorkerLostError(JaskZarrError, RuntimeError):
    """A worker process ended before its tile was done: killed, or out of memory."""
