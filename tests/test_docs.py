"""The documentation is true: its snippets run, its links lead somewhere, its commands exist.

All Python snippets of a page run in order, as one program, in an empty folder. What a snippet
claims, it asserts. So do the examples in docstrings.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jask_zarr

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\w*)$(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _snippets(page: Path, language: str) -> list[re.Match[str]]:
    found = FENCED.finditer(page.read_text(encoding="utf-8"))
    return [match for match in found if match[1] == language]


def _program(page: Path) -> str:
    """The page's Python alone, each line where the page has it, so that tracebacks fit both."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for snippet in _snippets(page, "python"):
        first = text.count("\n", 0, snippet.start(2))
        code = snippet[2].split("\n")
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def _run_in(folder: Path, *arguments: str | Path) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


WITH_PYTHON = [page for page in PAGES if _snippets(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=_name)
def test_snippets_run(page, tmp_path):
    program = tmp_path / "page.py"
    program.write_text(_program(page), encoding="utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    _run_in(folder, program)


def test_docstring_examples_run(tmp_path):
    package = Path(jask_zarr.__file__).parent
    _run_in(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", package)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page):
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_the_index_names_every_page():
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert {page for page in PAGES if page.is_relative_to(index.parent)} <= linked | {index}


def test_the_reference_names_everything_public():
    pages = " ".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    names = {f"jz.{name}" for name in set(jask_zarr.__all__) - set(jask_zarr.numpy.__all__)}
    assert {name for name in names if not re.search(rf"{name}\b", pages)} == set()
    assert {name for name in jask_zarr.errors.__all__ if f"`{name}`" not in pages} == {"JaskZarrError"}


def test_the_quick_start_is_two_commands_that_can_be_run():
    quick_start = _snippets(ROOT / "README.md", "bash")[0][2]
    commands = [line.split()[0] for line in quick_start.strip().splitlines()]
    assert commands == ["examples/run", ".ci/run"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)
