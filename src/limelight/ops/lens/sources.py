"""Where a Seen takes weights from when it is asked for some: a call, dense weights, or parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.ops.backends.reference import normalise
from limelight.ops.lens.tiled import TILE, scores_at
from limelight.ops.masks.region import Region, part_of_table
from limelight.ops.problem import Problem


@runtime_checkable
class Source(Protocol):
    """Gives any part of the weights of one call."""

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        """The weights of some queries on a run of keys: `b h r c`; `lse` is `b h r`."""
        ...

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Source:
        """The same of some heads, or of one row of the batch."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Weights recomputed from query and key: exp(score_ij − lse_i).

    Each row is divided by the sum of its own scores as recomputed: the lse of another arithmetic
    would be off by the rounding of the scores, which grows with them.
    """

    problem: Problem

    @classmethod
    def keep(cls, problem: Problem) -> Call:
        """References to the call's tensors, without their gradients and without copies."""
        bias = problem.bias
        return cls(
            replace(
                problem,
                query=problem.query.detach(),
                key=problem.key.detach(),
                value=problem.value.detach(),
                bias=None if bias is None else bias.detach(),
            )
        )

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        with torch.no_grad():
            scores = self._scores(rows, columns)
            if len(columns) == self.problem.extent.j:
                weights, own = normalise(scores)
            else:
                own = self._log_sum(rows)
                weights = torch.exp(scores - own.masked_fill(own == -torch.inf, 0.0)[..., None])
            return weights * _share(own, lse)[..., None]

    def _scores(self, rows: Tensor, columns: range) -> Tensor:
        b, h, _, _ = extent = self.problem.extent
        keys = slice(columns.start, columns.stop)
        whole = slice(0, b), slice(0, h)
        region = Region.at(extent, *whole, rows, keys, rows.device)
        return scores_at(self.problem, region)

    def _log_sum(self, rows: Tensor) -> Tensor:
        """The log-sum-exp over all keys, some keys at a time: `b h r`."""
        b, h, _, j = self.problem.extent
        step = max(1, TILE // max(1, b * h * len(rows)))
        runs = (range(start, min(start + step, j)) for start in range(0, j, step))
        found = [torch.logsumexp(self._scores(rows, run), -1) for run in runs]
        return torch.stack(found).logsumexp(0)

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Call:
        problem = self.problem
        query, key, value, slopes = problem.query, problem.key, problem.value, problem.slopes
        if heads is not None:
            group = query.shape[1] // key.shape[1]
            owners = [head // group for head in heads]
            query, key, value = query[:, heads], key[:, owners], value[:, owners]
            slopes = None if slopes is None else slopes[heads]
        if row is not None:
            query, key, value = (one[row : row + 1] for one in (query, key, value))
        bias, mask = problem.bias, problem.mask
        return Call(
            replace(
                problem,
                query=query,
                key=key,
                value=value,
                slopes=slopes,
                bias=None if bias is None else part_of_table(bias, heads=heads, row=row),
                mask=None if mask is None else mask.part(heads=heads, row=row),
            )
        )


def _share(own: Tensor, lse: Tensor) -> Tensor:
    """How much of each row its keys draw: less than all where an attention sink is in `lse`.

    Both sums come from scores that were rounded in their own ways: what such rounding can make of
    them is no sink, and would show in weights that are exact otherwise.
    """
    rounding = 64 * torch.finfo(lse.dtype).eps * (1 + lse.abs())
    missing = (lse - own).nan_to_num(0.0, 0.0, 0.0)
    return torch.where(missing > rounding, torch.exp(-missing), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """The weights themselves: `b h i j`."""

    tensor: Tensor

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        return self.tensor[:, :, rows, columns.start : columns.stop]

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Dense:
        tensor = self.tensor if heads is None else self.tensor[:, heads]
        return Dense(tensor if row is None else tensor[row : row + 1])


class Part(NamedTuple):
    """One of the calls of `Parts`."""

    queries: int
    first_key: int
    """where its keys begin among the keys of all"""
    keys: int
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Calls one after the other, such as a prompt and the tokens generated after it.

    The queries of each part follow those of the part before; each sees a run of the same keys.
    """

    parts: tuple[Part, ...]

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        result = lse.new_zeros(*lse.shape, len(columns))
        first = 0
        for part in self.parts:
            here = ((rows >= first) & (rows < first + part.queries)).nonzero()[:, 0]
            start = max(columns.start, part.first_key)
            stop = max(start, min(columns.stop, part.first_key + part.keys))
            if len(here) and stop > start:
                own = range(start - part.first_key, stop - part.first_key)
                found = part.source.weights(rows[here] - first, own, lse[:, :, here])
                result[:, :, here, start - columns.start : stop - columns.start] = found
            first += part.queries
        return result

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Parts:
        return Parts(
            tuple(one._replace(source=one.source.part(heads=heads, row=row)) for one in self.parts)
        )
