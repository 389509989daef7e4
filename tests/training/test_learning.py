"""Training on text and on pairs, end to end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_runs import settings
from torch.optim import AdamW
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.errors import OptionError
from limelight.seeing.recording.recording import Recording
from limelight.training import optimise
from limelight.training.loop import train
from limelight.training.optimise import make_optimizer, optimizer_step
from limelight.training.settings import OptimizerSettings, Settings
from limelight.training.translate import load_translator, translate

WORDS = {"red": "rouge", "blue": "bleu", "cat": "chat", "dog": "chien", "big": "grand"}
FRAME = "le {} {} est ici"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that translates two words and swaps them (BLEU needs at least four words)."""
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [f"the {a} {b}\t{FRAME.format(WORDS[b], WORDS[a])}" for a in WORDS for b in WORDS]
    (folder / "pairs.tsv").write_text("\n".join(pairs))
    table = {
        "folder": str(folder / "run"),
        "steps": 150,
        "batch": 22,
        "evaluate_every": 150,
        "save_every": 150,
        "data": {"pairs": ["pairs.tsv"], "held_out": 0.1},
        "tokens": {"kind": "bpe", "size": 320},
        "model": {"preset": "transformer2017", "order": "pre", "layers": 1, "heads": 2,
                  "width": 32, "hidden": 64, "context": 16, "dropout": 0.0},
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 10, "label_smoothing": 0.05},
    }  # fmt: skip
    result = train(Settings.from_table(table), base=folder)
    assert result.bleu is not None
    assert result.bleu.score > result.bleu.copying
    return folder / "run"


def test_a_periodic_text_is_learned(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 200)
    model = {"preset": "llama", "layers": 1, "heads": 2, "width": 32, "context": 16}
    for precision in ("float32", "bfloat16"):
        result = train(
            settings(tmp_path / precision, model=model, precision=precision, steps=50,
                     optimizer={"learning_rate": 1e-2, "warmup_steps": 5},
                     save_every=50, evaluate_every=50),
            base=tmp_path,
        )  # fmt: skip
        assert result.held_out.loss < 0.1 < math.log(8)
        assert result.held_out.perplexity == pytest.approx(math.exp(result.held_out.loss))
        loaded = ll.load(result.checkpoint)
        assert ll.generate(loaded, "abc", max_tokens=8).text == "defghabc"


def test_accumulation_does_not_change_the_loss(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 50)
    model = {"preset": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 8}
    losses = [
        train(
            settings(tmp_path / f"{parts}", model=model, accumulate=parts, steps=10),
            base=tmp_path,
        ).held_out.loss
        for parts in (1, 4)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_pairs_are_learned(translator: Path) -> None:
    pairs = [(f"the {a} {b}", FRAME.format(WORDS[b], WORDS[a])) for a in WORDS for b in WORDS]
    translations = translate(load_translator(translator), [source for source, _ in pairs], rows=7)
    correct = sum(
        translation == target for translation, (_, target) in zip(translations, pairs, strict=True)
    )
    assert correct >= 22  # those trained on


def test_the_translate_command(translator: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    lines = translate(load_translator(translator), ["the blue cat", "the red dog"])
    page = tmp_path / "a.html"
    result = run(app, ["translate", str(translator), "the blue cat", "--save", str(page)])
    assert result.exit_code == 0, result.output
    assert result.output == f"{lines[0]}\n"
    assert page.stat().st_size > 10_000
    result = run(app, ["translate", str(translator)], input="the blue cat\n\nthe red dog\n")
    assert result.output.splitlines() == lines


def test_cross_attention_is_recorded(translator: Path, tmp_path: Path) -> None:
    model = load_translator(translator)
    recording = ll.look("blue cat", model, target="chat bleu")
    recording.save(tmp_path / "cross.safetensors")
    loaded = Recording.load(tmp_path / "cross.safetensors")
    weights = loaded.weights(0, 0)
    assert weights.shape == (len(loaded.queries), len(loaded.tokens))
    assert torch.allclose(weights.sum(-1), torch.ones(len(loaded.queries)), atol=1e-5)
    assert loaded.query_text == "chat bleu"


def test_only_an_encoder_decoder_translates(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 50)
    train(settings(tmp_path / "run", steps=1), base=tmp_path)
    with pytest.raises(OptionError, match="holds a decoder, expected an encoder–decoder"):
        load_translator(tmp_path / "run")


@pytest.mark.parametrize("clip_norm", [0.0, 0.3, 1e6])
@pytest.mark.parametrize("backend", ["kernel", "torch"])
def test_the_optimizer_is_adamw_with_clipping(
    backend: str, clip_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(131, 301)
    layer.unused = torch.nn.Linear(2, 2)
    kernels = optimise.kernels
    assert kernels is not None
    if backend == "torch":
        layer.double()  # which the kernel does not support
    else:
        monkeypatch.setattr(AdamW, "step", None)
    settings = OptimizerSettings(
        learning_rate=0.1, beta1=0.9, beta2=0.99, weight_decay=0.5, clip_norm=clip_norm
    )
    optimizer = make_optimizer(layer, settings)
    learned = {name: p for name, p in layer.named_parameters() if "unused" not in name}
    weights = {name: p.detach().double().clone() for name, p in learned.items()}
    means = {name: torch.zeros_like(p) for name, p in weights.items()}
    squares = {name: torch.zeros_like(p) for name, p in weights.items()}
    before = layer.unused.weight.clone()
    for t in range(1, 4):
        optimizer.zero_grad()
        x = torch.randn(5, 131, dtype=layer.weight.dtype)
        layer(x).square().sum().backward()
        gradients = {name: p.grad.double().clone() for name, p in learned.items()}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        assert 0.3 < norm < 1e6
        optimizer_step(optimizer, settings.clip_norm)
        for name, gradient in gradients.items():
            g = gradient * (0.3 / (norm + 1e-6) if clip_norm == 0.3 else 1.0)
            means[name] = 0.9 * means[name] + 0.1 * g
            squares[name] = 0.99 * squares[name] + 0.01 * g * g
            mean, square = means[name] / (1 - 0.9**t), squares[name] / (1 - 0.99**t)
            decay = 0.5 if weights[name].ndim > 1 else 0.0
            weights[name] = weights[name] * (1 - 0.1 * decay)
            weights[name] = weights[name] - 0.1 * mean / (square.sqrt() + 1e-8)
        for name, parameter in learned.items():
            tolerance = 1e-9 if backend == "torch" else 2e-6
            assert torch.allclose(parameter.double(), weights[name], atol=tolerance)
    assert torch.equal(layer.unused.weight, before)
    assert not optimizer.state[layer.unused.weight]


def test_a_step_is_the_same_with_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    results: list[list[torch.Tensor]] = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            layer = torch.nn.Linear(401, 333)
            optimizer = make_optimizer(layer, OptimizerSettings(clip_norm=0.01))
            for _ in range(2):
                for p in layer.parameters():
                    p.grad = torch.randn(p.shape)
                optimizer_step(optimizer, 0.01)
            results.append([p.detach() for p in layer.parameters()])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_graph_from_before_a_step_cannot_be_used_after_it() -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer = make_optimizer(layer, OptimizerSettings())
    old = layer(layer(torch.randn(2, 4))).sum()
    layer(torch.randn(2, 4)).sum().backward()
    optimizer_step(optimizer, 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()
