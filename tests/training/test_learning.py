"""What is learned: text and pairs, end to end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_runs import settings
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.seeing.recording import Recording
from limelight.shapes import OptionError
from limelight.training.loop import train
from limelight.training.optimise import clip, make_optimizer
from limelight.training.settings import OptimizerSettings, Settings
from limelight.training.translate import load_translator, translate

WORDS = {"red": "rouge", "blue": "bleu", "cat": "chat", "dog": "chien", "big": "grand"}
FRAME = "le {} {} est ici"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned to translate two words and turn them round (BLEU asks for four words)."""
    place = tmp_path_factory.mktemp("pairs")
    pairs = [f"the {a} {b}\t{FRAME.format(WORDS[b], WORDS[a])}" for a in WORDS for b in WORDS]
    (place / "pairs.tsv").write_text("\n".join(pairs))
    table = {
        "folder": str(place / "run"),
        "steps": 150,
        "batch": 22,
        "evaluate_every": 150,
        "save_every": 150,
        "data": {"pairs": ["pairs.tsv"], "held_out": 0.1},
        "tokens": {"kind": "bpe", "size": 320},
        "model": {"preset": "transformer2017", "order": "pre", "layers": 1, "heads": 2,
                  "width": 32, "hidden": 64, "context": 16, "dropout": 0.0},
        "optimizer": {"rate": 5e-3, "warm_up": 10, "smoothing": 0.05},
    }  # fmt: skip
    outcome = train(Settings.from_table(table), beside=place)
    assert outcome.bleu is not None
    assert outcome.bleu.score > outcome.bleu.copying
    return place / "run"


def test_a_regular_text_is_learned(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 200)
    model = {"preset": "llama", "layers": 1, "heads": 2, "width": 32, "context": 16}
    for precision in ("float32", "bfloat16"):
        outcome = train(
            settings(tmp_path / precision, model=model, precision=precision, steps=50,
                     optimizer={"rate": 1e-2, "warm_up": 5}, save_every=50, evaluate_every=50),
            beside=tmp_path,
        )  # fmt: skip
        assert outcome.held_out.loss < 0.1 < math.log(8)
        assert outcome.held_out.perplexity == pytest.approx(math.exp(outcome.held_out.loss))
        model_back = ll.load(outcome.checkpoint)
        assert ll.generate(model_back, "abc", max_tokens=8).text == "defghabc"


def test_accumulating_changes_nothing_but_memory(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 50)
    model = {"preset": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 8}
    losses = [
        train(
            settings(tmp_path / f"{parts}", model=model, accumulate=parts, steps=10),
            beside=tmp_path,
        ).held_out.loss
        for parts in (1, 4)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_pairs_are_learned(translator: Path) -> None:
    pairs = [(f"the {a} {b}", FRAME.format(WORDS[b], WORDS[a])) for a in WORDS for b in WORDS]
    written = translate(load_translator(translator), [source for source, _ in pairs], rows=7)
    right = sum(found == target for found, (_, target) in zip(written, pairs, strict=True))
    assert right >= 22  # those learned from


def test_translating_from_the_command_line(translator: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    lines = translate(load_translator(translator), ["the blue cat", "the red dog"])
    page = tmp_path / "a.html"
    done = run(app, ["translate", str(translator), "the blue cat", "--save", str(page)])
    assert done.exit_code == 0, done.output
    assert done.output == f"{lines[0]}\n"
    assert page.stat().st_size > 10_000
    done = run(app, ["translate", str(translator)], input="the blue cat\n\nthe red dog\n")
    assert done.output.splitlines() == lines


def test_cross_attention_is_recorded(translator: Path, tmp_path: Path) -> None:
    model = load_translator(translator)
    recording = ll.look("blue cat", model, target="chat bleu")
    recording.save(tmp_path / "cross.safetensors")
    back = Recording.load(tmp_path / "cross.safetensors")
    weights = back.weights(0, 0)
    assert weights.shape == (len(back.queries), len(back.tokens))
    assert torch.allclose(weights.sum(-1), torch.ones(len(back.queries)), atol=1e-5)
    assert back.query_text == "chat bleu"


def test_only_an_encoder_decoder_translates(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 50)
    train(settings(tmp_path / "run", steps=1), beside=tmp_path)
    with pytest.raises(OptionError, match="holds a decoder, expected an encoder–decoder"):
        load_translator(tmp_path / "run")


def test_the_optimizer_is_adamw_with_clipping() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2).double()
    settings = OptimizerSettings(rate=0.1, beta1=0.9, beta2=0.99, weight_decay=0.5, clip=0.3)
    optimizer = make_optimizer(layer, settings)
    weights = {name: p.detach().clone() for name, p in layer.named_parameters()}
    means = {name: torch.zeros_like(p) for name, p in weights.items()}
    squares = {name: torch.zeros_like(p) for name, p in weights.items()}
    for t in range(1, 4):
        optimizer.zero_grad()
        layer(torch.randn(5, 3).double()).square().sum().backward()
        gradients = {name: p.grad.clone() for name, p in layer.named_parameters()}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        assert norm > settings.clip
        clip(layer, settings.clip)
        optimizer.step()
        for name, gradient in gradients.items():
            g = gradient * settings.clip / (norm + 1e-6)
            means[name] = 0.9 * means[name] + 0.1 * g
            squares[name] = 0.99 * squares[name] + 0.01 * g * g
            mean, square = means[name] / (1 - 0.9**t), squares[name] / (1 - 0.99**t)
            decay = 0.5 if weights[name].ndim > 1 else 0.0
            weights[name] = weights[name] * (1 - 0.1 * decay)
            weights[name] = weights[name] - 0.1 * mean / (square.sqrt() + 1e-8)
        for name, parameter in layer.named_parameters():
            assert torch.allclose(parameter, weights[name], atol=1e-9)
