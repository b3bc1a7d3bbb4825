"""Recorded expressions, the type that JAX sees, and how functions are lifted to it."""

from jask_zarr._tracing import update as update
