"""A stored array whose packed numbers are decoded when they are read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jask_zarr import errors
from jask_zarr._tracing.cast import CastArray


class DecodedArray(CastArray):
    """Reads the numbers of `array` as the values that `packing` makes of them."""

    def __init__(self, array: Any, packing: Any, dtype: Any) -> None:
        super().__init__(array, dtype)
        self.packing = packing
        self.fill_value = packing.decode(np.atleast_1d(array.fill_value), self.dtype)[0]
        self.codecs = f"{array.codecs}, decoded from {array.dtype} by {packing}"

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.array.identity, self.dtype, self.packing)

    def check_writable(self) -> None:
        raise errors.ReadOnlyStoreError(
            f"the array at {self.path!r} holds packed {self.array.dtype} and was opened with decode_cf=True: it "
            "cannot be updated. Save a copy, a.save(path), and update that, or open it without decode_cf and "
            "update the packed numbers."
        )

    def read_box(self, start: Sequence[int], stop: Sequence[int], out: np.ndarray | None = None) -> np.ndarray:
        values = self.packing.decode(self.array.read_box(start, stop), self.dtype)
        if out is None:
            return values
        out[...] = values
        return out
