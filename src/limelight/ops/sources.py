"""Where a Seen takes weights from when it is asked for some: a call, dense weights, or parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.ops.lens_tiled import scores_at
from limelight.ops.mask_parts import part_of, part_of_table
from limelight.ops.mask_tiles import Place
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
                mask=None if mask is None else part_of(mask, heads=heads, row=row),
            )
        )


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
