"""What a reader copies from the README and the docs: Python runs, commands parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.insight.studies.registry import STUDIES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
# Too long for here: other tests run them.
TESTED_ELSEWHERE = ("study", "heads", "train", "explore", "translate")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def commands(path: Path) -> Iterator[list[str]]:
    """The arguments of every `limelight …` on a page, in blocks and within lines of text."""
    text = path.read_text(encoding="utf-8")
    lines = [line for block in blocks(path, "sh") for line in block.splitlines()]
    lines += re.findall(r"`(limelight [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if "limelight" in words:
                yield words[words.index("limelight") + 1 :]


def test_pages_hold_commands_and_python() -> None:
    assert sum(len(list(commands(path))) for path in PAGES) > 60
    assert sum(len(blocks(path, "python")) for path in PAGES) > 12


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_command_parses(path: Path) -> None:
    """Its name and its options are known, and it has the arguments that it needs."""
    group: Any = get_command(app)
    for words in commands(path):
        if not words or words[0] not in group.commands:
            assert words == ["--help"], f"{path}: limelight {' '.join(words)}"
            continue
        if len(words) == 1 or words[1].isupper():  # only its name, or a placeholder like MODEL
            continue
        command = group.commands[words[0]]
        context = command.make_context(words[0], list(words[1:]), resilient_parsing=False)
        if words[0] == "study" and context.params["names"]:
            assert set(context.params["names"]) <= set(STUDIES), words


def test_every_idea_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "docs" / "ideas.md"
    monkeypatch.chdir(tmp_path)
    [start] = blocks(path, "python")
    known: dict[str, Any] = {}
    exec(start, known)
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| \[", path.read_text(encoding="utf-8"), re.M)
    assert len(rows) > 50
    for line in rows:
        if not line.startswith("limelight "):
            eval(line, known)
            continue
        words = shlex.split(line)[1:]
        if words[0] in TESTED_ELSEWHERE:
            continue
        done = CliRunner().invoke(app, words)
        expected = 1 if "--check" in words else 0  # the check finds the printed example wrong
        assert done.exit_code == expected, f"{line}\n{done.output}\n{done.exception}"


WITH_PYTHON = [path for path in PAGES if blocks(path, "python")]


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_block_of_python_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page; `model` and `x` are in place of the reader's own."""
    monkeypatch.chdir(tmp_path)
    layer = torch.nn.TransformerEncoderLayer(64, 8, batch_first=True)
    known: dict[str, Any] = {"torch": torch, "ll": ll, "model": layer, "x": torch.randn(1, 9, 64)}
    for block in blocks(path, "python"):
        if "watched.recording(tokenizer)" in block or "load_weights(" in block:
            # tests/seeing runs Hugging Face models, tests/models foreign weights
            compile(block, str(path), "exec")
        else:
            exec(shortened(block), known)


def shortened(block: str) -> str:
    """The same with only a few tokens generated."""
    few = "__import__('itertools').islice"
    block = re.sub(r"(for .* in )(ll\.stream\(.*\)):", rf"\1{few}(\2, 2):", block)
    return re.sub(r"max_tokens=\d+", "max_tokens=2", block)
