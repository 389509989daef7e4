"""Attention in readable PyTorch: the specification, in float64 the ground truth.

Every step has its name and its tensor; nothing is fused, so memory is quadratic. Works on every
device and is differentiated by autograd. The steps take a region, so that the tiled form, which
takes some rows at a time, consists of the same formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops import dropout
from limelight.ops.backends.protocol import Extras
from limelight.ops.kernels import eager
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.lens.statistics import Collector, Tile, by_head, norms_of
from limelight.ops.masks.region import Region
from limelight.ops.problem import Problem, wide, widest

NAME = "reference"
REASON = "the dense PyTorch form serves every call"


def why_not(problem: Problem, extras: Extras) -> str | None:
    """None: the specification serves every call."""
    del problem, extras
    return None


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e` in the query's dtype, and what normalises the rows, `b h i`."""
    return attend_region(problem, whole(problem), None)


def attend_with_statistics(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """The same with the statistics of a fitted lens."""
    collector = Collector(lens, problem.extent)
    output, _ = attend_region(problem, whole(problem), collector)
    return output, collector.statistics()


def whole(problem: Problem) -> Region:
    """All of `b h i j`."""
    return Region.whole(problem.extent, problem.query.device)


def attend_region(
    problem: Problem, region: Region, collector: Collector | None
) -> tuple[Tensor, Tensor]:
    """The output and the normaliser of whole rows; a collector takes their statistics."""
    masked = scores(problem, region)
    weights, lse = normalise(problem, masked, region)
    value = wide(problem.value[region.batches, groups(problem, region)])
    if collector is not None:
        norms = None
        if collector.lens.value_top:
            norms = by_head(norms_of(value.detach()), weights.shape[1])
        rounded = lse.detach().to(masked.dtype)
        collector.add(Tile(region, masked.detach(), weights.detach(), rounded, norms))
    if problem.seed is not None:
        keep = dropout.keep(problem.seed, problem.dropout, problem.extent.h, region)
        weights = torch.where(keep, weights / (1 - problem.dropout), 0.0)
    output = weighted_sum(weights, value, allowed(problem, region))
    return output.to(problem.query.dtype), lse


def scores(problem: Problem, region: Region | None = None) -> Tensor:
    """The input of softmax: cap(scale · q_i·k_j) + bias_ij − slope·|p_i − j|, `b h r c`.

    −∞ where the mask forbids. Half-precision input is computed in float32, as in the kernels.
    """
    if region is None:
        region = whole(problem)
    query = wide(problem.query[region.batches, region.heads][:, :, region.row_index])
    key = problem.key[region.batches, groups(problem, region)]
    key = wide(key[:, :, region.key_index])
    mask = allowed(problem, region)
    scores = _similarity(query, key, mask) * problem.scale
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if problem.bias is not None:
        scores = scores + region.cut(problem.bias).to(scores.dtype)
    if problem.slopes is not None:
        slopes = problem.slopes[region.heads].to(scores.dtype)
        scores = scores - slopes[:, None, None] * region.behind.abs()
    return scores if mask is None else scores.masked_fill(~mask, float("-inf"))


def _similarity(query: Tensor, key: Tensor, allowed: Tensor | None) -> Tensor:
    """q_i·k_j, `b h r d`, `b g c d` → `b h r c`.

    Forbidden keys have no influence on the gradient either. Where some are infinite or NaN,
    forbidden products are 0, and no gradient reaches the query through such a key, where it would
    be 0 · NaN.
    """
    if allowed is None or key.is_meta or (eager(query, key) and bool(key.isfinite().all())):
        return _by_group(query, key.mT)
    finite = key.isfinite()
    with_gradient = _by_group(query, torch.where(finite, key, 0.0).mT)
    without_gradient = _by_group(query.detach(), key.mT)
    group = query.shape[1] // max(key.shape[1], 1)
    finite_keys = finite.all(-1).repeat_interleave(group, dim=1)[:, :, None]
    return torch.where(allowed, torch.where(finite_keys, with_gradient, without_gradient), 0.0)


def allowed(problem: Problem, region: Region | None = None) -> Tensor | None:
    """Which keys of the region each query may see, broadcastable to `b h r c`; None: all."""
    if problem.mask is None:
        return None
    return problem.mask.allowed(whole(problem) if region is None else region)


def normalise(
    problem: Problem, masked: Tensor, region: Region | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys, and what normalises it. `b h i j` → weights `b h i j`, lse `b h i`.

        m_i = max_j s_ij,  t_i = Σ_j factor_ij · exp(s_ij − m_i) + exp(sink − m_i)
        weights_ij = factor_ij · exp(s_ij − m_i) / t_i,  lse_i = m_i + log t_i

    or factor_ij · exp(s_ij − lse_i) where lse is given. In the type of large scores log t would be
    rounded away, so weights are divided by t, and lse is float64 where the device has it.

    A row that may attend to nothing has weights of zero and an lse of −∞, never NaN.
    """
    if region is None:
        region = whole(problem)
    if problem.lse is not None:
        lse = problem.lse[region.batches, region.heads][:, :, region.row_index]
        base = lse.masked_fill(lse == -torch.inf, torch.inf)  # no weight, and no gradient either
        return exponentials(problem, masked, base, region).to(masked.dtype), lse
    highest, sinks = row_max(masked.detach()), sinks_of(problem, region)
    if sinks is not None:
        sinks = sinks.to(masked.dtype)
        highest = torch.maximum(highest, sinks.detach())
    base = torch.where(highest.isinf(), 0.0, highest)
    parts = exponentials(problem, masked, base, region)
    total = parts.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks - base)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (widest(base) + widest(total).log()).masked_fill(empty, -torch.inf)
    return parts / total[..., None], lse


def exponentials(problem: Problem, masked: Tensor, base: Tensor, region: Region) -> Tensor:
    """factor_ij · exp(s_ij − base_i): `b h i j`, `b h i` → `b h i j`."""
    parts = torch.exp(masked - base[..., None])
    return parts if problem.factors is None else parts * region.cut(problem.factors).to(parts.dtype)


def row_max(masked: Tensor) -> Tensor:
    """The largest score of each row, −∞ where there is none: `b h i j` → `b h i`."""
    if not masked.shape[-1]:
        return masked.new_full(masked.shape[:-1], -torch.inf)
    return masked.amax(-1)


def sinks_of(problem: Problem, region: Region) -> Tensor | None:
    """The sinks of the region's heads: `h 1`."""
    return None if problem.sinks is None else problem.sinks[region.heads][:, None]


def weighted_sum(weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Σ_j w_ij·v_j over the allowed keys: `b h i j`, `b g j e` → `b h i e`.

    Forbidden keys have no influence, whatever their values: padding may hold infinity or NaN, where
    a plain product with weights of 0 would give NaN.
    """
    if allowed is None or value.is_meta:
        return _by_group(weights, value)
    if eager(weights, value) and bool(value.isfinite().all()):
        return _by_group(weights, value)
    allowed = allowed.expand_as(weights)

    def any_of(links: Tensor, values: Tensor) -> Tensor:
        """Whether one of a row's links leads to one of these values: bool `b h i e`."""
        return _by_group(links.to(value.dtype), values.to(value.dtype)) > 0

    finite = _by_group(weights, torch.where(value.isfinite(), value, 0.0))
    high, low = (any_of(weights > 0, value == sign * torch.inf) for sign in (1, -1))
    undefined = any_of(allowed, value.isnan()) | any_of(allowed & (weights == 0), value.isinf())
    infinite = torch.where(high, torch.inf, torch.where(low, -torch.inf, finite))
    return torch.where(undefined | finite.isnan() | (high & low), torch.nan, infinite)


def _by_group(left: Tensor, right: Tensor) -> Tensor:
    """`b h i c` times `b g c e`, the heads of a group as one tall matrix: nothing is copied."""
    b, h, i, c = left.shape
    tall = left.reshape(b, right.shape[1], h // max(right.shape[1], 1) * i, c) @ right
    return tall.view(b, h, i, right.shape[3])


def groups(problem: Problem, region: Region) -> slice:
    """The key/value heads that serve the region's query heads, which are whole groups."""
    group = max(problem.query.shape[1] // max(problem.key.shape[1], 1), 1)
    return slice(region.heads.start // group, region.heads.stop // group)
