"""The jobs: what each reads, and what is promised of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """One computation that every contender does in its own way."""

    name: str
    title: str
    inputs: tuple[str, ...]
    one_pass: bool = True
    """Whether each chunk need be read only once."""
    faster_than_dask: float = 1.0
    """How many times as fast as dask.array it must be."""
    updates: tuple[str, ...] = ()
    """Inputs that the job replaces; a contender is given copies, in its folder for results."""
    tolerance: float = 1e-4
    """Largest difference between two contenders' results, against the largest value."""
    steps: int = 1
    """How often the computation is done in one run."""


JOBS = {
    job.name: job
    for job in (
        Job("difference", "sum of squared differences", ("a", "b"), faster_than_dask=1.5),
        Job("elementwise", "`tanh(a) * b + a` into zarr", ("a", "b"), faster_than_dask=1.5),
        Job("polynomial", "`a * b + a` into zarr", ("a", "b"), faster_than_dask=1.5),
        Job("gradient", "gradient of `sum((a - b)**2)` into zarr", ("a", "b"), faster_than_dask=1.5),
        Job("eager_gradient", "the same by `jax.grad` of eager calls", ("a", "b"), one_pass=False),
        Job("logistic", "logistic regression, value and gradient", ("x", "targets"), faster_than_dask=1.5),
        Job("mlp2", "2-layer network, value and gradient", ("x", "labels", "mlp2"), faster_than_dask=1.5),
        Job("mlp2_disk", "2-layer network, parameters on disk", ("x", "labels", "mlp2"), faster_than_dask=1.5),
        Job("mlp8", "8-layer network, value and gradient", ("x", "labels", "mlp8"), faster_than_dask=1.5),
        Job("mlp8_disk", "8-layer network, parameters on disk", ("x", "labels", "mlp8"), faster_than_dask=1.5),
        Job("least_squares", "`X.T @ (X @ w)`", ("wide",)),
        Job("matmul", "`a @ b` into zarr", ("a", "b"), one_pass=False),
        Job("adam", "a step of Adam, all on disk", ("p", "m", "v", "g"), updates=("p", "m", "v")),
        Job("softmax", "softmax over a split axis into zarr", ("long",), one_pass=False),
        Job("moments0", "mean and variance over axis 0", ("a",), faster_than_dask=1.5),
        Job("moments1", "mean and variance over axis 1", ("a",), faster_than_dask=1.5),
        Job("transpose", "`a.T` into zarr", ("a",)),
        Job("rechunk", "square chunks into tall ones", ("a",)),
        Job("lookup", "embedding look-up into zarr", ("x", "lookups")),
        Job("lookup_gradient", "gradient of a look-up into zarr", ("x", "lookups"), faster_than_dask=1.5),
        Job("steps", "100 steps on arrays of one chunk", ("weights", "batch"), updates=("weights",), steps=100),
    )
}
