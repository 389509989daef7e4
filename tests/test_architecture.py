"""The layers of the package, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_each_layer_imports_only_from_those_below_it() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_help_does_not_wait_for_torch() -> None:
    loaded = python(
        "import sys, limelight.cli.app\n"
        "print([m for m in ('torch', 'numpy', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_importing_the_operation_loads_nothing_heavy_but_torch() -> None:
    loaded = python(
        "import sys, limelight as ll; ll.attend\n"
        "print([m for m in ('transformers', 'matplotlib', 'pydantic', 'tokenizers', 'rich', 'gguf')"
        " if m in sys.modules])"
    )
    assert loaded.strip() == "[]"
