"""Which stored data types can become JAX values, and those that zarr does not know yet.

`bfloat16` and the 8-bit floats of ``ml_dtypes`` are registered with zarr under the names that
TensorStore writes, in both formats, unless somebody else has registered them already.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import ml_dtypes
import numpy as np
import zarr.dtype
import zarr.errors
from zarr.core.dtype.common import HasEndianness, HasItemSize
from zarr.dtype import ZDType, data_type_registry

from ..errors import UnsupportedDtypeError

# zarr 3.4 has moved it to `errors`.
_home: Any = zarr.errors if hasattr(zarr.errors, "DataTypeValidationError") else zarr.dtype
DataTypeValidationError = _home.DataTypeValidationError

_ML_NAMES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_ML_DTYPES = {name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_NAMES}
_REMEDIES = {
    "M": "store the dates as integers (view them as int64 and mask NaT, which is -2**63)",
    "m": "store the durations as integers (view them as int64 and mask NaT, which is -2**63)",
    "S": "store the text as integer codes",
    "U": "store the text as integer codes",
    "O": "store numbers, or integer codes for text",
    "T": "store the text as integer codes",
    "V": "store each field in an array of its own, or raw bytes as uint8",
}


@dataclass(frozen=True, kw_only=True)
class _MLFloat(ZDType, HasEndianness, HasItemSize):
    """A float of ``ml_dtypes`` as a zarr data type; always little-endian."""

    native: ClassVar[np.dtype]

    @classmethod
    def from_native_dtype(cls, dtype: Any) -> Self:
        if dtype != cls.native:
            raise DataTypeValidationError(f"Not {cls.native.name}: {dtype}")
        return cls()

    def to_native_dtype(self) -> np.dtype:
        if self.endianness == "big" and self.item_size > 1:
            raise UnsupportedDtypeError(f"Big-endian {self.native.name} data cannot be read.")
        return self.native

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        return cls._from_json_v3(data.get("name") if isinstance(data, dict) else data)

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"Not {cls._zarr_v3_name}: {data!r}")
        return cls()

    def to_json(self, zarr_format: int) -> Any:
        name = self._zarr_v3_name
        return {"name": name, "object_codec_id": None} if zarr_format == 2 else name

    @property
    def item_size(self) -> int:
        return self.native.itemsize

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, (int, float, np.number, self.native.type))

    def cast_scalar(self, data: object) -> Any:
        return self.native.type(data)

    def default_scalar(self) -> Any:
        return self.native.type(0)

    def from_json_scalar(self, data: Any, *, zarr_format: int) -> Any:
        if isinstance(data, str) and data.startswith("0x"):
            bits = np.array(int(data, 16), dtype=f"u{self.item_size}")
            return bits.view(self.native)[()]
        return self.native.type(float(data))

    def to_json_scalar(self, data: Any, *, zarr_format: int) -> float | str:
        value = float(data)
        if np.isnan(value):
            return "NaN"
        return value if np.isfinite(value) else f"{'-' * (value < 0)}Infinity"


def _register(name: str, native: np.dtype) -> None:
    fields = {"native": native, "dtype_cls": type(native), "_zarr_v3_name": name}
    if name not in data_type_registry.contents:
        data_type_registry.register(name, type(f"_{name}", (_MLFloat,), fields))


for _name, _native in _ML_DTYPES.items():
    _register(_name, _native)


def native_dtype(dtype: np.dtype) -> np.dtype:
    """The data type in the machine's own byte order.

    >>> native_dtype(np.dtype(">f4"))
    dtype('float32')
    """
    return dtype if dtype in _ML_DTYPES.values() else dtype.newbyteorder("=")


def storage_dtype(dtype: np.dtype) -> np.dtype:
    """A data type of the same bytes that codecs accept: unsigned integers for ``ml_dtypes``.

    >>> storage_dtype(np.dtype("bfloat16")), storage_dtype(np.dtype("f4"))
    (dtype('uint16'), dtype('float32'))
    """
    return np.dtype(f"u{dtype.itemsize}") if dtype in _ML_DTYPES.values() else dtype


def is_supported(dtype: np.dtype) -> bool:
    """Whether the data type has a counterpart in JAX."""
    return dtype.kind in "biufc" or dtype in _ML_DTYPES.values()


def check_supported(dtype: np.dtype, where: str) -> None:
    """Refuse a data type that JAX does not have, naming it and a way out."""
    if not is_supported(dtype):
        raise UnsupportedDtypeError(
            f"{where} holds {dtype_name(dtype)} data, which JAX does not have: "
            f"{_REMEDIES.get(dtype.kind, 'store it as numbers')}."
        )


def dtype_name(dtype: np.dtype) -> str:
    """A readable name: ``datetime64[s]``, ``float32``, ``<U3``, ``[('a', '<f4')]``."""
    return dtype.str if dtype.kind in "SUV" and not dtype.names else str(dtype)


def is_64_bit(dtype: np.dtype) -> bool:
    """Whether JAX holds the data type only with ``jax_enable_x64``.

    >>> is_64_bit(np.dtype("f8")), is_64_bit(np.dtype("c16")), is_64_bit(np.dtype("c8"))
    (True, True, False)
    """
    return narrowed(dtype) != dtype


def narrowed(dtype: np.dtype) -> np.dtype:
    """The data type that JAX uses instead without ``jax_enable_x64``.

    >>> narrowed(np.dtype("f8")), narrowed(np.dtype("i2"))
    (dtype('float32'), dtype('int16'))
    """
    narrow = {"f8": "f4", "i8": "i4", "u8": "u4", "c16": "c8"}
    return np.dtype(narrow.get(f"{dtype.kind}{dtype.itemsize}", dtype))
