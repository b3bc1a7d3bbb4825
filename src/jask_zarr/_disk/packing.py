"""Numbers packed by the CF conventions: ``scale_factor``, ``add_offset``, ``_FillValue``.

These are attributes, not codecs: zarr gives the packed numbers, and so does this library unless
it is asked to decode them.
"""

import base64
import struct
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import zarr

from ..errors import NotAnArrayError

PACKING_ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


@dataclass(frozen=True)
class Packing:
    """How packed numbers become values: first what is missing becomes NaN, then the rest is scaled."""

    scale: float | None = None
    offset: float | None = None
    missing: tuple[float, ...] = ()
    unsigned: bool = False

    @classmethod
    def of(cls, array: zarr.Array) -> Self | None:
        """The packing that an array's attributes describe, or None if they describe none.

        In format 2 zarr's fill value is a ``_FillValue`` too, as xarray writes it, if there is
        another of the attributes.
        """
        attributes: Any = array.metadata.attributes
        if not isinstance(attributes, dict) or not any(name in attributes for name in PACKING_ATTRIBUTES):
            return None
        if array.metadata.zarr_format == 2 and array.fill_value is not None:
            attributes = {"_FillValue": array.fill_value} | attributes
        try:
            return cls._of_attributes(attributes)
        except (ValueError, TypeError, IndexError, OverflowError, struct.error) as error:
            found = {name: attributes[name] for name in PACKING_ATTRIBUTES if name in attributes}
            raise NotAnArrayError(
                f"The attributes {found} do not say how numbers are packed ({error}); open it without decode_cf."
            ) from error

    @classmethod
    def _of_attributes(cls, attributes: dict[str, Any]) -> Self:
        missing = [attributes[name] for name in ("_FillValue", "missing_value") if name in attributes]
        return cls(
            _number(attributes.get("scale_factor")),
            _number(attributes.get("add_offset")),
            tuple(float(v) for group in missing for v in np.atleast_1d(_plain(group))),
            str(attributes.get("_Unsigned", "false")).lower() == "true",
        )

    def dtype(self, packed: np.dtype) -> np.dtype:
        """The data type of the values: float64 for packed float64 and integers of 32 bits or more, else float32.

        >>> Packing(scale=0.1).dtype(np.dtype("i2")), Packing(scale=0.1).dtype(np.dtype("i4"))
        (dtype('float32'), dtype('float64'))
        """
        wide = packed.kind in "iu" and packed.itemsize >= 4
        return np.dtype("f8" if wide or packed == np.float64 else "f4")

    def decode(self, packed: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The values; computed in float64, then rounded to ``dtype``.

        >>> Packing(0.5, 10.0, (-1.0,)).decode(np.array([-1, 0, 3], "i2"), np.dtype("f4"))
        array([ nan, 10. , 11.5], dtype=float32)
        """
        if self.unsigned and packed.dtype.kind == "i":
            packed = packed.view(f"u{packed.itemsize}")
        values = packed.astype("f8")
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        for value in self.missing:
            values[packed == self._as_packed(value, packed.dtype)] = np.nan
        return values.astype(dtype)

    def _as_packed(self, value: float, dtype: np.dtype) -> Any:
        if dtype.kind in "iu":
            return int(value) % 2 ** (8 * dtype.itemsize) if self.unsigned and value < 0 else value
        return dtype.type(value)

    def __str__(self) -> str:
        parts = [
            f"scale_factor {self.scale:g}" if self.scale is not None else "",
            f"add_offset {self.offset:g}" if self.offset is not None else "",
            f"missing {', '.join(f'{v:g}' for v in self.missing)}" if self.missing else "",
        ]
        return ", ".join(filter(None, parts))


def packing_text(array: zarr.Array) -> str:
    """What is said of an array that holds packed numbers; nothing of others."""
    try:
        packing = Packing.of(array)
    except NotAnArrayError:
        return ""
    return f", packed by {packing} (not decoded)" if packing else ""


def _number(value: Any) -> float | None:
    return None if value is None else float(np.asarray(value).reshape(-1)[0])


def _plain(value: Any) -> Any:
    # xarray writes floats in format 3 as the base64 text of a double.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return struct.unpack("<d", base64.b64decode(value))[0]
    return value
