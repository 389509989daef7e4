"""AdamW and its learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from limelight.ops.kernels import eager, kernels
from limelight.training.settings import OptimizerSettings


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> AdamW:
    """AdamW (Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101) over all parameters.

        m = β₁m + (1−β₁)g;  v = β₂v + (1−β₂)g²;  w ← w − lr · (m̂ / (√v̂ + ε) + decay · w)

    Weight decay applies to matrices only: gains and biases have no reason to be small.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=1e-8,
        fused=True,
    )


def learning_rate_at(step: int, steps: int, settings: OptimizerSettings) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, then cosine decay.

    >>> settings = OptimizerSettings(learning_rate=1.0, final_learning_rate=0.1, warmup_steps=10)
    >>> [round(learning_rate_at(step, 110, settings), 3) for step in (0, 9, 10, 60, 110)]
    [0.1, 1.0, 1.0, 0.55, 0.1]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    decay = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return settings.final_learning_rate + decay * (
        settings.learning_rate - settings.final_learning_rate
    )


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_step(optimizer: AdamW, clip_norm: float) -> None:
    """Clip the gradient to `clip_norm` (0: no clipping) and take a step.

    The kernel updates all weights in one call: for a small model, a call per tensor takes longer
    than the arithmetic. PyTorch updates what the kernel does not support, such as weights sharded
    over processes.
    """
    parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    updates = [(p, p.grad) for p in parameters if p.grad is not None]
    if not _kernel_supports(updates):
        if clip_norm:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        return
    assert kernels is not None
    scale = 1.0
    if clip_norm:
        norm = math.sqrt(kernels.sum_squares([gradient for _, gradient in updates]))
        scale = min(1.0, clip_norm / (norm + 1e-6))
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        kernels.adamw(
            [_next_state(optimizer, p) for p in group["params"] if p.grad is not None],
            group["lr"], beta1, beta2, group["eps"], group["weight_decay"], scale,
        )  # fmt: skip
    # PyTorch does not see what the kernel writes, and autograd has to know.
    torch.autograd.graph.increment_version([p for p, _ in updates])


def _kernel_supports(updates: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether the kernel can update these weights by these gradients."""
    tensors = [tensor for pair in updates for tensor in pair]
    return (
        kernels is not None
        and eager(*tensors)
        and all(
            tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()
            for tensor in tensors
        )
    )


def _next_state(optimizer: AdamW, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """A weight, its gradient, its first and second moment, and its step, now counted up."""
    state = optimizer.state[weight]
    if not state:  # in PyTorch's own layout
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    state["step"] += 1
    assert weight.grad is not None
    return weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], int(state["step"])
