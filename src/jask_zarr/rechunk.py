"""Other chunks, shards, codecs or another format for an array, within the memory budget."""

from collections.abc import Sequence
from typing import Any

from jask_zarr import _chunks
from jask_zarr._disk.packing import PACKING_ATTRIBUTES
from jask_zarr._tracing.creation import stored_if
from jask_zarr._tracing.decoded import DecodedArray
from jask_zarr._tracing.expr import Stored
from jask_zarr._tracing.hitype import DiskArray

_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute that names the dimensions in format 2, which has no place of its own for them."""


def rechunk(
    a: DiskArray,
    chunks: int | Sequence[int],
    path: Any = None,
    *,
    shards: Sequence[int] | None = None,
    compressors: Any = "keep",
    zarr_format: int | None = None,
    **keywords: Any,
) -> DiskArray:
    """Store an array in other chunks.

    Each chunk is read once and written once. Where the two grids cross in such a way that this does not fit the memory
    budget, as rows and columns do, the array goes through scratch in chunks that suit both: then each chunk is read
    once and written once in each of the two stages.

    Parameters
    ----------
    a : DiskArray
    chunks : int or tuple of int
        The shape of a chunk; -1 stands for a whole dimension, one number for all of them.
    path : path or zarr store, optional
        Where to write; in scratch by default, for as long as the array is used.
    shards, compressors, zarr_format, **keywords
        As `DiskArray.save` takes them. What is not given stays as it is: format, codecs (of the same format and
        dtype), fill value, attributes and names of dimensions.

    Returns
    -------
    DiskArray
        The stored array.

    Examples
    --------
    >>> import jask_zarr as jz
    >>> rows = jz.zeros((60, 40), chunks=(1, 40))
    >>> jz.rechunk(rows, (-1, 1)).chunks
    (60, 1)
    """
    if not isinstance(a, DiskArray):
        raise TypeError(
            f"rechunk stores a DiskArray in other chunks, not a {type(a).__name__}: inside a compiled function chunks "
            "are no part of an array; store one that is in memory with DiskArray.from_numpy(x, chunks=...)"
        )
    chunks = _chunks.normalize_chunks(chunks, a.shape)
    keywords |= {} if compressors == "keep" else {"compressors": compressors}
    keywords |= {} if zarr_format is None else {"zarr_format": zarr_format}
    keywords |= {} if shards is None else {"shards": tuple(shards)}
    if path is not None:
        return a.save(path, chunks=chunks, **(_kept(a, zarr_format) | keywords))
    if keywords:
        raise TypeError(f"{', '.join(keywords)}: only for an array at a path, rechunk(a, chunks, path, ...)")
    return stored_if(a, {"chunks": chunks})


def _kept(a: DiskArray, zarr_format: int | None) -> dict[str, Any]:
    """How the array is stored now, as far as it can stay so."""
    leaf = a._value.leaf
    if not isinstance(leaf, Stored):
        return {}
    array, seen = leaf.source.array.zarr_array, leaf.source.array
    before, after = array.metadata.zarr_format, zarr_format or array.metadata.zarr_format
    kept = {"zarr_format": after, "fill_value": seen.fill_value} | _named(array, seen, after)
    if array.dtype == seen.dtype:
        kept["fill_value"] = array.fill_value
        kept |= _codecs(array) if before == after else {}
    return kept


def _codecs(array: Any) -> dict[str, Any]:
    codecs = {"compressors": array.compressors, "filters": array.filters}
    return codecs if array.metadata.zarr_format == 2 else codecs | {"serializer": array.serializer}


def _named(array: Any, seen: Any, zarr_format: int) -> dict[str, Any]:
    """Attributes, without those that describe packed numbers if they are packed no more, and names of dimensions."""
    attributes = array.attrs.asdict()
    if isinstance(seen, DecodedArray):
        attributes = {name: value for name, value in attributes.items() if name not in PACKING_ATTRIBUTES}
    names = getattr(array.metadata, "dimension_names", None) or attributes.get(_DIMENSIONS)
    if array.metadata.zarr_format == zarr_format or names is None:
        return {"attributes": attributes} | ({"dimension_names": names} if zarr_format == 3 else {})
    if zarr_format == 2:
        return {"attributes": attributes | {_DIMENSIONS: list(names)}}
    del attributes[_DIMENSIONS]
    return {"attributes": attributes, "dimension_names": names}
