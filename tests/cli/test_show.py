"""`limelight show`, from the command line to the files it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from limelight.cli.app import app
from limelight.errors import LimelightError

SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def show(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["show", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_show_prints_a_link_and_writes_a_page(tmp_path: Path) -> None:
    output = show(SENTENCE).output
    assert output.startswith('Layer 3 head 1 ties "it" to "animal" (0.677).\n')
    assert " 10 it" in output
    lines = [" ".join(line.split()[:7]) for line in output.splitlines()]
    assert "layer 3 head 1 it → animal" in lines
    page = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert "Wrote attention.html" in output
    assert page.startswith("<!doctype html>")
    assert len(page) < 1_000_000
    assert max(len(line) for line in output.splitlines()) <= 80


def test_a_layer_and_head_can_be_named() -> None:
    output = show(SENTENCE, "--layer", "5", "--head", "11").output
    assert output.startswith('Layer 5 head 11 ties "')
    assert "Chosen by" not in output


def test_json_holds_the_exact_weights() -> None:
    result = json.loads(show(SENTENCE, "--json").output)
    link = result["link"]
    assert (link["layer"], link["head"], link["query_token"], link["key_token"]) == (
        3,
        1,
        "it",
        "animal",
    )
    weight = result["weights"][link["query"]][link["key"]]
    assert weight == pytest.approx(link["weight"], abs=1e-6)
    assert round(link["weight"], 3) == 0.677
    assert all(abs(sum(row) - 1) < 1e-5 for row in result["weights"])
    assert result["tokens"][link["key"]]["text"] == "animal"
    assert list(Path().iterdir()) == []


def test_text_comes_from_a_file_or_from_standard_input() -> None:
    Path("notes.txt").write_text(SENTENCE, encoding="utf-8")
    assert json.loads(show("--file", "notes.txt", "--json").output)["text"] == SENTENCE
    assert json.loads(show("-", "--json", stdin="from a pipe").output)["text"] == "from a pipe"


def test_the_heat_map_is_drawn() -> None:
    output = show(SENTENCE, "--png", "map.svg", "--html", "page.html").output
    assert "Wrote map.svg" in output
    assert Path("map.svg").read_bytes().startswith(b"<?xml")
    assert Path("page.html").is_file()
    assert not Path("attention.html").exists()


def test_a_long_text_is_read_in_windows_of_the_trained_length() -> None:
    story = " ".join(f"On day {k} the captain wrote a letter to her sister." for k in range(40))
    output = " ".join(show(story, "--csv", "links.csv").output.split())
    assert "tokens in 7 windows of up to 126: the model was trained on 128." in output
    for part in ("Layers: how spread out", "Tokens that receive most", "Repeats that are copied"):
        assert part in output
    rows = Path("links.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "layer,head,query,key,weight,query_token,key_token"
    assert len(rows) > 1000


@pytest.mark.parametrize("position", ["at the start", "at the end"])
def test_a_stride_ends_in_one_view_of_the_whole_text(position: str) -> None:
    """In a head that follows meaning the link is found wherever the sentence is."""
    filler = "one " * 260
    text = f"{SENTENCE} {filler}" if position == "at the start" else f"{filler}{SENTENCE}"
    options = ["--stride", "100", "--layer", "3", "--head", "1", "--json"]
    result = json.loads(show(text, *options).output)
    assert result["window"]["total"] == result["window"]["taken"] == 274
    assert len(result["tokens"]) == 274
    assert len(result["window"]["windows"]) == 3
    assert (result["link"]["query_token"], result["link"]["key_token"]) == ("it", "animal")
    link = result["link"]
    weight = result["weights"][link["query"]][link["key"]]
    assert weight == pytest.approx(link["weight"], abs=1e-5)


def test_a_repeated_word_is_named_with_its_occurrence() -> None:
    output = " ".join(show("The cat saw the unbelievableness of the other cat.").output.split())
    assert '"cat" (token 2, the 1st of 2) to "cat" (token 10, the 2nd of 2)' in output


def test_a_script_that_the_model_does_not_know_is_reported() -> None:
    assert "are unknown to this model" in show("𒀀𒀁 𒀂 𒀃 𒀄").output


def test_hostile_text_is_printed_as_text() -> None:
    text = (
        "\x1b[31m<script>alert(1)</script> [bold]שלום[/bold] \u202e 👩‍👩‍👧 e\u0301\u0323 "
        + "w" * 10_000
    )
    output = show(text).output
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert "wwwwwwwwwwwww…" in output
    page = Path("attention.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--layer", "9"], "layer must be one of those recorded .*found 9"),
        (["hello", "--head", "-1"], "head must be one of those recorded .*found -1"),
        (["hello", "--html", "page.txt"], r"--html must end in .*found 'page\.txt'"),
        (["hello", "--png", "none/map.png"], "there is no folder none"),
        (["hello", "--file", "a.txt"], "expected TEXT or --file, found both"),
        (["--file", "missing.txt"], "missing.txt: cannot be read: No such file"),
        (["  "], "text is empty"),
        (["hello", "--model", "nowhere"], "nowhere: no such file"),
        (["hello", "--stride", "0"], "stride must be 1 to 126"),
        (["hello", "--html", "x" * 300 + ".html"], "File name too long"),
        (["hello", "--model", "x" * 300], "cannot be read: File name too long|no such file"),
        (["--file", "x" * 300], "cannot be read: File name too long"),
        (["--file", "\x1b[31mred.txt"], "red.txt: cannot be read"),
        (["\udcff not text"], "TEXT is not UTF-8"),
    ],
)
def test_errors_are_reported_and_nothing_is_written(arguments: list[str], message: str) -> None:
    with pytest.raises(LimelightError, match=message):
        show(*arguments)
    assert list(Path().iterdir()) == []


def test_a_file_that_is_not_text_is_refused() -> None:
    Path("picture.bin").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(LimelightError, match=r"picture\.bin: not UTF-8 text"):
        show("--file", "picture.bin")


def test_a_text_without_links_is_shown() -> None:
    output = show("hello").output
    assert output.startswith("Layer 0 head 0: no link beyond neighbouring words.")
    assert "Chosen by" not in output


def test_json_has_no_link_if_none_was_chosen() -> None:
    result = json.loads(show("hello", "--json").output)
    assert (result["link"], result["rule"]) == (None, None)
    assert (result["layer"], result["head"]) == (0, 0)
    assert len(result["weights"]) == 3


def test_the_rule_names_the_heads_it_chose_among() -> None:
    assert "highest over all heads;" in " ".join(show(SENTENCE).output.split())
    output = show(SENTENCE, "--layer", "3").output
    assert "highest over the heads of layer 3;" in " ".join(output.split())
    result = json.loads(show(SENTENCE, "--head", "7", "--json").output)
    assert "highest over head 7 of all layers;" in result["rule"]


def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_loaded() -> None:
    Path("folder.html").mkdir()
    for path, reason in (("/proc/x.html", "cannot be written"), ("folder.html", "it is a folder")):
        with pytest.raises(LimelightError, match=reason):
            show(SENTENCE, "--html", path, "--model", "nowhere")


def in_ascii(*arguments: str) -> str:
    """What a command prints to a terminal limited to ASCII."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "limelight", *arguments]
    process = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert process.stderr == b""
    return process.stdout.decode("ascii")


def test_output_for_an_ascii_terminal() -> None:
    output = " ".join(in_ascii("show", "Naïve café owners → “pay” 日本 −1 × 2…").split())
    assert "at that offset) x log2(distance in words)" in output
    assert "cafe" in output
    worked = in_ascii("worked")
    assert "S = Q * K^T" in worked
    assert "S' = S / sqrt 2" in worked


@pytest.mark.parametrize("command", [[], ["show"], ["worked"], ["train"], ["translate"], ["embed"]])
def test_help_is_ascii(command: list[str]) -> None:
    assert "Usage" in in_ascii(*command, "--help")


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "limelight", "show", *arguments]
    return subprocess.run(command, capture_output=True, check=False, **options)


def test_closed_full_and_binary_pipes() -> None:
    command = f"{sys.executable} -m limelight show {{}} --html {{}}.html"
    quoted = f'"{SENTENCE}"'
    piped = subprocess.run(
        f"{command.format(quoted, 'piped')} | head -1", shell=True, capture_output=True, check=False
    )
    assert piped.stdout.startswith(b"Layer 3 head 1")
    assert piped.stderr == b""
    assert Path("piped.html").stat().st_size > 100_000
    full = subprocess.run(
        f"{command.format(quoted, 'full')} > /dev/full",
        shell=True,
        capture_output=True,
        check=False,
    )
    assert full.returncode != 0
    assert (
        full.stderr.decode()
        == "limelight: standard output cannot be written: No space left on device\n"
    )
    assert Path("full.html").is_file()
    closed = subprocess.run(
        f"{command.format('-', 'none')} <&-", shell=True, capture_output=True, check=False
    )
    assert closed.stderr == b"limelight: standard input is closed, expected text\n"
    binary = run("-", input=b"\xff\xfe")
    assert binary.stderr.startswith(b"limelight: standard input: not UTF-8 text")
    assert binary.returncode == closed.returncode == 2
