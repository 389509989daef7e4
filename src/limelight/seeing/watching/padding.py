"""Rows of a padded batch without their padding."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_

from torch import Tensor

from limelight.ops.backends import tiled
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Links, Statistics
from limelight.ops.masks.band import Band
from limelight.ops.masks.combine import And
from limelight.ops.masks.dense import Dense
from limelight.ops.masks.mask import Mask
from limelight.ops.masks.padding import Padding
from limelight.ops.problem import Problem
from limelight.seeing.recording.join import Piece


def real_run(real: Tensor) -> range | None:
    """The tokens of a row of bools `n`, as a range; None unless they are contiguous.

    >>> import torch
    >>> real_run(torch.tensor([False, True, True]))
    range(1, 3)
    """
    indices = real.nonzero()[:, 0].tolist()
    run = range(indices[0], indices[-1] + 1) if indices else None
    return run if run is not None and len(run) == len(indices) else None


def without_padding(piece: Piece, rows: range, keys: range) -> Piece:
    """What was seen of some queries on a run of keys, in a batch of one; the others are padding.

    Padding attends to tokens too, so what keys receive is recomputed. Without the tensors of the
    call (`keep=False`) sums over queries are left out.
    """
    seen = piece.seen
    first = max(0, keys.start - piece.first_key)
    real = range(first, max(first, min(seen.extent.j, keys.stop - piece.first_key)))
    extent = seen.extent._replace(i=len(rows), j=len(real))
    first_key = max(piece.first_key - keys.start, 0)
    if isinstance(seen.source, Recomputed):
        problem = _part(seen.source.problem, rows, real)
        _, stats = tiled.attend_with_statistics(problem, seen.lens.fit(extent))
        source = Recomputed(problem)
        return Piece(replace(seen, extent=extent, statistics=stats, source=source), first_key)
    stats = seen.statistics

    def cut(part: Tensor | None) -> Tensor | None:
        return None if part is None else part[:, :, rows.start : rows.stop]

    def links(part: Links | None) -> Links | None:
        if part is None:
            return None
        weights, indices = (tensor[:, :, rows.start : rows.stop] for tensor in part)
        return Links(weights, (indices - real.start).clamp_min(-1))

    kept = Statistics(
        lse=stats.lse[:, :, rows.start : rows.stop],
        max_score=cut(stats.max_score),
        top=links(stats.top),
        entropy=cut(stats.entropy),
        distance=cut(stats.distance),
        columns=cut(stats.columns),
        band=cut(stats.band),
        value_top=links(stats.value_top),
    )
    return Piece(replace(seen, extent=extent, statistics=kept, source=None), first_key)


def _part(problem: Problem, rows: range, keys: range) -> Problem:
    bias, factors, lse = problem.bias, problem.factors, problem.lse
    return replace(
        problem,
        lse=None if lse is None else lse[:, :, rows.start : rows.stop],
        query=problem.query[:, :, rows.start : rows.stop],
        key=problem.key[:, :, keys.start : keys.stop],
        value=problem.value[:, :, keys.start : keys.stop],
        mask=_part_of_mask(problem, rows, keys),
        bias=None if bias is None else _part_of_table(bias, rows, keys),
        factors=None if factors is None else _part_of_table(factors, rows, keys),
    )


def _part_of_table(table: Tensor, rows: range, keys: range) -> Tensor:
    """Some rows and columns of a table that broadcasts to `b h i j`."""
    if table.ndim > 1 and table.shape[-2] > 1:
        table = table[..., rows.start : rows.stop, :]
    return table[..., keys.start : keys.stop] if table.shape[-1] > 1 else table


def _part_of_mask(problem: Problem, rows: range, keys: range) -> Mask | None:
    """The mask for these rows and keys, none of which are padding; kept as a rule if possible."""
    b, h, i, j = problem.extent
    rule = _without_padding(problem.mask)
    # A band is aligned to the last query and the last key: as many must be cut from both.
    aligned = i - rows.stop == j - keys.stop
    if rule is None or (aligned and isinstance(rule, Band) and rule.diagonal is None):
        return rule
    if isinstance(rule, Dense):
        return Dense(_part_of_table(rule.tensor, rows, keys))
    dense = rule.dense(i, j, b=b, h=h, device=problem.query.device)
    return Dense(_part_of_table(dense, rows, keys))


def _without_padding(mask: Mask | None) -> Mask | None:
    if isinstance(mask, Padding):
        return None
    if isinstance(mask, And):
        parts = [_without_padding(part) for part in mask.masks]
        kept = [part for part in parts if part is not None]
        return reduce(and_, kept) if kept else None
    return mask
