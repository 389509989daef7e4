"""The numbered examples run unchanged and print what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
OUTPUTS = {
    "01_attend.py": "Choice(impl='native'",
    "02_look.py": 'best match "animal" 0.677',
    "03_watch_any_module.py": "the same numbers: True",
}


def test_every_example_has_an_expected_output() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(OUTPUTS)


@pytest.mark.parametrize(("name", "words"), OUTPUTS.items())
def test_an_example_prints_its_expected_output(name: str, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
