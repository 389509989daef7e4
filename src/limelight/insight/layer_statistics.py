"""The statistics of each layer: those that a lens recorded, or from one sweep over the weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from limelight.errors import UnavailableError
from limelight.ops.lens.seen import Seen
from limelight.seeing.choice import LENS


class LayerStatistics(NamedTuple):
    """What a lens recorded of one layer; no weight in it is NaN."""

    weights: Tensor
    """h i k: each query's strongest links, strongest first"""
    keys: Tensor
    """h i k, −1 where there is none"""
    received: Tensor
    """h j"""
    entropy: Tensor
    """h i, in nats"""
    distance: Tensor
    """h i, in tokens"""


def layer_statistics(seen: Seen) -> LayerStatistics:
    """What the lens recorded, or where that is too little, the same from one sweep."""
    statistics = seen.statistics
    top, received, entropy, distance = (
        statistics.top,
        statistics.received,
        statistics.entropy,
        statistics.distance,
    )
    if top is None or received is None or entropy is None or distance is None:
        if seen.source is None:
            raise UnavailableError(
                f"a recording without weights must be made with {LENS!r} to be shown, "
                f"found {seen.lens!r}"
            )
        return _from_weights(seen)
    return LayerStatistics(
        finite(top.weights[0]),
        top.indices[0].cpu(),
        finite(received[0]),
        finite(entropy[0]),
        finite(distance[0]),
    )


def _from_weights(seen: Seen) -> LayerStatistics:
    """The same from the weights, some rows at a time."""
    _, h, i, j = seen.extent
    top: list[tuple[Tensor, Tensor]] = []
    received, entropy, distance = torch.zeros(h, j, dtype=torch.float64), [], []
    keys = torch.arange(j)
    for first, tile in seen.in_tiles():
        weights = finite(tile[0])
        values, indices = weights.topk(min(LENS.top, j))
        top.append((values, indices.where(values > 0, -1)))
        received += weights.sum(1)
        entropy.append(torch.special.entr(weights).sum(-1))
        rows = torch.arange(first, first + weights.shape[1]) + j - i
        distance.append((weights * (rows[:, None] - keys).abs()).sum(-1))
    weights, indices = (torch.cat(parts, 1) for parts in zip(*top, strict=True))
    return LayerStatistics(
        weights, indices, received.float(), torch.cat(entropy, 1), torch.cat(distance, 1)
    )


def finite(numbers: Tensor) -> Tensor:
    """On the CPU, in float32; 0 in place of NaN and infinity."""
    numbers = numbers.float().cpu()
    # a copy only where it is needed: of a long text these are hundreds of megabytes
    return numbers if bool(numbers.isfinite().all()) else numbers.nan_to_num(0.0, 0.0, 0.0)
