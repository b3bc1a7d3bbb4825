"""Every numeric dtype is read, computed with and updated; packed numbers are decoded on request."""

import base64
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import jask_zarr as jz
from elsewhere import by_tensorstore, by_zarr
from jask_zarr import errors

NARROW = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64"]
WIDE = ["int64", "uint64", "float64", "complex128"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name)) if name in SMALL else np.dtype(name)


def check(path, name, zarr_format):
    dtype = dtype_of(name)
    values = (np.arange(35) % 8).reshape(7, 5).astype(dtype)
    doubled = ~values if dtype.kind == "b" else (values + values).astype(dtype)
    jz.DiskArray.from_numpy(values, path=path, chunks=(3, 2), zarr_format=zarr_format)
    array = jz.open(path)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array.to_numpy(), values)
    np.testing.assert_array_equal(by_tensorstore(path) if name in SMALL[:3] else by_zarr(path), values)
    array.update_(~array if dtype.kind == "b" else array + array)
    np.testing.assert_array_equal(jz.open(path).to_numpy(), doubled)
    np.testing.assert_array_equal(by_tensorstore(path) if name in SMALL[:3] else by_zarr(path), doubled)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", NARROW + SMALL)
def test_a_dtype_is_read_computed_with_and_updated(tmp_path, name, zarr_format):
    check(tmp_path / "a", name, zarr_format)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", WIDE)
def test_a_dtype_of_64_bits_is_with_x64(tmp_path, name, zarr_format, x64):
    check(tmp_path / "a", name, zarr_format)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "complex64"])
def test_gradients_have_the_dtype_and_the_values_of_jax(tmp_path, name):
    values = (np.arange(35) % 8 - 3).reshape(7, 5).astype(dtype_of(name))
    array = jz.DiskArray.from_numpy(values, path=tmp_path / "a", chunks=(3, 2))
    gradient = jax.grad(lambda x: jz.sum(jz.abs(x) ** 2))(array)
    expected = jax.grad(lambda x: jnp.sum(jnp.abs(x) ** 2))(jnp.asarray(values))
    assert gradient.dtype == expected.dtype
    np.testing.assert_array_equal(gradient.to_numpy(), np.asarray(expected))


# --- packed numbers -------------------------------------------------------------------------

PACKED = np.array([[0, 100, -32768], [2500, -1500, 7]], "i2")
ATTRIBUTES = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
DECODED = np.where(PACKED == -32768, np.nan, PACKED * 0.01 + 273.15)


def packed(path, values=PACKED, attributes=ATTRIBUTES, written=True, **options):
    array = zarr.create_array(LocalStore(path), shape=values.shape, chunks=(1, 2), dtype=values.dtype, **options)
    array.attrs.update(attributes)
    if written:
        array[...] = values
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_numbers_are_raw_unless_asked_for_and_it_shows(tmp_path, zarr_format):
    array = jz.open(packed(tmp_path / "a", zarr_format=zarr_format))
    assert int(jz.sum(array.astype("int32"))) == -31661
    assert "scale_factor 0.01, add_offset 273.15, missing -32768 (not decoded)" in repr(array)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_numbers_are_masked_first_and_then_all_are_scaled(tmp_path, zarr_format):
    array = jz.open(packed(tmp_path / "a", zarr_format=zarr_format), decode_cf=True)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array.to_numpy(), DECODED.astype("f4"))
    assert float(jz.nanmean(array)) == pytest.approx(275.364, rel=1e-6)


def test_absent_chunks_are_missing_where_the_fill_value_is(tmp_path):
    array = jz.open(packed(tmp_path / "a", fill_value=-32768, written=False), decode_cf=True)
    assert np.isnan(array.to_numpy()).all()


def test_a_fill_value_of_format_2_is_missing_as_in_xarray(tmp_path):
    attributes = {"scale_factor": 0.5}
    array = jz.open(packed(tmp_path / "a", attributes=attributes, zarr_format=2, fill_value=7), decode_cf=True)
    np.testing.assert_array_equal(array.to_numpy(), np.where(PACKED == 7, np.nan, PACKED * 0.5))


@pytest.mark.parametrize("dtype", ["i4", "u4", "f8"])
def test_wide_packed_numbers_become_float64(tmp_path, dtype, x64):
    values = np.abs(PACKED.astype("f8"))
    array = jz.open(packed(tmp_path / "a", values.astype(dtype)), decode_cf=True)
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array.to_numpy(), values * 0.01 + 273.15)


def test_a_narrower_dtype_may_be_asked_for(tmp_path):
    path = packed(tmp_path / "a", PACKED.astype("i4"))
    with pytest.raises(errors.X64DisabledError, match="float64"):
        jz.open(path, decode_cf=True)
    np.testing.assert_array_equal(jz.open(path, decode_cf=True, dtype="f4").to_numpy(), DECODED.astype("f4"))


def test_signed_storage_of_unsigned_numbers(tmp_path):
    values = np.array([[-1, 0, 127], [-128, 1, 2]], "i1")
    attributes = {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 2.0}
    array = jz.open(packed(tmp_path / "a", values, attributes), decode_cf=True)
    np.testing.assert_array_equal(array.to_numpy(), [[np.nan, 0, 254], [256, 2, 4]])


@pytest.mark.parametrize("text", ["NaN", base64.b64encode(struct.pack("<d", 9.5)).decode()])
def test_floats_are_masked_whichever_way_the_fill_value_is_written(tmp_path, text):
    values = np.array([[9.5, 1, np.nan]], "f4")
    array = jz.open(packed(tmp_path / "a", values, {"_FillValue": text}), decode_cf=True)
    np.testing.assert_array_equal(array.to_numpy()[0, 1:], [1, np.nan])
    assert np.isnan(array.to_numpy()[0, 0]) == (text != "NaN")


def test_decoded_numbers_are_differentiated_and_never_written_back(tmp_path):
    array = jz.open(packed(tmp_path / "a"), decode_cf=True)
    gradient = jax.grad(lambda x: jz.sum(x**2))(array)
    np.testing.assert_allclose(gradient.to_numpy(), 2 * DECODED, rtol=1e-6)
    with pytest.raises(errors.ReadOnlyStoreError, match="decode_cf"):
        array.update_(array + 1)
    np.testing.assert_array_equal(by_zarr(tmp_path / "a"), PACKED)


def test_an_array_without_such_attributes_is_opened_as_it_is(tmp_path):
    array = jz.open(packed(tmp_path / "a", attributes={"units": "K"}), decode_cf=True)
    assert array.dtype == np.int16
    array.update_(array * 0)


def test_decoded_and_raw_are_one_store(tmp_path):
    path = packed(tmp_path / "a")
    decoded, raw = jz.open(path, decode_cf=True), jz.open(path)
    raw.update_(raw * 0)
    with pytest.raises(errors.StaleArrayError):
        decoded.to_numpy()
