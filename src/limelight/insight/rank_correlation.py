"""Rank correlation of two measures, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.rng import generator_for

DRAWS = 1000
"""Resamples of a bootstrap."""


class Correlation(NamedTuple):
    """Spearman's rank correlation of two measures, with a bootstrap interval of 95%."""

    first: str
    second: str
    rho: float
    low: float
    high: float
    size: int
    """how many values were ranked"""

    def __str__(self) -> str:
        return f"{self.rho:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis from 0; equal values share their mean rank.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0, 2.0]))
    tensor([2.5000, 0.0000, 2.5000, 1.0000], dtype=torch.float64)
    """
    values = values.double().contiguous()
    ordered = values.sort(-1).values
    below = torch.searchsorted(ordered, values)
    upto = torch.searchsorted(ordered, values, right=True)
    return (below + upto - 1).double() / 2


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Rank correlation along the last axis; NaN where a measure is constant.

    >>> float(spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.1, 0.2, 0.3])))
    1.0
    """
    a, b = (each - each.mean(-1, keepdim=True) for each in (ranks(first), ranks(second)))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def correlations(measures: Mapping[str, Tensor], *, seed: int = 0) -> tuple[Correlation, ...]:
    """Spearman's ρ of every two measures of the same items, with bootstrap intervals over items.

    A resample is stored as the number of times that it drew each item. With a measure sorted once,
    its ranks in every resample are running sums of these counts, so no resample is sorted again.
    """
    flat = {name: values.flatten().double() for name, values in measures.items()}
    count = len(next(iter(flat.values())))
    draws = torch.randint(count, (DRAWS, count), generator=generator_for(seed, count))
    counts = torch.zeros(DRAWS, count, dtype=torch.float64)
    counts.scatter_add_(1, draws, torch.ones(1, dtype=torch.float64).expand_as(draws))
    centred = {name: _resampled_ranks(values, counts) for name, values in flat.items()}
    spread = {name: (counts * ranked.square()).sum(-1) for name, ranked in centred.items()}
    correlations: list[Correlation] = []
    for first, second in combinations(flat, 2):
        shared = (counts * centred[first] * centred[second]).sum(-1)
        rhos = shared / (spread[first] * spread[second]).sqrt()
        rhos = rhos[rhos.isfinite()]
        low, high = (
            rhos.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
            if len(rhos)
            else (float("nan"), float("nan"))
        )
        rho = float(spearman(flat[first], flat[second]))
        correlations.append(Correlation(first, second, rho, low, high, count))
    return tuple(correlations)


def _resampled_ranks(values: Tensor, counts: Tensor) -> Tensor:
    """The rank of each value in each resample, minus the mean rank: `draws n`."""
    ordered, order = values.sort()
    upto = counts[:, order].cumsum(-1)
    before = nn.functional.pad(upto, (1, 0))
    # equal values share their mean rank
    first = torch.searchsorted(ordered, values)
    last = torch.searchsorted(ordered, values, right=True)
    ranked = (before[:, first] + before[:, last] - 1) / 2
    return ranked - (counts.shape[1] - 1) / 2
