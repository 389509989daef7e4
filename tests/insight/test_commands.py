"""The commands of insight: tables, JSON and files of the same result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import limelight as ll
from limelight.cli import main
from limelight.models.tokens import Tokens

TEXT = "I saw it there."


@pytest.mark.parametrize(
    ("arguments", "words", "field"),
    [
        (["cause", TEXT, "--token", "it", "--controls", "2"], "What cutting one link", "forbid"),
        (
            ["why", TEXT, "--layer", "0", "--head", "2", "--query", "it", "--key", "1"],
            "all sources",
            "parts",
        ),
        (
            ["why", TEXT, "--layer", "3", "--head", "1", "--query", "it"],
            "Through which value directions",
            "directions",
        ),
        (["shift", "saw", TEXT, "The saw is old.", "--toward", "a=tool"], "saw", "similarity"),
        (["heads", "small"], "semantics", "roles"),
    ],
    ids=["cause", "why", "wrote", "shift", "heads"],
)
def test_a_command_prints_and_writes_its_result(
    arguments: list[str],
    words: str,
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments == ["heads", "small"]:
        torch.manual_seed(0)
        letters = " .,abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ;:?"
        config = ll.Config.bert(vocabulary=60, width=16, layers=1, heads=2, context=1024)
        model = ll.Encoder(config)
        model.tokens = Tokens.characters(letters)
        ll.save(model, "small")

    def run(*options: str) -> str:
        monkeypatch.setattr("sys.argv", ["limelight", *arguments, *options])
        with pytest.raises(SystemExit) as exit_info:
            main()
        printed = capsys.readouterr()
        assert exit_info.value.code in (None, 0), printed.err
        return printed.out

    out = run("--save", "result.json")
    assert words in out
    assert "Wrote result.json." in out
    saved = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert saved[field]
    if arguments[0] in ("why", "shift"):  # the others take longer
        assert json.loads(run("--json")) == saved


def test_wrong_arguments_are_refused_before_a_model_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limelight.insight.heads.heads", None)  # takes minutes
    for arguments, message in (
        (["heads", "minilm", "--ablate", "induction"], "taken out of a decoder"),
        (["heads", "smollm2", "--ablate", "inducton"], "role must be one of previous, next, self"),
        (["shift", "saw", TEXT, "--toward", "tools"], "--toward must be NAME=WORD,WORD"),
        (["cause", TEXT, "--token", "it", "--save", "/no/such/folder/x.png"], "/no/such/folder"),
    ):
        monkeypatch.setattr("sys.argv", ["limelight", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert exit_info.value.code not in (None, 0)
        assert message in capsys.readouterr().err
