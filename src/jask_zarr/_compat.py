"""What differs between the JAX versions we support, and every use of ``jax._src``.

JAX 0.10 has `VJPHiPrimitive` and a `ClosedJaxpr` apart from `Jaxpr`; JAX 0.12 has `HiPrim` and
one `Jaxpr` that carries its constants. Everything else in the package uses the names of this
module and does not know which version runs.
"""

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import numpy as np
from jax import export
from jax._src import (
    ad_checkpoint,
    ad_util,
    callback,
    core,
    dispatch,
    dtypes,
    effects,
    hijax,
    pjit,
    source_info_util,
    xla_bridge,
)
from jax._src.interpreters import ad, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals, loops

__all__ = [
    "ClosedJaxpr",
    "FillingDtype",
    "HiPrimitive",
    "HiType",
    "Jaxpr",
    "ShapedArray",
    "Tracer",
    "Var",
    "Zero",
    "as_function",
    "attend_calls",
    "aval_method",
    "aval_property",
    "called_by_operator",
    "closed",
    "current_trace",
    "dce",
    "defer_operator",
    "dense_maker",
    "evaluating",
    "exported",
    "has_started",
    "hoist_constants",
    "inside",
    "is_attended",
    "is_evaluating",
    "is_in_grad",
    "is_linear_input",
    "is_zero",
    "jax_runtime_error",
    "loaded",
    "no_sharding",
    "ordered_callback",
    "register_hitype",
    "scalar_aval",
    "scan_sizes",
    "source_line",
    "tangent_dtype",
    "trace_of",
    "typeof",
    "update_effect",
    "x64_is_enabled",
]

_PACKAGE = os.path.dirname(__file__) + os.sep

HiPrimitive: Any = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive
HiType: Any = hijax.HiType
Jaxpr: Any = core.Jaxpr
ClosedJaxpr: Any = getattr(core, "ClosedJaxpr", core.Jaxpr)
ShapedArray: Any = core.ShapedArray
Tracer: Any = core.Tracer
Var: Any = core.Var
Zero: Any = ad_util.Zero
aval_method: Any = core.aval_method
aval_property: Any = core.aval_property
register_hitype: Any = hijax.register_hitype
typeof: Any = core.typeof
jax_runtime_error: type[Exception] = jax.errors.JaxRuntimeError
as_function: Callable[..., Any] = core.jaxpr_as_fun


class UpdateEffect(effects.Effect):
    """What `update_` does to a store; keeps JAX from dropping an update whose result is unused."""

    def __str__(self) -> str:
        return "UpdatesStore"


update_effect = UpdateEffect()
effects.control_flow_allowed_effects.add_type(UpdateEffect)
effects.custom_derivatives_allowed_effects.add_type(UpdateEffect)
# A callback in a loop body is in order: JAX lowers it so, but does not admit it when it traces.
effects.control_flow_allowed_effects.add_type(callback.OrderedIOEffect)


def _raising_remat(lower: Callable[..., Any]) -> Callable[..., Any]:
    """JAX forgets to raise the results of a lowered `checkpoint` to their types again."""

    def to_lojax(*hi_args: Any, jaxpr: Any, **params: Any) -> Any:
        outs = lower(*hi_args, jaxpr=jaxpr, **params)
        avals = [var.aval for var in jaxpr.outvars]
        raised = all(core.typematch(core.typeof(x), a) for x, a in zip(outs, avals, strict=False))
        if raised and len(outs) == len(avals):
            return outs
        rest = iter(outs)
        return [a.raise_val(*(next(rest) for _ in a.lo_ty())) for a in avals]

    return to_lojax


ad_checkpoint.remat_p.to_lojax = _raising_remat(ad_checkpoint.remat_p.to_lojax)
_calls = (pjit.jit_p, loops.scan_p, loops.while_p, conditionals.cond_p, ad_checkpoint.remat_p)


_one_at_a_time = threading.RLock()
"""Held while a function that calls back runs. It occupies a thread of JAX's pool, and so does what
its callback computes: several at once could take them all and wait for each other."""

_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
if _cores == 1:
    # A pool of one thread would wait for itself. XLA reads the size when JAX is first used.
    os.environ.setdefault("NPROC", "2")

_callback_p = core.Primitive("disk_callback")
_callback_p.multiple_results = True
_callback_p.def_impl(partial(dispatch.apply_primitive, _callback_p))


@_callback_p.def_effectful_abstract_eval
def _callback_abstract_eval(*_: Any, function: Any, results: Any) -> Any:
    return results, {callback._OrderedIOEffect}


def _callback_lowering(ctx: Any, *args: Any, function: Callable[..., Any], results: Any) -> Any:
    def called(*arrays: Any) -> tuple[np.ndarray, ...]:
        return tuple(map(np.asarray, function(*arrays)))

    effect = callback._OrderedIOEffect
    out, token, _ = callback.emit_python_callback(
        ctx,
        called,
        ctx.tokens_in.get(effect),
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=True,
        sharding=callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out),
    )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return out


mlir.register_lowering(_callback_p, _callback_lowering, cacheable=False)


def ordered_callback(function: Callable[..., Any], results: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Call Python from a compiled function, in order, with NumPy arrays.

    `jax.experimental.io_callback` first puts the arguments on a device, which waits for a thread
    of JAX that, on one core, is the very thread that runs the callback.
    """
    avals = tuple(core.ShapedArray(r.shape, r.dtype) for r in results)
    return _callback_p.bind(*arguments, function=function, results=avals)


def attend_calls(is_ours: Callable[[Any], bool], original: Callable[..., Any], finish: Callable[[], None]) -> None:
    """Wait for compiled functions that have an argument or constant that `is_ours`.

    JAX reports the failure of a callback when the function is called or, later, when a result is
    looked at. Such functions wait for their results, so that the failure is theirs, and raise
    ``original(error)``, what the callback raised, in the place of JAX's text of it. When all is
    well, ``finish()`` is called.
    """
    for primitive in _calls:
        primitive.to_lojax = _attended(primitive.to_lojax, is_ours, original, finish)


def is_attended() -> bool:
    """Does somebody wait for the function that calls back now?"""
    return _attended_calls[0] > 0


_attended_calls = [0]


def _attended(
    lower: Callable[..., Any],
    is_ours: Callable[[Any], bool],
    original: Callable[..., Any],
    finish: Callable[[], None],
) -> Callable[..., Any]:
    @wraps(lower)
    def to_lojax(*args: Any, **params: Any) -> Any:
        if not is_evaluating() or not any(map(is_ours, [*args, *_constants(params)])):
            return lower(*args, **params)
        try:
            with _one_at_a_time, _counted():
                outs = lower(*args, **params)
                jax.block_until_ready([x for x in outs if isinstance(x, jax.Array)])
        except jax_runtime_error as error:
            raise original(error) from None
        finish()
        return outs

    return to_lojax


@contextmanager
def _counted() -> Iterator[None]:
    _attended_calls[0] += 1
    try:
        yield
    finally:
        _attended_calls[0] -= 1


def _constants(params: dict[str, Any]) -> Sequence[Any]:
    return getattr(params.get("jaxpr"), "consts", ())


def tangent_dtype(dtype: Any) -> Any:
    """The dtype of tangents of values of `dtype` (float0 for integers)."""
    return core.primal_dtype_to_tangent_dtype(dtype)


def is_zero(tangent: Any) -> bool:
    """Is this a symbolic zero?"""
    return isinstance(tangent, ad_util.Zero)


def is_linear_input(arg: Any) -> bool:
    """Does a transpose rule have to give a cotangent for this argument?"""
    return isinstance(arg, ad.GradAccum)


def is_evaluating() -> bool:
    """Are operations run now (and not recorded by a trace around us)?"""
    return isinstance(core.trace_ctx.trace, core.EvalTrace)


def called_by_operator() -> bool:
    """Is an operator of a JAX array asking (which would rather have a JAX array)?"""
    frame = sys._getframe(2)
    if frame.f_code.co_name == "__jax_array__":  # of a tracer, which asks its type
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.endswith("array_methods.py")


def defer_operator(name: str, reflected: Callable[[Any, Any], Any], is_ours: Callable[[Any], bool]) -> None:
    """Let ``tracer <name> ours`` be ``reflected(ours, tracer)``.

    Python asks the right operand only if it is of another class, and all tracers are of one.
    """
    original = getattr(core.ShapedArray, f"_{name}")

    @wraps(original)
    def operator(self: Any, other: Any) -> Any:
        if isinstance(other, core.Tracer) and is_ours(other.aval):
            return reflected(other, self)
        return original(self, other)

    setattr(core.ShapedArray, f"_{name}", staticmethod(operator))


def dense_maker() -> str | None:
    """The name of the JAX function that reads shape and dtype to make an array like them.

    To be called by what a property of an array, or of a type, calls.
    """
    frame = sys._getframe(3)
    for _ in range(6):
        if frame is None or _JAX not in frame.f_code.co_filename:
            return None
        if frame.f_code.co_name in ("full_like", "empty_like"):
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def is_in_grad() -> bool:
    """Does `jax.grad` (rather than `jax.vjp`) want a gradient now?

    To be called by what a method of a type calls.
    """
    frame = sys._getframe(3)
    while frame is not None and _JAX in frame.f_code.co_filename:
        if frame.f_code.co_name == "value_and_grad_f":
            return True
        frame = frame.f_back
    return False


_JAX = f"jax{os.sep}_src"


class FillingDtype(dtypes.ExtendedDType):
    """A dtype that makes `jax.numpy.zeros_like` and its kin call ``make(shape, value)``."""

    type: Any = dtypes.extended

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    @property
    def _rules(self) -> Any:
        return self

    def full(self, shape: Any, value: Any, dtype: Any) -> Any:
        return self.make(shape, value)


def evaluating() -> Any:
    """Run operations now, whatever trace is around us.

    Not `jax.ensure_compile_time_eval`: that also evaluates the constants of functions that are
    traced inside it, at full shape and in memory.
    """
    return core.eval_context()


def exported(function: Callable[..., Any], *shapes: Any) -> bytes:
    """What `jax.export` makes of a function for arguments of these shapes, as bytes.

    `jax.export.Exported.serialize` would need another package, and knows fewer data types. All of the artefact can be
    pickled but the way to its derivative, which nobody asks for; JAX must be of the same version on both sides.
    """
    artefact: Any = export.export(jax.jit(function))(*shapes)
    return pickle.dumps(replace(artefact, _get_vjp=None))


def loaded(artefact: bytes) -> Callable[..., Any]:
    """The function that was `exported`, maybe in another process."""
    return jax.jit(pickle.loads(artefact).call)


def trace_of(tracer: Any) -> Any:
    """The trace that a tracer belongs to."""
    return tracer._trace


def current_trace() -> Any:
    """The trace that records operations now."""
    return core.trace_ctx.trace


@contextmanager
def inside(trace: Any) -> Iterator[None]:
    """Record operations in a trace that need not be the innermost one."""
    with core.set_current_trace(trace):
        yield


def no_sharding(shape: tuple[int, ...]) -> Any:
    """The sharding of an array of this shape where nothing is sharded."""
    return core.ShapedArray(shape, np.dtype("float32")).sharding


def scalar_aval(dtype: Any, shape: tuple[int, ...] = ()) -> Any:
    """The type of one lowered handle, or of an array of them."""
    return core.ShapedArray(shape, dtype)


def closed(jaxpr: Any) -> Any:
    """A jaxpr without constants, in the form that `jax.make_jaxpr` gives."""
    return jaxpr if ClosedJaxpr is core.Jaxpr else ClosedJaxpr(jaxpr, ())


def hoist_constants(closed_jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """Turn the constants of a jaxpr into its first inputs; also give their values."""
    consts = tuple(closed_jaxpr.consts)
    return closed(pe.convert_constvars_jaxpr(closed_jaxpr.jaxpr)), consts


def dce(closed_jaxpr: Any, used_outputs: Sequence[bool]) -> tuple[Any, list[bool]]:
    """Drop what the used outputs do not need; also say which inputs remain."""
    jaxpr, used = pe.dce_jaxpr(closed_jaxpr.jaxpr, list(used_outputs))
    return closed(jaxpr), list(used)


def x64_is_enabled() -> bool:
    """Does JAX keep 64-bit dtypes?"""
    return bool(jax.config.read("jax_enable_x64"))


def source_line(equation: Any) -> str:
    """`` (file:line)`` of the user's code that an equation comes from, or nothing if it is not known."""
    for frame in source_info_util.user_frames(equation.source_info.traceback):
        if not frame.file_name.startswith(_PACKAGE):
            return f" ({frame.file_name}:{frame.start_line})"
    return ""


def scan_sizes(params: Any) -> tuple[int, int]:
    """How many constants and how many carried values a `scan` equation has."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def primitive_names() -> set[str]:
    """The names of all primitives that this JAX can lower."""
    primitives = set(mlir._lowerings)
    for platform in mlir._platform_specific_lowerings.values():
        primitives |= set(platform)
    return {primitive.name for primitive in primitives}


def has_started() -> bool:
    """Has JAX set up its devices, and the threads that go with them?"""
    return xla_bridge.backends_are_initialized()
