"""The whole table: every row, through every transformation, on every chunk grid, in every dtype, cut into tiles."""

import itertools

import jax
import pytest

from helpers import GRIDS, TRANSFORMATIONS, Op, check_in_tiles
from table import OPS

CELLS = {
    (op.name, transformation): (op, transformation)
    for op, transformation in itertools.product(OPS, TRANSFORMATIONS)
    if (transformation in ("forward", "jit") or op.grad) and (transformation != "second_order" or op.smooth)
}


def dtypes_of(op: Op, transformation: str) -> list[str]:
    """Integers have no gradient."""
    return [dtype for dtype in op.dtypes if transformation in ("forward", "jit") or dtype != "int32"]


def fault_of(op: Op, transformation: str, grid: str, dtype: str) -> str | None:
    """What is wrong with one cell of the table."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    try:
        check_in_tiles(op, transformation, grid, dtype)
    except Exception as error:
        return f"{grid}, {dtype}: {type(error).__name__}: {error}"
    finally:
        jax.config.update("jax_enable_x64", False)
    return None


@pytest.mark.soak
@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_op_on_every_grid_in_every_dtype(cell: tuple[str, str]) -> None:
    op, transformation = CELLS[cell]
    cases = itertools.product(GRIDS, dtypes_of(op, transformation))
    faults = [fault_of(op, transformation, grid, dtype) for grid, dtype in cases]
    assert not any(faults), "\n".join(filter(None, faults))
