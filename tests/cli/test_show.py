"""`limelight show`, from the command line to the files it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from limelight.cli.app import app
from limelight.errors import LimelightError

SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def show(*words: str, given: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["show", *words], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_main_job(tmp_path: Path) -> None:
    said = show(SENTENCE).output
    assert said.startswith('Layer 3 head 1 ties "it" to "animal" (0.677).\n')
    assert " 10 it" in said
    lines = [" ".join(line.split()[:7]) for line in said.splitlines()]
    assert "layer 3 head 1 it → animal" in lines
    page = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert "Wrote attention.html" in said
    assert page.startswith("<!doctype html>")
    assert len(page) < 1_000_000
    assert max(len(line) for line in said.splitlines()) <= 80


def test_a_layer_and_head_can_be_named() -> None:
    said = show(SENTENCE, "--layer", "5", "--head", "11").output
    assert said.startswith('Layer 5 head 11 ties "')
    assert "Chosen by" not in said


def test_json_holds_the_exact_weights() -> None:
    found = json.loads(show(SENTENCE, "--json").output)
    link = found["link"]
    assert (link["layer"], link["head"], link["asks"], link["answers"]) == (3, 1, "it", "animal")
    assert found["weights"][link["query"]][link["key"]] == link["weight"]
    assert round(link["weight"], 3) == 0.677
    assert all(abs(sum(row) - 1) < 1e-5 for row in found["weights"])
    assert found["tokens"][link["key"]] == "animal"
    assert list(Path().iterdir()) == []


def test_text_comes_from_a_file_or_from_standard_input() -> None:
    Path("notes.txt").write_text(SENTENCE, encoding="utf-8")
    assert json.loads(show("--file", "notes.txt", "--json").output)["text"] == SENTENCE
    assert json.loads(show("-", "--json", given="from a pipe").output)["text"] == "from a pipe"


def test_the_heat_map_is_drawn_too() -> None:
    said = show(SENTENCE, "--png", "map.svg", "--html", "page.html").output
    assert "Wrote map.svg" in said
    assert Path("map.svg").read_bytes().startswith(b"<?xml")
    assert Path("page.html").is_file()
    assert not Path("attention.html").exists()


def test_a_long_text_is_cut_and_that_is_said() -> None:
    said = show("one two " * 300).output
    assert "The first 510 of 600 tokens" in said
    assert "--stride" in said


@pytest.mark.parametrize(
    ("text", "window"),
    [(f"{SENTENCE} {'one ' * 560}", (0, 510)), (f"{'one ' * 560}{SENTENCE}", (400, 574))],
    ids=["at the start", "at the end"],
)
def test_a_stride_finds_the_window_that_tells_most(text: str, window: tuple[int, int]) -> None:
    """In a head that follows sense only the window with the sentence has something to tell."""
    options = ["--stride", "400", "--layer", "3", "--head", "1", "--json"]
    found = json.loads(show(text, *options).output)
    first, last, total, windows = found["window"].values()
    assert (first, last) == window
    assert (total, windows) == (574, 2)
    assert len(found["tokens"]) == last - first + 2
    assert found["link"]["answers"] in SENTENCE


def test_hostile_text_is_printed_as_text() -> None:
    text = (
        "\x1b[31m<script>alert(1)</script> [bold]שלום[/bold] \u202e 👩‍👩‍👧 e\u0301\u0323 "
        + "w" * 10_000
    )
    said = show(text).output
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "wwwwwwwwwwwww…" in said
    page = Path("attention.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hello", "--layer", "9"], "layer must be one of those recorded .*found 9"),
        (["hello", "--head", "-1"], "head must be one of those recorded .*found -1"),
        (["hello", "--html", "page.txt"], r"--html must end in .*found 'page\.txt'"),
        (["hello", "--png", "none/map.png"], "there is no folder none"),
        (["hello", "--file", "a.txt"], "a TEXT or --file, found both"),
        (["--file", "missing.txt"], "missing.txt: cannot be read: No such file"),
        (["  "], "text is empty"),
        (["hello", "--model", "nowhere"], "nowhere: no such file"),
        (["hello", "--stride", "0"], "stride must be 1 to 510"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_written(words: list[str], said: str) -> None:
    with pytest.raises(LimelightError, match=said):
        show(*words)
    assert list(Path().iterdir()) == []


def test_a_file_that_is_not_text_is_refused() -> None:
    Path("picture.bin").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(LimelightError, match="it is not UTF-8 text"):
        show("--file", "picture.bin")


def test_one_word_has_no_links_and_is_shown_all_the_same() -> None:
    said = show("hello").output
    assert said.startswith("Layer 0 head 0: no link beyond neighbouring words.")
    assert "Chosen by" not in said


def test_where_no_link_was_chosen_json_names_none() -> None:
    found = json.loads(show("hello", "--json").output)
    assert (found["link"], found["rule"]) == (None, None)
    assert (found["layer"], found["head"]) == (0, 0)
    assert len(found["weights"]) == 3


def test_the_rule_names_the_heads_it_chose_among() -> None:
    assert "greatest over all heads;" in " ".join(show(SENTENCE).output.split())
    said = show(SENTENCE, "--layer", "3").output
    assert "greatest over the heads of layer 3;" in " ".join(said.split())
    found = json.loads(show(SENTENCE, "--head", "7", "--json").output)
    assert "greatest over head 7 of all layers;" in found["rule"]


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_said() -> None:
    Path("folder.html").mkdir()
    for path, reason in (("/proc/x.html", "cannot be written"), ("folder.html", "it is a folder")):
        with pytest.raises(LimelightError, match=reason):
            show(SENTENCE, "--html", path, "--model", "nowhere")


def in_ascii(*words: str) -> str:
    """What a command prints to a terminal that knows nothing but ASCII."""
    surroundings = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "limelight", *words]
    done = subprocess.run(command, env=surroundings, capture_output=True, check=False)
    assert done.stderr == b""
    return done.stdout.decode("ascii")


def test_an_ascii_terminal_is_enough() -> None:
    said = " ".join(in_ascii("show", "Naïve café owners → “pay” 日本 −1 × 2…").split())
    assert "at that offset) x log2(distance in words)" in said
    assert "cafe" in said
    worked = in_ascii("worked")
    assert "softmax(Q*K^T / sqrt d) * V" in worked


@pytest.mark.parametrize("command", [[], ["show"], ["worked"], ["train"], ["translate"], ["embed"]])
def test_help_is_ascii(command: list[str]) -> None:
    assert "Usage" in in_ascii(*command, "--help")
