"""Attention in readable PyTorch: the specification, in float64 the last word.

Every step has its name and its tensor; nothing is fused, so memory is quadratic. Works on every
device and differentiates by autograd. The steps take a region, so that the tiled form, which goes
over some rows at a time, is made of the same formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops import dropout
from limelight.ops.backends.protocol import Wanted
from limelight.ops.kernels import eager
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.lens.statistics import Collector, Tile, by_head, norms_of
from limelight.ops.masks.region import Region
from limelight.ops.problem import Problem, wide

NAME = "reference"
REASON = "the dense PyTorch form serves every call"


def why_not(problem: Problem, wanted: Wanted) -> str | None:
    """None: the specification serves every call."""
    del problem, wanted
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
    """The output and the normaliser of some rows, which see all keys; a lens may look on."""
    masked = scores(problem, region)
    weights, own = normalise(masked)
    total = own
    if not problem.rows_sum_to_one:
        share, total = problem.share(own, region)
        weights = weights * share[..., None]
    value = wide(problem.value[region.batches, groups(problem, region)])
    if collector is not None:
        norms = None
        if collector.lens.value_top or collector.lens.value_map:
            norms = by_head(norms_of(value.detach()), weights.shape[1])
        collector.add(Tile(region, masked.detach(), weights.detach(), total.detach(), norms))
    if problem.seed is not None:
        kept = dropout.keep(problem.seed, problem.dropout, problem.extent.h, region)
        weights = torch.where(kept, weights / (1 - problem.dropout), 0.0)
    output = mix(weights, value, allowed(problem, region))
    return output.to(problem.query.dtype), total


def scores(problem: Problem, region: Region | None = None) -> Tensor:
    """What softmax takes: cap(scale · q·k) + bias, −∞ where the mask forbids. `b h r c`.

    Half-precision input is computed in float32, as the kernels do.
    """
    if region is None:
        region = whole(problem)
    query = wide(problem.query[region.batches, region.heads][:, :, region.row_index])
    key = problem.key[region.batches, groups(problem, region)]
    key = wide(key[:, :, region.key_index])
    b, h, rows, d = query.shape
    g, columns = key.shape[1], key.shape[2]
    # The heads of a group as one tall matrix, so that grouped keys are not copied.
    similarity = query.reshape(b, g, h // max(g, 1) * rows, d) @ key.mT
    scaled = similarity.view(b, h, rows, columns) * problem.scale
    if problem.softcap:
        scaled = problem.softcap * torch.tanh(scaled / problem.softcap)
    if problem.bias is not None:
        scaled = scaled + region.cut(problem.bias).to(scaled.dtype)
    if problem.slopes is not None:
        slopes = problem.slopes[region.heads].to(scaled.dtype)
        scaled = scaled - slopes[:, None, None] * region.behind.abs()
    may = allowed(problem, region)
    return scaled if may is None else scaled.masked_fill(~may, float("-inf"))


def allowed(problem: Problem, region: Region | None = None) -> Tensor | None:
    """Which keys of the region each query may see, broadcastable to `b h r c`; None: all."""
    if problem.mask is None:
        return None
    return problem.mask.allowed(whole(problem) if region is None else region)


def normalise(masked: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the keys, and its log-sum-exp. `b h i j` → weights `b h i j`, lse `b h i`.

        weights_ij = exp(s_ij − max_j s_ij) / Σ_j exp(s_ij − max_j s_ij)

    Never exp(s − lse): among large numbers the logarithm of the sum is lost in their difference.
    A row that may attend to nothing has weights of zero and a log-sum-exp of −∞, never NaN.
    """
    # Neither the softmax of nothing but −∞ nor its gradient is a number, so empty rows stand aside.
    empty = (masked == float("-inf")).all(-1, keepdim=True)
    aside = masked.masked_fill(empty, 0.0)
    weights = torch.softmax(aside, dim=-1).masked_fill(empty, 0.0)
    lse = torch.logsumexp(aside, dim=-1)
    return weights, lse.masked_fill(empty.squeeze(-1), float("-inf"))


def mix(weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Σ_j w_ij·v_j over the allowed keys: `b h i j`, `b g j e` → `b h i e`.

    Forbidden keys have no influence, whatever their values: padding may hold infinity or NaN, where
    a plain product with weights of 0 would give NaN.
    """
    if allowed is None or value.is_meta:
        return _by_group(weights, value)
    if eager(weights, value) and bool(value.isfinite().all()):
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


def groups(problem: Problem, region: Region) -> slice:
    """The key/value heads that serve the region's query heads, which are whole groups."""
    group = max(problem.query.shape[1] // max(problem.key.shape[1], 1), 1)
    return slice(region.heads.start // group, region.heads.stop // group)
