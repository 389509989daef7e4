"""Attention in readable PyTorch: the specification, in float64 the last word.

Every step has its name and its tensor; nothing is fused, so memory is quadratic. Works on every
device and differentiates by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops import dropout
from limelight.ops.problem import Problem


def scores(problem: Problem) -> Tensor:
    """What softmax takes: cap(scale · q·k) + bias, −∞ where the mask forbids. `b h i j`.

    Half-precision input is computed in float32, as the kernels do.
    """
    query, key = _wide(problem.query), _wide(problem.key)
    group = query.shape[1] // max(key.shape[1], 1)
    similarity = query @ key.repeat_interleave(group, dim=1).mT
    scaled = similarity * problem.scale
    if problem.softcap:
        scaled = problem.softcap * torch.tanh(scaled / problem.softcap)
    if problem.bias is not None:
        scaled = scaled + problem.bias.to(scaled.dtype)
    if problem.slopes is not None:
        scaled = scaled - problem.slopes.to(scaled.dtype)[:, None, None] * _distance(problem)
    if problem.mask is not None:
        allowed = problem.mask.allowed(problem.extent, scaled.device)
        scaled = scaled.masked_fill(~allowed, float("-inf"))
    return scaled


def normalise(masked: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the keys, and its log-sum-exp. `b h i j` → weights `b h i j`, lse `b h i`.

    A row that may attend to nothing has weights of zero and a log-sum-exp of −∞, never NaN.
    """
    lse = torch.logsumexp(masked, dim=-1)
    empty = lse == float("-inf")
    # exp(s − lse) needs a finite lse in empty rows, for the value and for the gradient alike.
    weights = torch.exp(masked - torch.where(empty, 0.0, lse)[..., None])
    return weights, lse


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e` in the query's dtype, and the log-sum-exp `b h i` as computed."""
    weights, lse = normalise(scores(problem))
    if problem.dropout:
        kept = dropout.keep(problem.seed, problem.dropout, *problem.extent, weights.device)
        weights = torch.where(kept, weights / (1 - problem.dropout), 0.0)
    value = _wide(problem.value)
    group = weights.shape[1] // max(value.shape[1], 1)
    output = weights @ value.repeat_interleave(group, dim=1)
    return output.to(problem.query.dtype), lse


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _distance(problem: Problem) -> Tensor:
    _, _, i, j = problem.extent
    device = problem.query.device
    rows = torch.arange(i, device=device)[:, None] + (j - i)
    return (rows - torch.arange(j, device=device)).abs()
