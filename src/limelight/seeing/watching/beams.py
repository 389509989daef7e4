"""Beams: rows of a batch that continue other rows of the call before.

A line is the history of one row: which row it was in each call of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed, Source
from limelight.ops.lens.spec import Links, Pooled, Statistics
from limelight.seeing.recording.join import Piece


def origins(before: Piece, after: Piece) -> Tensor | None:
    """Which rows of `before` each row of `after` may continue; None where a row continues none.

    `b b`, true where the keys that both calls saw are the same numbers, as with a growing cache.
    Beam search gives a row the keys of another one, which several rows may share.
    """
    if before.seen.extent[:2] != after.seen.extent[:2]:
        return None
    earlier, later = before.seen.source, after.seen.source
    assert isinstance(earlier, Recomputed)
    assert isinstance(later, Recomputed)
    start = max(before.first_key, after.first_key)
    stop = min(before.last_key, after.last_key)
    if stop <= start:
        return None
    old = earlier.problem.key[:, :, start - before.first_key : stop - before.first_key]
    new = later.problem.key[:, :, start - after.first_key : stop - after.first_key]
    # Nearly all rows differ in the last key, which is compared first.
    last = old[:, :, -1]
    equal = torch.stack([(last == row).flatten(1).all(1) for row in new[:, :, -1]]).cpu()
    unchanged = torch.equal(old, new)
    for row, origin in equal.nonzero().tolist():
        same = row == origin and unchanged
        equal[row, origin] = same or torch.equal(new[row], old[origin])
    return equal if bool(equal.any(1).all()) else None


def rows_before(calls: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """The row of the call before that each row of a call continues, for each call but the first.

    `calls` holds the `origins` of every layer: a row has the keys of its origin in all of them.
    """
    before: list[list[int]] = []
    for layers in calls:
        common = torch.stack(list(layers)).all(0)
        rows = torch.arange(len(common))
        # All candidates left read the same text: the row itself if it is one, else the nearest.
        nearness = len(common) - (rows[:, None] - rows).abs()
        before.append((common * nearness).argmax(1).tolist())
    return before


def line_of(before: list[list[int]], row: int) -> list[int]:
    """The line that ends in a row of the call after these."""
    line = [row]
    for rows in reversed(before):
        line.append(rows[line[-1]])
    return line[::-1]


def in_place(lines: list[list[int]]) -> bool:
    """Whether every row keeps its place in the batch."""
    return all(set(line) == {row} for row, line in enumerate(lines))


def along(line: list[int], pieces: list[Piece]) -> list[Piece]:
    """The pieces of the calls on a line, each a batch of one."""
    return [
        piece._replace(seen=piece.seen.batch_row(row))
        for row, piece in zip(line, pieces[: len(line)], strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class BatchSource:
    """The rows of a batch, each with a source of its own."""

    sources: tuple[Source, ...]

    def weights(self, rows: Tensor, columns: range) -> Tensor:
        return torch.cat([source.weights(rows, columns) for source in self.sources])

    def part(self, heads: list[int] | None = None, row: int | None = None) -> Source:
        if row is not None:
            return self.sources[row].part(heads=heads)
        return BatchSource(tuple(source.part(heads=heads) for source in self.sources))


def batch_of(rows: Sequence[Seen]) -> Seen:
    """One batch of what was seen of single rows."""

    def stacked(parts: tuple[Any, ...]) -> Any:
        if parts[0] is None:
            return None
        if isinstance(parts[0], Links | Pooled):
            return type(parts[0])(*map(stacked, zip(*parts, strict=True)))
        return torch.cat(parts)

    statistics = Statistics(*map(stacked, zip(*(row.statistics for row in rows), strict=True)))
    sources = [row.source for row in rows if row.source is not None]
    source = BatchSource(tuple(sources)) if len(sources) == len(rows) else None
    return Seen(rows[0].extent._replace(b=len(rows)), rows[0].lens, statistics, source)
