"""What a chain of matmuls costs in either order, against costs counted by hand."""

import jax
import jax.numpy as jnp
import pytest

import jask_zarr as jz
from jask_zarr._plan.chains import chains
from jask_zarr._plan.program import flatten

M, K, N, P, B = 7, 5, 11, 3, 2

CASES = {
    "(a @ b) @ c": (
        lambda a, b, c: (a @ b) @ c, [(M, K), (K, N), (N, P)],
        2 * M * K * N + 2 * M * N * P, 2 * K * N * P + 2 * M * K * P, (1, 2),
    ),
    "a @ (b @ c)": (
        lambda a, b, c: a @ (b @ c), [(M, K), (K, N), (N, P)],
        2 * K * N * P + 2 * M * K * P, 2 * M * K * N + 2 * M * N * P, (1, 0),
    ),
    "(a @ b) @ v": (
        lambda a, b, v: (a @ b) @ v, [(M, K), (K, N), (N,)],
        2 * M * K * N + 2 * M * N, 2 * K * N + 2 * M * K, (1, 2),
    ),
    "batched": (
        lambda a, b, c: jnp.matmul(jnp.matmul(a, b), c), [(B, M, K), (B, K, N), (B, N, P)],
        2 * B * M * K * N + 2 * B * M * N * P, 2 * B * K * N * P + 2 * B * M * K * P, (1, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_orders_have_their_cost(name: str) -> None:
    call, shapes, flops, other_flops, first = CASES[name]
    program = flatten(jax.make_jaxpr(call)(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)))
    (chain,) = chains(program)
    assert (chain.flops, chain.other_flops) == (flops, other_flops)
    assert tuple(program.inputs.index(value) for value in chain.other_first) == first


def test_a_contraction_over_dims_of_both_has_one_order_only() -> None:
    def call(a, b, c):
        return jnp.einsum("mn,mn->", jnp.matmul(a, b), c)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in [(M, K), (K, N), (M, N)]]
    assert chains(flatten(jax.make_jaxpr(call)(*shapes))) == []


def test_explain_says_both() -> None:
    a, b, v = jz.ones((1000, 1000)), jz.ones((1000, 1000)), jz.ones((1000,))
    text = str(jz.explain((a @ b) @ v))
    assert "2.0 GFLOP as written" in text
    assert "4.0 MFLOP" in text
