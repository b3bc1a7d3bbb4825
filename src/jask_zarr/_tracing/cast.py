"""A stored array read as another dtype: each box is cast when it is read, and checked."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jask_zarr import errors


class CastArray:
    """Reads `array` as `dtype`; what does not fit an integer dtype is an error."""

    read_only = True

    def __init__(self, array: Any, dtype: Any) -> None:
        self.array = array
        self.dtype = np.dtype(dtype)
        self.shape, self.chunks = tuple(array.shape), tuple(array.chunks)
        self.write_chunks, self.block_grid = tuple(array.write_chunks), array.block_grid
        self.ndim, self.size = array.ndim, array.size
        self.nbytes = self.size * self.dtype.itemsize
        self.path = array.path
        self.fill_value = array.fill_value
        self.zarr_array = array.zarr_array
        self.codecs = f"{array.codecs}, read as {self.dtype} from {array.dtype}"

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.array.identity, self.dtype)

    def version(self) -> Any:
        return self.array.version()

    def stored_bytes(self) -> int:
        return self.array.stored_bytes()

    def for_workers(self) -> "CastArray":
        """The form in which the array is sent to other processes."""
        self.array.for_workers()
        return self

    def check_writable(self) -> None:
        raise errors.ReadOnlyStoreError(
            f"the array at {self.path!r} holds {self.array.dtype} and was opened with "
            f"dtype={str(self.dtype)!r}: it cannot be updated. Save a copy, a.save(path), and "
            "update that."
        )

    def read_box(self, start: Sequence[int], stop: Sequence[int], out: np.ndarray | None = None) -> np.ndarray:
        values = self.array.read_box(start, stop)
        self._check(values, start, stop)
        cast = values.astype(self.dtype)
        if out is None:
            return cast
        out[...] = cast
        return out

    def read_block(self, index: Sequence[int]) -> np.ndarray:
        start = [k * n for k, n in zip(index, self.chunks, strict=True)]
        ends = zip(start, self.chunks, self.shape, strict=True)
        return self.read_box(start, [min(a + n, size) for a, n, size in ends])

    def _check(self, values: np.ndarray, start: Sequence[int], stop: Sequence[int]) -> None:
        if self.dtype.kind not in "iu" or values.dtype.kind == "b" or not values.size:
            return
        limits = np.iinfo(self.dtype)
        low, high = values.min(), values.max()
        if not (low >= limits.min and high <= limits.max):
            raise errors.IntegerOverflowError(
                f"the array at {self.path!r} has values from {low} to {high} in the box "
                f"{tuple(start)} to {tuple(stop)}, which do not fit dtype {self.dtype}. "
                "Choose a wider dtype, or float32."
            )
