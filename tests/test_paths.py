"""Calls take the four paths through the code that DESIGN.md describes."""

from __future__ import annotations

import itertools
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
from limelight.training.loop import train
from seeing.hf_models import DECODERS
from training.small_runs import settings

SOURCE = str(Path(ll.__file__).parent)
DESIGN = (Path(__file__).parent.parent / "DESIGN.md").read_text(encoding="utf-8")
TEXT = "The animal didn't cross the street because it was too tired."


def described(title: str) -> list[str]:
    """The files of a path, in the order of its paragraph."""
    paragraph = DESIGN.split(f"**{title}**", 1)[1].split("\n\n", 1)[0]
    paragraph = paragraph.replace("`attend` as above", "`ops/attend.py`")
    names = re.findall(r"`([\w/]+\.py)`", paragraph)
    assert len(set(names)) == len(names), "a file is named twice"
    return names


def traced(call: Callable[[], object], since: str = "") -> list[str]:
    """The files that a call reaches, in the order of their first call; constructors do not count.

    Args:
        call: run once.
        since: the function of ours at which the path begins; that of `call` unless given.
    """
    reached: list[str] = []
    constructors = 0
    begun = not since

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal begun, constructors
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(SOURCE):
            return
        begun = begun or frame.f_code.co_name == since
        if not begun:
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
    order = []
    for name in names:
        positions = [n for n, file in enumerate(reached) if file.endswith(f"/{name}")]
        assert positions, f"{name} is described and not reached"
        order.append(positions[0])
    assert order == sorted(order), [reached[position] for position in order]


def test_the_path_of_attend() -> None:
    q = torch.randn(1, 2, 6, 8)

    def call() -> object:
        mask, lens = ll.window(2), ll.Lens(top=1)
        return ll.attend(q, q, q, mask=mask, lens=lens)[1].rows([1])

    call()  # imports what is loaded on first use
    check_order(described("`attend(q, k, v, mask=…, lens=…)`"), traced(call))


def test_the_path_of_the_command_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limelight.cli.app import app

    monkeypatch.chdir(tmp_path)

    def call() -> object:
        result = CliRunner().invoke(app, ["show", TEXT])
        assert result.exit_code == 0, result.output
        return result

    call()
    check_order(described("`limelight show TEXT`"), traced(call))


def test_the_path_of_a_watched_hugging_face_forward() -> None:
    model = DECODERS["llama"]()
    ids = torch.randint(3, 99, (1, 5))

    def call() -> object:
        with torch.no_grad(), ll.watch(model) as watched:
            model(ids)
        return watched.recording()

    call()
    check_order(described("A watched Hugging Face forward"), traced(call))


def test_the_path_of_a_training_step(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 200)
    model = {"preset": "llama", "layers": 1, "heads": 2, "width": 32, "context": 16}
    folders = itertools.count()

    def call() -> object:
        folder = tmp_path / str(next(folders))
        return train(settings(folder, model=model, steps=1, save_every=1), base=tmp_path)

    call()
    check_order(described("A training step"), traced(call, since="_step"))
