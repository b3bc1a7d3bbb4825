"""Which values have the same bits whenever they are computed again.

Another compiled function may fuse arithmetic in another way, or take another approximation of a function, and differ in
the last bit. That does no harm but where a value is compared with its own maximum, as in the gradient of a maximum:
computed again in a later pass, none might be found that equals it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from jask_zarr._plan.program import Equation, Program

MOVES = frozenset(
    "abs broadcast_in_dim clamp concatenate copy dynamic_slice dynamic_update_slice expand_dims gather max min neg pad "
    "reduce_max reduce_min reshape rev select_n slice sort split squeeze stack stop_gradient transpose".split()
)
"""Primitives whose results are elements of their operands, but for the sign."""
ROUNDED_ONCE = frozenset("add add_any sub mul div sqrt".split())
COMPARISONS = frozenset("eq ne lt le gt ge".split())


def found_again(program: Program, equation: Equation) -> Iterator[int]:
    """What is compared with its own maximum or minimum, and might not be found again if it were computed again."""
    if equation.name in ("reduce_max", "reduce_min"):
        operand, extreme = equation.inputs[0], equation.outputs[0]
        if _is_compared(program, operand, extreme) and _roundings(program).get(operand, 2) > 1:
            yield operand


def _is_compared(program: Program, value: int, extreme: int) -> bool:
    """Whether a value is compared with something that depends on its extreme."""
    depends = {extreme}
    for equation in program.equations:
        if depends.intersection(equation.inputs):
            depends.update(equation.outputs)
            if equation.name in COMPARISONS and value in equation.inputs:
                return True
    return False


def _roundings(program: Program) -> dict[int, int]:
    """Of values that are the same whenever they are computed: 0 if as stored, 1 if rounded once; no others."""
    found = dict.fromkeys((*program.inputs, *program.constants), 0)
    for equation in program.equations:
        own = [found.get(v, 2) for v in equation.inputs]
        kinds = [program.dtype(v) for v in equation.outputs]
        if equation.name in ROUNDED_ONCE and not any(own) and all(kind.itemsize >= 4 for kind in kinds):
            found.update(dict.fromkeys(equation.outputs, 1))
        elif max(own, default=0) < 2 and (equation.name in MOVES or not any(map(_is_inexact, kinds))):
            found.update(dict.fromkeys(equation.outputs, max(own, default=0)))
    return found


def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)
