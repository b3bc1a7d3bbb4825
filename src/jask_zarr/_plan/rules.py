"""The rule table: how each primitive relates the dims of its operands to those of its result.

A new primitive is one row here. A primitive without a row gets `WHOLE`: every dim of every operand at once, always
right, never streaming.
"""

from __future__ import annotations

from jask_zarr._plan import rules_exp as exp
from jask_zarr._plan import rules_layout as layout
from jask_zarr._plan import rules_random as random
from jask_zarr._plan import rules_reduce as reduce
from jask_zarr._plan import rules_rows as rows
from jask_zarr._plan import rules_square as square
from jask_zarr._plan import rules_window as window
from jask_zarr._plan import scans
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import (
    ELEMENTWISE,
    WHOLE,
    Rule,
    batched,
    evaluate_bind,
    evaluate_source,
    flops_of_sort,
    leading_batch,
)

ELEMENTWISE_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
convert_element_type copy cos cosh device_put digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
igamma_grad_a igammac imag integer_pow is_finite layout_constraint le lgamma log log1p log2 logistic lt max min mul
mulhi name ne neg nextafter not one_minus_square optimization_barrier or philox2x32 philox4x32 polygamma
population_count pow pvary real reduce_precision regularized_incomplete_beta rem reshard round rsqrt select_n
sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient
sub tan tanh threefry2x32 threefry4x32 xor zeta
""".split()

# --- the table --------------------------------------------------------------------------------------------------------

MATRICES = (
    "cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu ormqr qr schur svd "
    "symmetric_product triangular_solve tridiagonal tridiagonal_solve"
).split()
WINDOWS = ("reduce_window_sum", "reduce_window_max", "reduce_window_min")
SCATTERS = ("scatter", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub")

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE_NAMES, ELEMENTWISE),
    "broadcast_in_dim": Rule(layout.access_broadcast, layout.evaluate_broadcast),
    "bitcast_convert_type": Rule(layout.access_bitcast, evaluate_bind),
    "transpose": Rule(layout.access_transpose, evaluate_bind),
    "squeeze": Rule(layout.access_squeeze, evaluate_bind),
    "reshape": Rule(layout.access_reshape, layout.evaluate_reshape),
    "slice": Rule(layout.access_slice, layout.evaluate_slice),
    "rev": Rule(layout.access_reverse, evaluate_bind),
    "split": Rule(layout.access_split, layout.evaluate_split),
    "concatenate": Rule(layout.access_concatenate, layout.evaluate_concatenate),
    "stack": Rule(layout.access_stack, evaluate_bind),
    "pad": Rule(layout.access_pad, layout.evaluate_pad),
    "iota": Rule(layout.access_iota, layout.evaluate_iota),
    "dynamic_slice": Rule(layout.access_dynamic_slice, layout.evaluate_dynamic_slice),
    "dynamic_update_slice": Rule(layout.access_dynamic_update_slice, layout.evaluate_dynamic_update_slice),
    "reduce_sum": Rule(reduce.access_reduce, reduce.evaluate_wider, "sum"),
    "reduce_prod": Rule(reduce.access_reduce, reduce.evaluate_wider, "prod"),
    "reduce_max": reduce.reduction("max"),
    "reduce_min": reduce.reduction("min"),
    "reduce_and": reduce.reduction("and"),
    "reduce_or": reduce.reduction("or"),
    "reduce_xor": reduce.reduction("xor"),
    "argmax": reduce.reduction("argmax"),
    "argmin": reduce.reduction("argmin"),
    "dot_general": Rule(reduce.access_dot, reduce.evaluate_dot, "add", fuses=False, flops=reduce.flops_of_dot),
    exp.REDUCE_SUM.name: Rule(exp.access_sum, exp.evaluate, "rescaled"),
    exp.DOT_GENERAL.name: Rule(
        exp.access_dot,
        exp.evaluate,
        "rescaled",
        fuses=False,
        copied=lambda e: (e.params["side"],),
        flops=reduce.flops_of_dot,
    ),
    square.REDUCE_SUM.name: Rule(reduce.access_reduce, square.evaluate, "recentred"),
    "gather": Rule(rows.access_gather, rows.evaluate_gather, "add", fuses=False, passes_on=rows.passes_rows_on),
    "scatter-add": Rule(rows.access_scatter_add, rows.evaluate_scatter_add, "add", fuses=False),
    **{name: batched(lambda e: (e.params["axis"],)) for name in scans.KINDS},
    scans.SCAN.name: Rule(scans.access, scans.evaluate, fuses=False, workspace=24),
    **dict.fromkeys(SCATTERS, Rule(rows.access_scatter, rows.evaluate_scatter, fuses=False)),
    **dict.fromkeys(MATRICES, Rule(leading_batch(2), evaluate_source, fuses=False)),
    **dict.fromkeys(WINDOWS, Rule(window.access_reduce_window, window.evaluate_reduce_window, fuses=False)),
    "conv_general_dilated": Rule(window.access_conv, window.evaluate_conv, "add", fuses=False),
    "select_and_scatter_add": batched(window.windowed_dims),
    "select_and_gather_add": batched(window.windowed_dims),
    "random_bits": Rule(random.access_random_bits, random.evaluate_random_bits, fuses=False, workspace=36),
    "unstack": Rule(layout.access_unstack, evaluate_bind),
    "top_k": batched(lambda e: (e.params.get("axis", -1),)),
    "approx_top_k": batched(lambda e: (e.params["reduction_dimension"],)),
    "sort": batched(lambda e: (e.params["dimension"],), flops=flops_of_sort),
    "fft": batched(lambda e: range(-len(e.params["fft_lengths"]), 0)),
}


WHOLE_ON_PURPOSE = frozenset(
    """
    custom_linear_solve dot_product_attention_bwd_wrapper dot_product_attention_fwd_wrapper empty empty2
    lu_pivots_to_permutation ragged_dot_general random_clone random_fold_in random_gamma random_seed random_split
    random_unwrap random_wrap reduce reduce_window rng_bit_generator rng_uniform scaled_dot select_and_scatter tile
    while
    """.split()
)
"""Primitives that need all of their operands at once, or are not worth a rule."""


def rule_for(equation: Equation) -> Rule:
    return RULES.get(equation.name, WHOLE)
