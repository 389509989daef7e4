"""Small models on small tasks, trained the same way in every study."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.layers.attention import Attention
from limelight.layers.positions import sinusoidal
from limelight.rng import generator_for

BatchSampler = Callable[[torch.Generator, int], tuple[Tensor, Tensor]]
"""Draws b inputs `b n` and their targets, `b` or `b t`."""


class SmallModel(nn.Module):
    """An embedding, one attention layer, and a linear classifier on the last token's output.

    Args:
        vocabulary: how many tokens there are.
        classes: for each target, how many classes.
        attention: the layer.
        positions: whether sinusoidal positions are added.
        pool: classify the mean of all tokens, with a residual connection and ReLU, instead.
        options: further arguments of the layer's call, given the number of tokens.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: tuple[int, ...],
        attention: Attention,
        *,
        positions: bool = True,
        pool: bool = False,
        options: Callable[[int], dict[str, object]] | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, attention.width)
        self.attention, self.positions, self.pool = attention, positions, pool
        self.options = options
        self.classifiers = nn.ModuleList(nn.Linear(attention.width, count) for count in classes)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        x = self.embedding(tokens)
        n = tokens.shape[1]
        if self.positions:
            x = x + sinusoidal(torch.arange(n), x.shape[-1])
        options = {} if self.options is None else self.options(n)
        y = self.attention(x, **options)  # pyright: ignore[reportArgumentType]
        features = torch.relu(x + y).mean(1) if self.pool else y[:, -1]
        return [classifier(features) for classifier in self.classifiers]


def seeded(seed: int, *numbers: int) -> None:
    """Seed torch's global generator, which initialises weights, from these numbers."""
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator_for(seed, *numbers))))


def train(model: nn.Module, batch: BatchSampler, *, steps: int, seed: int, size: int = 64,
          rate: float = 3e-3) -> None:  # fmt: skip
    """Train by Adam on fresh batches, with a learning rate that decays to 0."""
    rng = generator_for(seed, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        inputs, targets = batch(rng, size)
        optimiser.zero_grad()
        _loss(model(inputs), targets).backward()
        optimiser.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, batch: BatchSampler, *, seed: int, size: int = 1024) -> float:
    """The share of fresh inputs for which every target is predicted."""
    inputs, targets = batch(generator_for(seed, 2), size)
    right = torch.ones(size, dtype=torch.bool)
    for logits, target in zip(model(inputs), _columns(targets), strict=True):
        right &= logits.argmax(-1) == target
    return float(right.float().mean())


def parameters(module: nn.Module) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def _loss(outputs: list[Tensor], targets: Tensor) -> Tensor:
    pairs = zip(outputs, _columns(targets), strict=True)
    return torch.stack([F.cross_entropy(logits, target) for logits, target in pairs]).sum()


def _columns(targets: Tensor) -> list[Tensor]:
    return [targets] if targets.ndim == 1 else list(targets.unbind(1))
