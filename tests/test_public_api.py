"""The public names: all load, all have docstrings, and nothing else is public."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import limelight as ll


def test_every_public_name_loads_and_has_a_docstring() -> None:
    for name in ll.__all__:
        value = getattr(ll, name)
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_type_checkers_read_the_names_that_load() -> None:
    """The names are written twice, once for type checkers and once for loading on first use."""
    module = ast.parse(Path(ll.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in module.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    declared = {
        alias.asname: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert declared == {name: f"limelight.{home}" for name, home in ll._HOME.items()}
    assert set(ll.__all__) == set(declared)


def test_dir_lists_names_that_have_not_loaded_yet() -> None:
    code = "import limelight as ll; print(sorted(set(ll.__all__) - set(dir(ll))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_namespace_holds_nothing_else() -> None:
    stray = {n for n in vars(ll) if not n.startswith("_")} - set(ll.__all__)
    assert stray <= {"annotations", "importlib", "TYPE_CHECKING"} | submodules()


def submodules() -> set[str]:
    return {name for name, value in vars(ll).items() if inspect.ismodule(value)}
