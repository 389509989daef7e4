"""What a Seen takes weights from on demand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.ops.backends.reference import exponentials, normalise, scores, sinks_of
from limelight.ops.backends.tiled import TILE
from limelight.ops.masks.region import Region, part_of_table
from limelight.ops.problem import Problem, wide


@runtime_checkable
class Source(Protocol):
    """Gives any part of the weights of one call."""

    def weights(self, rows: Tensor, columns: range) -> Tensor:
        """The weights of some queries on a run of keys: `b h r c`."""
        ...

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Source:
        """The same of some heads, or of one row of the batch."""
        ...


def as_index(numbers: list[int]) -> slice | list[int]:
    """The numbers as an index: a slice, which copies nothing, where they are consecutive.

    >>> as_index([4, 5]), as_index([0, 0])
    (slice(4, 6, None), [0, 0])
    """
    first = numbers[0] if numbers else 0
    run = slice(first, first + len(numbers))
    return run if numbers == list(range(run.start, run.stop)) else numbers


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """Weights recomputed from query and key, by the formulas of the specification.

    Each row is normalised by its own recomputed scores: the log-sum-exp of a kernel, which rounds
    otherwise, would be off by the rounding of the scores, which grows with them.
    """

    problem: Problem

    @classmethod
    def keep(cls, problem: Problem) -> Recomputed:
        """References to the call's tensors, without their gradients and without copies."""
        tensors = {name: tensor.detach() for name, tensor in problem.tensors().items()}
        return cls(replace(problem, **tensors))

    def weights(self, rows: Tensor, columns: range) -> Tensor:
        with torch.no_grad():
            region = self._region(rows, columns)
            masked = scores(self.problem, region)
            if len(columns) == self.problem.extent.j or self.problem.lse is not None:
                return normalise(self.problem, masked, region)[0]
            highest, total = self._row_sums(rows)
            weights = exponentials(self.problem, masked, highest, region) / total[..., None]
            return weights.masked_fill((total == 0)[..., None], 0.0)

    def _region(self, rows: Tensor, columns: range) -> Region:
        b, h, _, _ = extent = self.problem.extent
        keys = slice(columns.start, columns.stop)
        return Region.at(extent, slice(0, b), slice(0, h), rows, keys, rows.device)

    def _row_sums(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The row max m (0 in a row without keys) and the sum of its exponentials: both `b h r`.

        The two are kept apart: in the log-sum-exp of large scores the sum would be lost.
        """
        b, h, _, j = self.problem.extent
        step = max(1, TILE // max(1, b * h * len(rows)))
        exact = wide(self.problem.query)
        highest = exact.new_full((b, h, len(rows)), -torch.inf)
        sinks = sinks_of(self.problem, self._region(rows, range(0)))
        if sinks is not None:
            highest = sinks.to(highest.dtype).expand_as(highest)
        total = (highest > -torch.inf).to(highest.dtype)
        for start in range(0, j, step):
            region = self._region(rows, range(start, min(start + step, j)))
            masked = scores(self.problem, region)
            before, highest = highest, torch.maximum(highest, masked.amax(-1))
            base = highest.masked_fill(highest == -torch.inf, 0.0)
            added = exponentials(self.problem, masked, base, region).sum(-1)
            total = total * torch.exp(before - base) + added
        return highest.masked_fill(highest == -torch.inf, 0.0), total

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Recomputed:
        problem = self.problem
        query, key, value = problem.query, problem.key, problem.value
        slopes, sinks, lse = problem.slopes, problem.sinks, problem.lse
        if heads is not None:
            group = query.shape[1] // key.shape[1]
            chosen, owners = as_index(heads), as_index([head // group for head in heads])
            query, key, value = query[:, chosen], key[:, owners], value[:, owners]
            slopes = None if slopes is None else slopes[heads]
            sinks = None if sinks is None else sinks[heads]
            lse = None if lse is None else lse[:, heads]
        if row is not None:
            query, key, value = (tensor[row : row + 1] for tensor in (query, key, value))
            lse = None if lse is None else lse[row : row + 1]
        bias, factors, mask = problem.bias, problem.factors, problem.mask
        return Recomputed(
            replace(
                problem,
                query=query,
                key=key,
                value=value,
                slopes=slopes,
                sinks=sinks,
                lse=lse,
                bias=None if bias is None else part_of_table(bias, heads=heads, row=row),
                factors=None if factors is None else part_of_table(factors, heads=heads, row=row),
                mask=None if mask is None else mask.part(heads=heads, row=row),
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class StoredWeights:
    """The weights themselves: `b h i j`."""

    tensor: Tensor

    def weights(self, rows: Tensor, columns: range) -> Tensor:
        return self.tensor[:, :, rows, columns.start : columns.stop]

    def part(self, heads: list[int] | None = None, row: int | None = None) -> StoredWeights:
        tensor = self.tensor if heads is None else self.tensor[:, as_index(heads)]
        return StoredWeights(tensor if row is None else tensor[row : row + 1])


class Segment(NamedTuple):
    """One of the calls of `Joined`."""

    queries: int
    first_key: int
    """where its keys begin among the keys of all"""
    keys: int
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Calls one after the other, such as a prompt and the tokens generated after it.

    The queries of each segment follow those of the one before; each sees a run of the same keys.
    """

    segments: tuple[Segment, ...]

    def weights(self, rows: Tensor, columns: range) -> Tensor:
        result: Tensor | None = None
        first = 0
        for segment in self.segments:
            here = ((rows >= first) & (rows < first + segment.queries)).nonzero()[:, 0]
            start = max(columns.start, segment.first_key)
            stop = max(start, min(columns.stop, segment.first_key + segment.keys))
            own = range(start - segment.first_key, stop - segment.first_key)
            if result is None or (len(here) and stop > start):
                weights = segment.source.weights(rows[here] - first, own)
                if result is None:
                    result = weights.new_zeros(*weights.shape[:2], len(rows), len(columns))
                result[:, :, here, start - columns.start : stop - columns.start] = weights
            first += segment.queries
        assert result is not None  # a joined call has segments
        return result

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Joined:
        segments = (
            segment._replace(source=segment.source.part(heads=heads, row=row))
            for segment in self.segments
        )
        return Joined(tuple(segments))
