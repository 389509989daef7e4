"""The numbered examples run as they stand, and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAY = {
    "01_attend.py": "Choice(impl='native'",
    "02_look.py": 'best match "animal" 0.677',
    "03_watch_any_module.py": "the same numbers: True",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAY)


@pytest.mark.parametrize(("name", "words"), SAY.items())
def test_an_example_runs(name: str, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
