"""Transposes folded into contractions: ``x.T @ v`` contracts the first dim of `x`.

XLA on the CPU is a hundred times slower at a transposed matrix times a vector, and a fold leaves no copy to hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import core

Transposed = Mapping[int, tuple[int, Any, tuple[int, ...]]]
"""Values that are transposes: of which value, its aval, and the permutation."""
Numbers = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


def fold_transposes(
    equation: core.JaxprEqn, operands: tuple[int, ...], transposed: Transposed
) -> tuple[core.JaxprEqn, tuple[int, ...]]:
    """The same contraction of what its operands are transposes of, as far as the order of the result's dims allows."""
    for side in (0, 1):
        while operands[side] in transposed:
            value, aval, permutation = transposed[operands[side]]
            numbers = permuted(equation.params["dimension_numbers"], side, permutation)
            if numbers is None:
                break
            operands = (*operands[:side], value, *operands[side + 1 :])
            invars = [*equation.invars[:side], core.Var(aval), *equation.invars[side + 1 :]]
            equation = equation.replace(invars=invars, params={**equation.params, "dimension_numbers": numbers})
    return equation, operands


def permuted(numbers: Numbers, side: int, permutation: Sequence[int]) -> Numbers | None:
    """Dimension numbers for the operand before its transpose; None if that changes the order of its free dims.

    >>> permuted((((1,), (0,)), ((), ())), 0, (1, 0))
    (((0,), (0,)), ((), ()))
    """
    taken = {*numbers[0][side], *numbers[1][side]}
    free = [before for d, before in enumerate(permutation) if d not in taken]
    if free != sorted(free):
        return None
    contract, batch = (
        tuple(tuple(permutation[d] for d in dims) if n == side else tuple(dims) for n, dims in enumerate(pair))
        for pair in numbers
    )
    return contract, batch  # pyright: ignore[reportReturnType]
