"""How far back a gradient reaches, and agreement learned over distance: RNN, LSTM, attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.insight.studies.training import accuracy, seeded, train
from limelight.layers.attention import Attention
from limelight.layers.positions import sinusoidal
from limelight.rng import generator_for

WIDTH, FILLERS = 32, 6
BACK = (1, 2, 4, 8, 16, 32, 64, 127)
DISTANCES = (4, 12, 36, 72)
STEPS = 150


class _Recurrent(nn.Module):
    """A recurrent network over embedded tokens; gives the output of every token."""

    def __init__(self, kind: type[nn.RNN] | type[nn.LSTM]) -> None:
        super().__init__()
        self.cell = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class _Attending(nn.Module):
    """One attention layer over embedded tokens and their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(WIDTH, heads=4)

    def forward(self, x: Tensor) -> Tensor:
        positions = sinusoidal(torch.arange(x.shape[1]), WIDTH)
        return self.attention(x + positions)


class _Agreement(nn.Module):
    """Predicts from the last token's output whether the first token is singular or plural."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(FILLERS + 3, WIDTH), body
        self.classifier = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        return [self.classifier(self.body(self.embedding(tokens))[:, -1])]


def _body(kind: str, seed: int) -> nn.Module:
    seeded(seed, len(kind))
    if kind == "attention":
        return _Attending()
    return _Recurrent(nn.RNN if kind == "RNN" else nn.LSTM)


KINDS = ("RNN", "LSTM", "attention")


def run(seed: int = 0) -> Study:
    """Gradients before training, and accuracy after training at each distance."""
    gradients = {kind: _gradients(_body(kind, seed), seed) for kind in KINDS}
    accuracies = {
        kind: [_trained_accuracy(kind, distance, seed) for distance in DISTANCES] for kind in KINDS
    }
    relative = {kind: values[-1] / values[0] for kind, values in gradients.items()}
    return Study(
        name="reach",
        claim="in recurrent networks the signal of an early token decays with distance; in "
        "attention every token is one step away.",
        source="slides 'The RNN Problem', 'Global context'; The Architecture of Focus §1",
        measured="size of the gradient from the last output to the token t steps back, equal "
        f"width, and accuracy of subject–verb agreement over distance after {STEPS} steps",
        checks=(
            at_most("RNN: gradient 127 steps back / 1 step back", relative["RNN"], 1e-3),
            at_most("LSTM: gradient 127 steps back / 1 step back", relative["LSTM"], 1e-3),
            at_least(
                "attention: gradient 127 steps back / 1 step back", relative["attention"], 0.1
            ),
            at_least(
                f"attention: accuracy at distance {DISTANCES[-1]}",
                accuracies["attention"][-1],
                0.95,
            ),
            at_most(f"RNN: accuracy at distance {DISTANCES[-1]}", accuracies["RNN"][-1], 0.7),
        ),
        panels=(
            Panel(
                "gradient to the token t steps back",
                "t",
                "size",
                [Curve(kind, BACK, gradients[kind]) for kind in KINDS],
                True,
                True,
            ),
            Panel(
                "agreement over distance",
                "tokens between",
                "accuracy",
                [Curve(kind, DISTANCES, accuracies[kind]) for kind in KINDS],
            ),
        ),
        seed=seed,
        details={"gradients": gradients, "accuracy": accuracies},
    )


def _gradients(body: nn.Module, seed: int) -> list[float]:
    x = torch.randn(16, 128, WIDTH, generator=generator_for(seed, 9), requires_grad=True)
    body(x)[:, -1].norm(dim=-1).sum().backward()
    assert x.grad is not None
    norms = x.grad.norm(dim=-1).mean(0)
    return [max(float(norms[-1 - back]), 1e-30) for back in BACK]


def _trained_accuracy(kind: str, distance: int, seed: int) -> float:
    model = _Agreement(_body(kind, seed))

    def batch(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        subject = torch.randint(2, (size, 1), generator=rng)
        between = torch.randint(2, 2 + FILLERS, (size, distance), generator=rng)
        verb = torch.full((size, 1), FILLERS + 2)
        return torch.cat([subject, between, verb], 1), subject[:, 0]

    train(model, batch, steps=STEPS, seed=seed, size=32)
    return accuracy(model, batch, seed=seed, size=512)
