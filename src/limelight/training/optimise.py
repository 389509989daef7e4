"""AdamW, and the rate it runs at."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW

from limelight.training.settings import OptimizerSettings


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> AdamW:
    """AdamW (Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101) over all parameters.

        m = β₁m + (1−β₁)g;  v = β₂v + (1−β₂)g²;  w ← w − rate · (m̂ / (√v̂ + ε) + decay · w)

    Only matrices decay: gains and biases have no reason to be small.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(
        groups, lr=settings.rate, betas=(settings.beta1, settings.beta2), eps=1e-8, fused=True
    )


def rate_at(step: int, steps: int, settings: OptimizerSettings) -> float:
    """The rate of a step, counted from 0.

    Rises in a line over the warm-up, then falls along half a cosine to the last rate.

    >>> settings = OptimizerSettings(rate=1.0, last_rate=0.1, warm_up=10)
    >>> [round(rate_at(step, 110, settings), 3) for step in (0, 9, 10, 60, 110)]
    [0.1, 1.0, 1.0, 0.55, 0.1]
    """
    if step < settings.warm_up:
        return settings.rate * (step + 1) / settings.warm_up
    way = (step - settings.warm_up) / max(1, steps - settings.warm_up)
    fall = 0.5 * (1 + math.cos(math.pi * min(way, 1.0)))
    return settings.last_rate + fall * (settings.rate - settings.last_rate)


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Run the next step at this rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip(model: nn.Module, most: float) -> None:
    """Scale the gradient down to norm `most` when it is larger; 0 leaves it."""
    if most:
        nn.utils.clip_grad_norm_(model.parameters(), most)
