"""Where a Seen takes weights from when it is asked for some: a call, dense weights, or parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.ops.lens_tiled import scores_at
from limelight.ops.mask_tiles import Place, for_heads
from limelight.ops.problem import Problem


@runtime_checkable
class Source(Protocol):
    """Gives any part of the weights of one call."""

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        """The weights of some queries on a run of keys: `b h r c`; `lse` is `b h r`."""
        ...

    def heads(self, heads: list[int]) -> Source:
        """The same of some heads."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Weights recomputed from query, key and log-sum-exp: exp(score_ij − lse_i)."""

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
        b, h, _, _ = extent = self.problem.extent
        place = Place(extent, slice(0, b), slice(0, h), rows, columns)
        with torch.no_grad():
            empty = lse == float("-inf")
            base = torch.where(empty, 0.0, lse)[..., None]
            return torch.exp(scores_at(self.problem, place) - base)

    def heads(self, heads: list[int]) -> Call:
        problem = self.problem
        group = problem.query.shape[1] // problem.key.shape[1]
        owners = [head // group for head in heads]
        bias, slopes, mask = problem.bias, problem.slopes, problem.mask
        if bias is not None and bias.shape[1] != 1:
            bias = bias[:, heads]
        return Call(
            replace(
                problem,
                query=problem.query[:, heads],
                key=problem.key[:, owners],
                value=problem.value[:, owners],
                bias=bias,
                slopes=None if slopes is None else slopes[heads],
                mask=None if mask is None else for_heads(mask, heads),
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """The weights themselves: `b h i j`."""

    tensor: Tensor

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        return self.tensor[:, :, rows, columns.start : columns.stop]

    def heads(self, heads: list[int]) -> Dense:
        return Dense(self.tensor[:, heads])


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Calls one after the other, such as a prompt and the tokens generated after it.

    The queries of each part follow those of the part before; all see a prefix of the same keys.
    """

    parts: tuple[tuple[int, int, Source], ...]
    """queries, keys and source of each part"""

    def weights(self, rows: Tensor, columns: range, lse: Tensor) -> Tensor:
        result = lse.new_zeros(*lse.shape, len(columns))
        first = 0
        for queries, keys, source in self.parts:
            here = ((rows >= first) & (rows < first + queries)).nonzero()[:, 0]
            seen = range(min(columns.start, keys), min(columns.stop, keys))
            if len(here) and len(seen):
                own = source.weights(rows[here] - first, seen, lse[:, :, here])
                result[:, :, here, : len(seen)] = own
            first += queries
        return result

    def heads(self, heads: list[int]) -> Parts:
        return Parts(tuple((i, j, source.heads(heads)) for i, j, source in self.parts))
