"""Attention in readable PyTorch: the specification, in float64 the last word.

Every step has its name and its tensor; nothing is fused, so memory is quadratic. Works on every
device and differentiates by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops import dropout
from limelight.ops.kernels import eager
from limelight.ops.masks.region import Region
from limelight.ops.problem import Problem


def scores(problem: Problem) -> Tensor:
    """What softmax takes: cap(scale · q·k) + bias, −∞ where the mask forbids. `b h i j`.

    Half-precision input is computed in float32, as the kernels do.
    """
    query, key = wide(problem.query), wide(problem.key)
    group = query.shape[1] // max(key.shape[1], 1)
    similarity = query @ key.repeat_interleave(group, dim=1).mT
    scaled = similarity * problem.scale
    if problem.softcap:
        scaled = problem.softcap * torch.tanh(scaled / problem.softcap)
    if problem.bias is not None:
        scaled = scaled + problem.bias.to(scaled.dtype)
    if problem.slopes is not None:
        slopes = problem.slopes.to(scaled.dtype)[:, None, None]
        scaled = scaled - slopes * _whole(problem).behind.abs()
    may = allowed(problem)
    return scaled if may is None else scaled.masked_fill(~may, float("-inf"))


def allowed(problem: Problem) -> Tensor | None:
    """Which keys each query may see, broadcastable to `b h i j`; None: all."""
    if problem.mask is None:
        return None
    return problem.mask.allowed(_whole(problem))


def normalise(masked: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the keys, and its log-sum-exp. `b h i j` → weights `b h i j`, lse `b h i`.

    A row that may attend to nothing has weights of zero and a log-sum-exp of −∞, never NaN.
    """
    # Neither the softmax of nothing but −∞ nor its gradient is a number, so empty rows stand aside.
    empty = (masked == float("-inf")).all(-1, keepdim=True)
    aside = masked.masked_fill(empty, 0.0)
    lse = torch.logsumexp(aside, dim=-1, keepdim=True)
    weights = torch.exp(aside - lse).masked_fill(empty, 0.0)
    return weights, lse.masked_fill(empty, float("-inf")).squeeze(-1)


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e` in the query's dtype, and the log-sum-exp `b h i` as computed."""
    weights, lse = normalise(scores(problem))
    if problem.seed is not None:
        kept = dropout.keep(problem.seed, problem.dropout, *problem.extent, weights.device)
        weights = torch.where(kept, weights / (1 - problem.dropout), 0.0)
    output = mix(weights, wide(problem.value), allowed(problem))
    return output.to(problem.query.dtype), lse


def mix(weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Σ_j w_ij·v_j over the allowed keys: `b h i j`, `b g j e` → `b h i e`.

    Forbidden keys have no influence, whatever their values: padding may hold infinity or NaN, where
    a plain product with weights of 0 would give NaN.
    """
    if allowed is None or (eager(weights, value) and bool(value.isfinite().all())):
        return _by_group(weights, value)
    allowed = allowed.expand_as(weights)

    def meets(chosen: Tensor, kind: Tensor) -> Tensor:
        return _by_group(chosen.to(value.dtype), kind.to(value.dtype)) > 0

    plain = _by_group(weights, torch.where(value.isfinite(), value, 0.0))
    high, low = (meets(weights > 0, value == sign * torch.inf) for sign in (1, -1))
    neither = meets(allowed, value.isnan()) | meets(allowed & (weights == 0), value.isinf())
    infinite = torch.where(high, torch.inf, torch.where(low, -torch.inf, plain))
    return torch.where(neither | plain.isnan() | (high & low), torch.nan, infinite)


def _by_group(weights: Tensor, value: Tensor) -> Tensor:
    """The product of both, the heads of a group as one tall matrix, so that no value is copied."""
    b, h, i, j = weights.shape
    tall = weights.reshape(b, value.shape[1], h // max(value.shape[1], 1) * i, j) @ value
    return tall.view(b, h, i, value.shape[3])


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the type that attention is computed in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _whole(problem: Problem) -> Region:
    return Region.whole(problem.extent, problem.query.device)
