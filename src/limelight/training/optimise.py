"""AdamW, and the rate it runs at."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from limelight.ops.kernels import eager, kernels
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


def optimizer_step(optimizer: AdamW, most: float) -> None:
    """Take a step, with the gradient scaled down to norm `most` when it is larger; 0 leaves it.

    The kernel goes over all weights at once: for a small model, calls for one tensor after another
    take longer than the arithmetic. What it cannot take, such as weights that are spread over
    processes, goes to PyTorch.
    """
    parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    learning = [(p, p.grad) for p in parameters if p.grad is not None]
    if not _served(learning):
        if most:
            nn.utils.clip_grad_norm_(parameters, most)
        optimizer.step()
        return
    assert kernels is not None
    scale = 1.0
    if most:
        norm = math.sqrt(kernels.sum_squares([gradient for _, gradient in learning]))
        scale = min(1.0, most / (norm + 1e-6))
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        kernels.adamw(
            [_learned(optimizer, p) for p in group["params"] if p.grad is not None],
            group["lr"], beta1, beta2, group["eps"], group["weight_decay"], scale,
        )  # fmt: skip
    # The kernel writes past torch, whose graphs must know.
    torch.autograd.graph.increment_version([p for p, _ in learning])


def _served(learning: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether the kernel takes a step of these weights and gradients."""
    tensors = [tensor for pair in learning for tensor in pair]
    return (
        kernels is not None
        and eager(*tensors)
        and all(
            tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()
            for tensor in tensors
        )
    )


def _learned(optimizer: AdamW, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """A weight, its gradient, the means of that and of its square, and the step it is at now."""
    state = optimizer.state[weight]
    if not state:  # as PyTorch keeps it
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    state["step"] += 1
    assert weight.grad is not None
    return weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], int(state["step"])
