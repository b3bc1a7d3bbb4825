"""The whole table: every row, through every transformation, on every chunk grid, in every dtype, cut into tiles.

First each pair of a transformation and a grid with one dtype, which moves on from pair to pair, so
that any two of them meet for every row; then all that is left, the core rows first.
"""

import itertools

import jax
import pytest

from helpers import GRIDS, TRANSFORMATIONS, Op, check_in_tiles
from table import CORE, OPS

pytestmark = pytest.mark.soak

ORDER = CORE + [op for op in OPS if op not in CORE]
CELLS = {
    f"{op}-{transformation}": (op, transformation)
    for op, transformation in itertools.product(ORDER, TRANSFORMATIONS)
    if (transformation in ("forward", "jit") or op.grad) and (transformation != "second_order" or op.smooth)
}


def dtypes_of(op: Op, transformation: str) -> list[str]:
    """Integers have no gradient."""
    return [dtype for dtype in op.dtypes if transformation in ("forward", "jit") or dtype != "int32"]


def cases_of(op: Op, transformation: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Grids with one dtype each, which moves on; and the rest."""
    dtypes, first = dtypes_of(op, transformation), list(TRANSFORMATIONS).index(transformation)
    some = [(grid, dtypes[(first + k) % len(dtypes)]) for k, grid in enumerate(GRIDS)]
    return some, [case for case in itertools.product(GRIDS, dtypes) if case not in some]


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


@pytest.mark.parametrize("cell", CELLS)
def test_op_on_every_grid(cell: str) -> None:
    op, transformation = CELLS[cell]
    faults = [fault_of(op, transformation, *case) for case in cases_of(op, transformation)[0]]
    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.parametrize("cell", CELLS)
def test_op_on_every_grid_in_every_dtype(cell: str) -> None:
    op, transformation = CELLS[cell]
    faults = [fault_of(op, transformation, *case) for case in cases_of(op, transformation)[1]]
    assert not any(faults), "\n".join(filter(None, faults))
