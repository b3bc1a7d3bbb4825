"""What `_compat` promises to the rest of the package, on every version of JAX."""

import ast
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jask_zarr
from jask_zarr import _compat

PACKAGE = Path(jask_zarr.__file__).parent


def _imports(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return named | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_compat_imports_the_internals_of_jax() -> None:
    importers = {
        file.name for file in PACKAGE.rglob("*.py") if any(name.startswith("jax._src") for name in _imports(file))
    }
    assert importers == {"_compat.py"}


def test_every_promised_name_is_there() -> None:
    missing = [name for name in _compat.__all__ if not hasattr(_compat, name)]
    assert missing == []


def test_constants_become_the_first_inputs() -> None:
    table = np.arange(3.0, dtype="float32")
    jaxpr, consts = _compat.hoist_constants(jax.make_jaxpr(lambda x: x + table)(jnp.ones(3)))
    assert [np.shape(c) for c in consts] == [(3,)]
    assert len(jaxpr.in_avals) == 2
    assert not jaxpr.consts
    np.testing.assert_array_equal(_compat.as_function(jaxpr)(table, jnp.ones(3))[0], table + 1)


def test_unused_inputs_are_dropped() -> None:
    jaxpr = jax.make_jaxpr(lambda x, y: (x + 1, x * y))(1.0, 2.0)
    small, used = _compat.dce(jaxpr, [True, False])
    assert used == [True, False]
    assert len(small.out_avals) == 1
    assert _compat.as_function(small)(1.0) == [2.0]


@pytest.mark.parametrize("tracing", [False, True])
def test_it_knows_whether_operations_run_now(tracing: bool) -> None:
    seen: list[bool] = []

    def look(x: Any) -> Any:
        seen.append(_compat.is_evaluating())
        return x

    (jax.make_jaxpr(look) if tracing else look)(1.0)
    assert seen == [not tracing]


def test_operations_can_be_recorded_in_an_outer_trace() -> None:
    def outer(x: Any) -> Any:
        trace = _compat.current_trace()
        assert _compat.trace_of(x) is trace

        def inner(y: Any) -> Any:
            with _compat.inside(trace):
                sine = jnp.sin(x)
            return y + sine

        return jax.jit(inner)(2.0)

    assert next(eqn.primitive.name for eqn in jax.make_jaxpr(outer)(1.0).jaxpr.eqns) == "sin"


def test_callbacks_get_numpy_arrays_in_order() -> None:
    calls: list[Any] = []

    def note(x: Any) -> list[Any]:
        calls.append((type(x), float(x)))
        return [x * 2]

    @jax.jit
    def compiled(x: Any) -> Any:
        (y,) = _compat.ordered_callback(note, [jax.ShapeDtypeStruct((), np.float32)], [x])
        (z,) = _compat.ordered_callback(note, [jax.ShapeDtypeStruct((), np.float32)], [x + 1])
        return y + z

    assert compiled(jnp.float32(1)) == 6
    jax.effects_barrier()
    assert calls == [(np.ndarray, 1.0), (np.ndarray, 2.0)]


def test_the_tangent_of_an_integer_has_no_size() -> None:
    assert _compat.tangent_dtype(np.dtype("int32")) == jax.dtypes.float0
    assert _compat.tangent_dtype(np.dtype("float32")) == np.dtype("float32")


def test_symbolic_zeros_are_recognized() -> None:
    assert _compat.is_zero(_compat.Zero(_compat.typeof(1.0)))
    assert not _compat.is_zero(0.0)


def test_the_guard_is_not_fooled_by_functions_of_the_same_name() -> None:
    def full_like(x: Any) -> Any:
        return x.dtype

    assert full_like(jask_zarr.zeros((2, 2))) == np.dtype("float32")
