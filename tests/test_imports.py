"""What must hold of the imports, beyond the layers that import-linter checks in CI."""

import ast
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

import jask_zarr

PACKAGE = Path(jask_zarr.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MAY_IMPORT_LATE = {"interop.py", "explain.py"}  # optional packages


def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [f"{module}.{alias.name}" for alias in node.names]
    return []


def _imports(tree: ast.AST) -> list[str]:
    return [name for node in ast.walk(tree) for name in _imported(node)]


def _late_imports(tree: ast.Module) -> list[str]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f"{function.name}: {name}" for function in functions for name in _imports(function)]


def _name(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("module", MODULES, ids=_name)
def test_private_jax_is_imported_by_compat_alone(module):
    private = [name for name in _imports(_tree(module)) if name.startswith("jax._src")]
    assert private == [] or _name(module) == "_compat.py"


@pytest.mark.parametrize("module", MODULES, ids=_name)
def test_no_import_hides_in_a_function(module):
    assert _late_imports(_tree(module)) == [] or _name(module) in MAY_IMPORT_LATE


@pytest.mark.parametrize("module", [m for m in MODULES if m != PACKAGE / "__init__.py"], ids=_name)
def test_no_module_imports_the_package_for_its_public_names(module):
    public = {n for n in jask_zarr.__all__ if not isinstance(getattr(jask_zarr, n), ModuleType)}
    doors = {"jask_zarr", *(f"jask_zarr.{name}" for name in public)}
    assert doors & set(_imports(_tree(module))) == set()


def test_every_public_name_is_there_and_is_documented():
    missing = [name for name in jask_zarr.__all__ if not hasattr(jask_zarr, name)]
    assert missing == []
    silent = [n for n in jask_zarr.__all__ if callable(f := getattr(jask_zarr, n)) and not f.__doc__]
    assert silent == []


def test_type_information_is_shipped():
    assert files("jask_zarr").joinpath("py.typed").is_file()


def test_importing_starts_nothing(tmp_path):
    """No thread, no file, no JAX backend: a library that is only imported costs nothing."""
    program = """if True:
        import os, threading
        import jax, optax, zarr
        before = threading.active_count()
        import jask_zarr
        assert threading.active_count() == before, threading.enumerate()
        assert os.listdir() == [], os.listdir()
        jax.config.update("jax_num_cpu_devices", 3)  # refused once a backend is up
        assert len(jax.devices("cpu")) == 3
    """
    environment = os.environ | {"TMPDIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
