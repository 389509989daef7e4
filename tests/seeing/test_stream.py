"""Streams with a lens: the text of `generate`, and the rows of a whole pass."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.errors import OptionError
from limelight.models.tokens import Tokens
from limelight.ops.calls import intercepted

LENS = ll.Lens(top=4, entropy=True, received=True)


def random_model(config: ll.Config) -> ll.Decoder | ll.Transformer:
    torch.manual_seed(1)
    model = ll.Decoder(config) if config.kind == "decoder" else ll.Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # far from uniform
    alphabet = Tokens.characters("abcdefghijklmnopqrstuvwxyz").tokenizer
    model.tokens = Tokens(alphabet, begin=1, end=(2,))
    return model.eval()


SMALL = {"vocabulary": 27, "width": 16, "layers": 2, "heads": 4}


@pytest.mark.parametrize(
    "config",
    [
        ll.Config.gpt2(**SMALL, context=32),
        ll.Config.llama(**SMALL, kv_heads=2),
        ll.Config.llama(**SMALL, window=3),
    ],
    ids=["gpt2", "llama", "window"],
)
def test_rows_equal_those_of_a_whole_pass(config: ll.Config) -> None:
    model = random_model(config)
    generated = ll.generate(model, "prompt", max_tokens=8, stop=["zzz"])
    pairs = list(ll.stream(model, "prompt", lens=LENS, max_tokens=8, stop=["zzz"]))
    assert "".join(piece for piece, _ in pairs) == generated.text
    assert len(pairs) == len(generated.ids) > 4
    assert model.tokens is not None
    prompt = model.tokens.encode("prompt").ids
    whole = ll.look([*prompt, *generated.ids], model, LENS)
    for number, (_, recording) in enumerate(pairs):
        row = len(prompt) - 1 + number
        assert len(recording.tokens) == row + 1
        for seen, expected in zip(recording.layers, whole.layers, strict=True):
            dense = expected.dense()[:, :, row : row + 1, : row + 1]
            torch.testing.assert_close(seen.dense(), dense)
            torch.testing.assert_close(seen.entropy, expected.entropy[:, :, row : row + 1])
            torch.testing.assert_close(seen.received, dense[:, :, 0])
            torch.testing.assert_close(seen.top.weights[:, :, 0], dense[:, :, 0].topk(4).values)
    assert recording.text == "prompt" + generated.text[: len(recording.text) - 6]
    assert recording.queries[0].text == model.tokens.piece(generated.ids[-1])


def test_a_transformer_looks_at_its_source() -> None:
    model = random_model(ll.Config.transformer2017(**SMALL, context=32))
    pairs = list(ll.stream(model, "source", lens=LENS, max_tokens=5))
    assert "".join(piece for piece, _ in pairs) == ll.generate(model, "source", max_tokens=5).text
    for _, recording in pairs:
        assert [token.text for token in recording.tokens] == list("source")
        assert recording.seen(1).shape == (1, 4, 1, 6)


def test_nothing_is_intercepted_between_tokens() -> None:
    model = random_model(ll.Config.llama(**SMALL))
    stream = ll.stream(model, "ab", lens=ll.Lens(top=1, keep=False), max_tokens=5)
    _, recording = next(stream)
    assert not intercepted()
    assert recording.seen(0).source is None
    with ll.cutting(model, [ll.Link(0, 0, 2, 0)]):  # the caller's own, between two tokens
        next(stream)
    next(stream)


def test_beams_cannot_be_streamed(untyped: None) -> None:
    model = random_model(ll.Config.llama(**SMALL))
    with pytest.raises(OptionError, match="Sampling"):
        ll.stream(model, "ab", lens=LENS, how=ll.Beam(2))  # pyright: ignore
    result = CliRunner().invoke(app, ["generate", "smollm2", "a", "--watch", "--beams", "2"])
    assert isinstance(result.exception, OptionError)


def test_paris_looks_at_france() -> None:
    options = ["generate", "smollm2", "The capital of France is", "--max-tokens", "2", "--watch"]
    result = CliRunner().invoke(app, options, catch_exceptions=False)
    assert result.stdout.startswith("The capital of France is Paris.\n")
    line = next(line for line in result.stdout.splitlines() if line.startswith("Paris"))
    assert "France 0." in line
    document = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert document["text"] == " Paris."
    assert document["ended"] == "length"
    assert [step["token"] for step in document["attended"]] == ["Paris", "."]
    link = document["attended"][0]["links"][0]
    assert 0.5 < link["weight"] <= 1
    assert link["key"] in range(1, 5)
