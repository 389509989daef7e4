"""`limelight generate` and `limelight embed`, run from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.errors import FileError, OptionError
from limelight.models.tokens import Tokens

PROMPT = "The capital of France is"


def run(*arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_streams_the_text() -> None:
    assert run("generate", "smollm2", PROMPT, "--max-tokens", "4") == f"{PROMPT} Paris.\n\n\n"


def test_generate_prints_json() -> None:
    result = json.loads(
        run("generate", "smollm2", PROMPT, "--max-tokens", "6", "--stop", ".", "--json")
    )
    assert result["prompt"] == PROMPT
    assert result["text"] == " Paris"
    assert result["ended"] == "stop"
    assert len(result["ids"]) == 2


def test_generate_options_reach_the_model(tmp_path: Path) -> None:
    model = ll.Decoder(ll.Config.gpt2(vocabulary=27, width=16, layers=1, heads=2, context=64))
    model.tokens = Tokens.characters("abcdefghijklmnopqrstuvwxyz")
    ll.save(model, tmp_path)
    model.eval()
    how = ll.Sampling(1.3, 9, 0.9, 1.2)
    expected = ll.generate(model, "abc", max_tokens=20, how=how, seed=5)
    options = "--max-tokens 20 --temperature 1.3 --top-k 9 --top-p 0.9 --repetition-penalty 1.2"
    assert run("generate", str(tmp_path), "abc", *options.split(), "--seed", "5") == (
        f"abc{expected.text}\n"
    )
    beam = ll.generate(model, "abc", max_tokens=9, how=ll.Beam(3))
    assert run("generate", str(tmp_path), "abc", "--max-tokens", "9", "--beams", "3") == (
        f"abc{beam.text}\n"
    )


def test_generate_refuses_wrong_options_and_encoders(untyped: None) -> None:
    with pytest.raises(OptionError, match="temperature must be at least 0"):
        run("generate", "smollm2", PROMPT, "--temperature", "-1")
    with pytest.raises(OptionError, match="'minilm' is an encoder"):
        run("generate", "minilm", PROMPT)


def test_beams_refuse_sampling_options(untyped: None) -> None:
    options = ["--beams", "4", "--temperature", "0.8", "--top-k", "5", "--seed", "1"]
    message = "--beams 4 samples nothing: leave out --temperature, --top-k, --seed"
    with pytest.raises(OptionError, match=message):
        run("generate", "smollm2", PROMPT, *options)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-tokens", "-1", "max_tokens must be a whole number of at least 0, found -1"),
        ("--stop", "", "stop must be a list of strings that are not empty"),
    ],
)
@pytest.mark.parametrize("beams", ["1", "2"])
def test_generate_prints_nothing_before_it_refuses(
    tmp_path: Path, option: str, value: str, message: str, beams: str
) -> None:
    ll.save(letter_model(ll.Config.gpt2), tmp_path)
    options = [option, value, "--beams", beams]
    result = CliRunner().invoke(app, ["generate", str(tmp_path), "abc", *options])
    assert isinstance(result.exception, OptionError)
    assert message in str(result.exception)
    assert result.stdout == ""


def letter_model(preset: Any) -> Any:
    """A small random model whose tokens are letters."""
    config = preset(vocabulary=27, width=16, layers=1, heads=2, context=16)
    model = ll.Decoder(config) if config.kind == "decoder" else ll.Transformer(config)
    alphabet = Tokens.characters("abcdefghijklmnopqrstuvwxyz").tokenizer
    model.tokens = Tokens(alphabet, begin=1, end=(2,))
    return model.eval()


def test_a_prompt_that_does_not_fit_is_not_printed(tmp_path: Path) -> None:
    ll.save(letter_model(ll.Config.gpt2), tmp_path)
    result = CliRunner().invoke(app, ["generate", str(tmp_path), "a" * 17])
    assert isinstance(result.exception, OptionError)
    assert result.stdout == ""


def test_generate_takes_the_folder_of_a_run(tmp_path: Path) -> None:
    model = letter_model(ll.Config.gpt2)
    ll.save(model, tmp_path / "run" / "step-00000500")
    expected = ll.generate(model, "abc", max_tokens=5).text
    assert run("generate", str(tmp_path / "run"), "abc", "--max-tokens", "5") == f"abc{expected}\n"


@pytest.mark.parametrize("beams", ["1", "2"])
def test_an_encoder_decoder_prints_the_target_alone(tmp_path: Path, beams: str) -> None:
    model = letter_model(ll.Config.transformer2017)
    ll.save(model, tmp_path)
    how = ll.Beam(2) if beams == "2" else None
    expected = ll.generate(model, "abc", max_tokens=5, how=how).text
    options = ["--max-tokens", "5", "--beams", beams]
    assert run("generate", str(tmp_path), "abc", *options) == f"{expected}\n"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("x.foo", FileError, "must end in .* found 'x.foo'"),
        ("none/x.html", FileError, "none/x.html: cannot be written"),
    ],
)
def test_translate_refuses_before_it_translates(
    tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    ll.save(letter_model(ll.Config.transformer2017), tmp_path)
    options = ["abc", "--save", str(tmp_path / name)]
    result = CliRunner().invoke(app, ["translate", str(tmp_path), *options])
    assert isinstance(result.exception, error)
    assert re.search(message, str(result.exception))
    assert result.stdout == ""


def test_the_version_is_printed() -> None:
    assert run("--version") == f"limelight {ll.__version__}\n"


def test_errors_are_one_line() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "limelight", "generate", "no/such/model", "x"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert process.stderr.startswith("limelight: no/such/model: no such file or folder")
    assert process.stderr.count("\n") == 1


def test_embed_writes_npy_and_parquet(tmp_path: Path) -> None:
    lines = ["A cat sat.", "", "Stocks fell, said the bank's chairman."]
    source = tmp_path / "lines.txt"
    source.write_text("\n".join(lines) + "\n")
    expected = ll.load("minilm").embed(lines).numpy()
    assert run("embed", str(source)) == f"{tmp_path / 'lines.npy'}: 3 × 384\n"
    assert np.array_equal(np.load(tmp_path / "lines.npy"), expected)
    target = tmp_path / "table.parquet"
    run("embed", "-", "--output", str(target), stdin="\n".join(lines))
    table = pq.read_table(target)
    assert table["text"].to_pylist() == lines
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lines.npy", "lines.txt", "table.parquet",
    ]  # fmt: skip


def test_embed_refuses_bad_input_and_output(tmp_path: Path) -> None:
    source = tmp_path / "lines.txt"
    with pytest.raises(FileError, match=r"lines\.txt: cannot be read: No such file"):
        run("embed", str(source))
    source.write_text("")
    with pytest.raises(FileError, match=r"lines\.txt: holds no text"):
        run("embed", str(source))
    source.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"lines\.txt: not UTF-8"):
        run("embed", str(source))
    source.write_text("text")
    with pytest.raises(OptionError, match=r"must end in \.npy or \.parquet, found 'x\.csv'"):
        run("embed", str(source), "-o", "x.csv")
    with pytest.raises(FileError, match=r"none/x\.npy: cannot be written"):
        run("embed", str(source), "-o", str(tmp_path / "none" / "x.npy"))
    with pytest.raises(OptionError, match="--output must be given"):
        run("embed", "-", stdin="text")
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]
