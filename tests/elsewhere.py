"""Stored arrays as other software reads them: plain zarr, TensorStore and zarrs."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import tensorstore
import zarr
from zarr.storage import LocalStore

HAS_ZARRS = find_spec("zarrs") is not None
_ZARRS = "zarrs.ZarrsCodecPipeline"


def metadata_files(path):
    """Bytes of the files that describe the array; an update must not change them."""
    names = ("zarr.json", ".zarray", ".zattrs")
    return {name: Path(path, name).read_bytes() for name in names if Path(path, name).exists()}


def by_zarr(path):
    """The values as zarr-python reads them."""
    return np.asarray(zarr.open_array(LocalStore(Path(path)), mode="r")[...])


def by_tensorstore(path):
    """The values as TensorStore reads them, no cache between it and the files."""
    driver = "zarr3" if Path(path, "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}, "open": True}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


def by_zarrs(path):
    """The values as the zarrs codec pipeline reads them."""
    with zarr.config.set({"codec_pipeline.path": _ZARRS}):
        return by_zarr(path)
