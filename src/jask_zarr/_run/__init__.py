"""The runner: a `Plan` and arrays go in, results come out."""

from jask_zarr._run.pipeline import Progress as Progress
from jask_zarr._run.pipeline import run as run
from jask_zarr._run.shipping import check_target as check_target
