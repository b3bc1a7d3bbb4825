"""The rule table: how each primitive relates the dims of its operands to those of its result.

A new primitive is one row here. A primitive without a row gets `WHOLE`: every dim of every operand at once, always
right, never streaming.
"""

from __future__ import annotations

from jask_zarr._plan import rules_layout as layout
from jask_zarr._plan import rules_reduce as reduce
from jask_zarr._plan.program import Equation
from jask_zarr._plan.rule import ELEMENTWISE, WHOLE, Rule, batched, evaluate_bind

ELEMENTWISE_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not
optimization_barrier or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round
rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan
tanh xor zeta pvary mulhi threefry2x32
""".split()

# --- the table --------------------------------------------------------------------------------------------------------

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
LAST_TWO = ("cholesky", "triangular_solve", "lu", "householder_product", "tridiagonal_solve")

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE_NAMES, ELEMENTWISE),
    "broadcast_in_dim": Rule(layout.access_broadcast, layout.evaluate_broadcast),
    "transpose": Rule(layout.access_transpose, evaluate_bind),
    "squeeze": Rule(layout.access_squeeze, evaluate_bind),
    "reshape": Rule(layout.access_reshape, layout.evaluate_reshape),
    "slice": Rule(layout.access_slice, layout.evaluate_slice),
    "split": Rule(layout.access_split, layout.evaluate_split),
    "concatenate": Rule(layout.access_concatenate, layout.evaluate_concatenate),
    "stack": Rule(layout.access_stack, evaluate_bind),
    "pad": Rule(layout.access_pad, layout.evaluate_pad),
    "iota": Rule(layout.access_iota, layout.evaluate_iota),
    "dynamic_slice": Rule(layout.access_dynamic_slice, layout.evaluate_dynamic_slice),
    "dynamic_update_slice": Rule(layout.access_dynamic_update_slice, layout.evaluate_dynamic_update_slice),
    "reduce_sum": reduce.reduction("sum"),
    "reduce_prod": reduce.reduction("prod"),
    "reduce_max": reduce.reduction("max"),
    "reduce_min": reduce.reduction("min"),
    "reduce_and": reduce.reduction("and"),
    "reduce_or": reduce.reduction("or"),
    "reduce_xor": reduce.reduction("xor"),
    "argmax": reduce.reduction("argmax"),
    "argmin": reduce.reduction("argmin"),
    "dot_general": Rule(reduce.access_dot, reduce.evaluate_dot, "add", fuses=False),
    "gather": Rule(reduce.access_gather, reduce.evaluate_gather, "add", fuses=False),
    "scatter-add": Rule(reduce.access_scatter_add, reduce.evaluate_scatter_add, "add", fuses=False),
    **{name: batched(lambda e: (e.params["axis"],)) for name in SCANS},
    **{name: batched(lambda e: (-1, -2)) for name in LAST_TWO},
    "sort": batched(lambda e: (e.params["dimension"],)),
    "rev": batched(lambda e: e.params["dimensions"]),
    "fft": batched(lambda e: range(-len(e.params["fft_lengths"]), 0)),
}


def rule_for(equation: Equation) -> Rule:
    return RULES.get(equation.name, WHOLE)
