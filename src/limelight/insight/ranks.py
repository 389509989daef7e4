"""How far two measures rank the same things alike, and how sure that is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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
    things: int
    """how many things were ranked"""

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


def correlation(
    names: tuple[str, str], first: Tensor, second: Tensor, *, seed: int = 0
) -> Correlation:
    """Spearman's ρ of two measures of the same things, with a bootstrap interval over them."""
    first, second = first.flatten(), second.flatten()
    count = len(first)
    draws = torch.randint(count, (DRAWS, count), generator=generator_for(seed, count))
    found = spearman(first[draws], second[draws])
    found = found[found.isfinite()]
    low, high = (
        found.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        if len(found)
        else (float("nan"), float("nan"))
    )
    return Correlation(*names, float(spearman(first, second)), low, high, count)
