"""Calls joined into one: a prompt and its generated tokens, or the windows of a long text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.errors import ShapeError, UnavailableError
from limelight.ops.calls import AttentionCall
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Joined, Recomputed, Segment
from limelight.ops.lens.spec import Lens, Links, Statistics
from limelight.ops.problem import Problem


class Piece(NamedTuple):
    """What was seen of one call, and the position of its first key in the text."""

    seen: Seen
    first_key: int

    @property
    def last_key(self) -> int:
        """One past its last key."""
        return self.first_key + self.seen.extent.j


def join(pieces: Sequence[Piece]) -> Seen:
    """One `Seen` whose queries are those of all pieces, in order, over the keys of all.

    Statistics of queries are concatenated, what keys receive is added up. Pooled maps of different
    calls cover different cells and cannot be joined: they are left out.
    """
    if len(pieces) == 1 and pieces[0].first_key == 0:
        return pieces[0].seen
    b, h, _, _ = pieces[0].seen.extent
    for piece in pieces:
        if piece.seen.extent[:2] != (b, h):
            raise ShapeError(
                f"pieces must all be of b = {b}, h = {h}, found {tuple(piece.seen.extent)}"
            )
    keys = max(piece.last_key for piece in pieces)
    by_piece = [piece.seen.statistics for piece in pieces]

    def rows(field: Callable[[Statistics], Tensor | None]) -> Tensor | None:
        tensors = [tensor for stats in by_piece if (tensor := field(stats)) is not None]
        return torch.cat(tensors, dim=2) if len(tensors) == len(by_piece) else None

    lse = rows(lambda stats: stats.lse)
    assert lse is not None
    statistics = Statistics(
        lse=lse,
        max_score=rows(lambda stats: stats.max_score),
        top=_join_links([stats.top for stats in by_piece], pieces),
        entropy=rows(lambda stats: stats.entropy),
        distance=rows(lambda stats: stats.distance),
        columns=rows(lambda stats: stats.columns),
        band=rows(lambda stats: stats.band),
        received=_join_received(pieces, keys),
        value_top=_join_links([stats.value_top for stats in by_piece], pieces),
    )
    extent = pieces[0].seen.extent._replace(i=lse.shape[2], j=keys)
    lens = replace(pieces[0].seen.lens, map=None)
    return Seen(extent, lens, statistics, _join_sources(pieces))


def _join_links(links: list[Links | None], pieces: Sequence[Piece]) -> Links | None:
    weights: list[Tensor] = []
    indices: list[Tensor] = []
    for strongest, piece in zip(links, pieces, strict=True):
        if strongest is None:
            return None
        weights.append(strongest.weights)
        indices.append(torch.where(strongest.indices < 0, -1, strongest.indices + piece.first_key))
    return Links(torch.cat(weights, dim=2), torch.cat(indices, dim=2))


def _join_received(pieces: Sequence[Piece], keys: int) -> Tensor | None:
    total: Tensor | None = None
    for seen, first in pieces:
        received = seen.statistics.received
        if received is None:
            return None
        if total is None:
            total = received.new_zeros(*received.shape[:2], keys)
        total[..., first : first + received.shape[2]] += received
    return total


def _join_sources(pieces: Sequence[Piece]) -> Joined | None:
    segments: list[Segment] = []
    for seen, first in pieces:
        if seen.source is None:
            return None
        segments.append(Segment(seen.extent.i, first, seen.extent.j, seen.source))
    return Joined(tuple(segments))


def cut_out(seen: Seen, rows: range, keys: range) -> Seen:
    """What was seen of some queries and a run of keys, with their exact weights.

    Rows sum to less than 1 where the keys left out (a window's own [CLS] and [SEP]) had weight.
    A mask is a rule over positions from the end: with one, queries and keys must be the last ones.
    """
    source = seen.source
    if not isinstance(source, Recomputed):
        raise UnavailableError("only a call that keeps its queries and keys can be cut")
    problem, (_, _, i, j) = source.problem, seen.extent
    if not (problem.slopes is problem.bias is problem.factors is None):
        raise UnavailableError("a call with a bias cannot be cut: it is a table of all positions")
    if problem.mask is not None and (rows.stop, keys.stop) != (i, j):
        raise UnavailableError(f"queries {rows} and keys {keys} do not end where the call ends")
    queries, columns = slice(rows.start, rows.stop), slice(keys.start, keys.stop)
    # The log-sum-exp of the call includes the keys that are left out, and its sinks.
    lse, sinks = (problem.lse, problem.sinks) if len(keys) == j else (seen.lse, None)
    part = replace(
        problem,
        query=problem.query[:, :, queries],
        key=problem.key[:, :, columns],
        value=problem.value[:, :, columns],
        lse=None if lse is None else lse[:, :, queries],
        sinks=sinks,
    )
    old, lse = seen.statistics, seen.lse[:, :, queries].clone()

    def cut(tensor: Tensor | None) -> Tensor | None:
        # a copy: a view would keep all queries alive
        return None if tensor is None else tensor[:, :, queries].clone()

    statistics = Statistics(
        lse=lse,
        max_score=cut(old.max_score),
        top=None if old.top is None else _cut_links(old.top, queries, keys),
        entropy=cut(old.entropy),
        distance=cut(old.distance),
        received=None if old.received is None else _received(part, lse if len(keys) < j else None),
    )
    extent = seen.extent._replace(i=len(rows), j=len(keys))
    return Seen(extent, seen.lens, statistics, Recomputed(part))


def _cut_links(links: Links, queries: slice, keys: range) -> Links:
    """A link to a key that was left out keeps its weight and has no key: −1."""
    indices = links.indices[:, :, queries]
    outside = (indices < keys.start) | (indices >= keys.stop)
    weights = links.weights[:, :, queries].clone()
    return Links(weights, (indices - keys.start).masked_fill(outside, -1))


def _received(problem: Problem, lse: Tensor | None) -> Tensor:
    """What the keys receive from these queries alone, by the kernel: `b h j`."""
    call = AttentionCall(
        problem.query,
        problem.key,
        problem.value,
        mask=problem.mask,
        scale=problem.scale,
        softcap=problem.softcap or None,
        lse=lse,
    )
    with torch.no_grad():
        return call.attend(lens=Lens(received=True, keep=False))[1].received


def without_keys(before: Piece, after: Piece) -> Piece:
    """`before` without its keys and values, where `after` holds them all; `with_keys` undoes it.

    Every row of `after` must continue the same row of `before`. A cache that grows by copying makes
    new keys at each token; keeping all of them would take memory quadratic in the tokens.
    """
    covered = before.first_key >= after.first_key and before.last_key <= after.last_key
    source = before.seen.source
    if (
        not covered
        or not isinstance(source, Recomputed)
        or not isinstance(after.seen.source, Recomputed)
    ):
        return before
    empty = source.problem.key.new_empty(0)
    return _with_source(before, key=empty, value=empty)


def with_keys(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with the keys and values that `without_keys` removed, as views of later pieces'."""
    restored = list(pieces)
    for index in range(len(restored) - 2, -1, -1):
        before, after = restored[index].seen.source, restored[index + 1].seen.source
        if (
            isinstance(before, Recomputed)
            and isinstance(after, Recomputed)
            and before.problem.key.ndim == 1
        ):
            start = restored[index].first_key - restored[index + 1].first_key
            run = slice(start, start + restored[index].seen.extent.j)
            key, value = after.problem.key[:, :, run], after.problem.value[:, :, run]
            restored[index] = _with_source(restored[index], key=key, value=value)
    return restored


def _with_source(piece: Piece, *, key: Tensor, value: Tensor) -> Piece:
    assert isinstance(piece.seen.source, Recomputed)
    problem = replace(piece.seen.source.problem, key=key, value=value)
    return piece._replace(seen=replace(piece.seen, source=Recomputed(problem)))


def own_keys(piece: Piece) -> Piece:
    """The piece with its own copy of keys and values that a cache may overwrite.

    A static cache writes each token into one buffer, a sliding one over the oldest. A write in
    place raises a tensor's version; inference tensors have none and are copied to be safe.
    """
    source = piece.seen.source
    if not isinstance(source, Recomputed):
        return piece
    key, value = source.problem.key, source.problem.value
    if not key.is_inference() and not value.is_inference() and not key._version + value._version:
        return piece
    return _with_source(piece, key=key.clone(), value=value.clone())


def without_source(piece: Piece) -> Piece:
    """The piece as a lens with `keep=False` gives it: its statistics, and nothing to recompute."""
    lens = replace(piece.seen.lens, keep=False)
    return piece._replace(seen=replace(piece.seen, lens=lens, source=None))
