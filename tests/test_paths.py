"""The paths of `attend` and `limelight show` that DESIGN.md describes are those that calls take."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import limelight as ll

SOURCE = str(Path(ll.__file__).parent)
DESIGN = (Path(__file__).parent.parent / "DESIGN.md").read_text(encoding="utf-8")
TEXT = "The animal didn't cross the street because it was too tired."


def described(title: str) -> list[str]:
    """The files of a path, in the order of its paragraph."""
    paragraph = DESIGN.split(f"**{title}**", 1)[1].split("\n\n", 1)[0]
    names = re.findall(r"`([\w/]+\.py)`", paragraph)
    assert len(set(names)) == len(names), "a file is named twice"
    return names


def traced(call: Callable[[], object]) -> list[str]:
    """The files that a call reaches, each where it is first entered; constructors apart."""
    reached: list[str] = []
    constructors = 0

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal constructors
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(SOURCE):
            return
        if frame.f_code.co_name == "__init__":
            constructors += 1 if event == "call" else -1
        elif event == "call" and not constructors and path not in reached:
            reached.append(path)

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(before)
    return reached


def check_order(names: list[str], reached: list[str]) -> None:
    places = []
    for name in names:
        known = [place for place, file in enumerate(reached) if file.endswith(f"/{name}")]
        assert known, f"{name} is described and not reached"
        places.append(known[0])
    assert places == sorted(places), [reached[place] for place in places]


def test_attend() -> None:
    q = torch.randn(1, 2, 6, 8)

    def call() -> object:
        mask, lens = ll.window(2), ll.Lens(top=1)
        return ll.attend(q, q, q, mask=mask, lens=lens)[1].rows([1])

    call()  # what is imported on first use
    check_order(described("`attend(q, k, v, mask=…, lens=…)`"), traced(call))


def test_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limelight.cli.app import app

    monkeypatch.chdir(tmp_path)

    def call() -> object:
        result = CliRunner().invoke(app, ["show", TEXT])
        assert result.exit_code == 0, result.output
        return result

    call()
    check_order(described("`limelight show TEXT`"), traced(call))
