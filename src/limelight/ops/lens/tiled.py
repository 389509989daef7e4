"""The lens in PyTorch: whole rows of weights, a few at a time, on any device and in any precision.

A tile holds some queries against all keys, so each row's softmax is complete at once and every
statistic is its plain formula. Memory is a tile of about `TILE` weights, whatever the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.ops.backends.reference import mix, normalise, wide
from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics
from limelight.ops.masks.region import Extent, Region
from limelight.ops.problem import Problem

TILE = 1 << 21
"""Weights in a tile: 8 MB in float32, work enough to hide Python, little enough for any machine."""


def look(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """The output `b h i e` (without dropout), and what a fitted lens sees of the weights."""
    out = problem.query.new_empty(*problem.query.shape[:3], problem.value.shape[3])
    return out, _sweep(problem, lens, out)


def statistics(problem: Problem, lens: Lens, lse: Tensor | None = None) -> Statistics:
    """What the lens asks for, where the output comes from elsewhere.

    With `lse` (`b h i`) the weights are exp(score − lse): more than the rows' own log-sum-exp where
    something besides the keys draws weight (an attention sink).
    """
    return _sweep(problem, lens.fit(problem.extent), None, lse)


def statistics_of_weights(weights: Tensor, lens: Lens, value: Tensor | None = None) -> Statistics:
    """What the lens asks for, of dense weights `b h i j` that somebody else computed.

    Their scores are known only up to a constant in each row: log weights stand for them, so the
    log-sum-exp is 0. `value` (`b g j e`) is needed for the value-weighted forms.
    """
    extent = Extent(*weights.shape)
    if value is None and (lens.value_top or lens.value_map):
        raise OptionError(f"{lens} weighs by values, but no value was given")
    region = next(_regions(extent, 1, weights.numel(), weights.device))
    scores = weights.log()
    lse = torch.logsumexp(scores, -1)
    norms = None if value is None else _head_norms(_norms(value), extent.h)
    sheet = _Sheet(lens.fit(extent), extent)
    sheet.add(_Tile(region, scores, weights, lse, norms))
    return sheet.statistics()


def scores_at(problem: Problem, region: Region) -> Tensor:
    """What softmax takes, at some queries and keys only: `b h r c`. See `reference.scores`."""
    group = problem.query.shape[1] // max(problem.key.shape[1], 1)
    query = wide(problem.query[region.batches, region.heads][:, :, region.row_index])
    keys = problem.key[region.batches, _groups(region, group)]
    keys = wide(keys[:, :, region.key_index])
    b, h, r, d = query.shape
    # The heads of a group are stacked into one tall matrix, so that grouped keys are not copied.
    scores = query.reshape(b, keys.shape[1], group * r, d) @ keys.mT
    scores = scores.view(b, h, r, keys.shape[2]) * problem.scale
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if problem.bias is not None:
        scores = scores + region.cut(problem.bias).to(scores.dtype)
    if problem.slopes is not None:
        slopes = problem.slopes[region.heads].to(scores.dtype)
        scores = scores - slopes[:, None, None] * region.behind.abs()
    if problem.mask is not None:
        scores = scores.masked_fill(~problem.mask.allowed(region), float("-inf"))
    return scores


def _sweep(
    problem: Problem, lens: Lens, out: Tensor | None, given: Tensor | None = None
) -> Statistics:
    extent = problem.extent
    group = extent.h // max(problem.key.shape[1], 1)
    norms = _norms(problem.value) if lens.value_top or lens.value_map else None
    sheet = _Sheet(lens, extent)
    with torch.no_grad():
        for region in _regions(extent, max(group, 1), TILE, problem.query.device):
            scores = scores_at(problem, region)
            weights, lse = normalise(scores)
            if given is not None:
                lse = given[region.batches, region.heads, region.rows]
                weights = torch.exp(scores - lse[..., None])
            heads = _groups(region, group)
            if out is not None:
                may = None if problem.mask is None else problem.mask.allowed(region)
                mixed = mix(weights, wide(problem.value[region.batches, heads]), may)
                out[region.batches, region.heads, region.rows] = mixed.to(out.dtype)
            own = None
            if norms is not None:
                own = _head_norms(norms[region.batches, heads], weights.shape[1])
            sheet.add(_Tile(region, scores, weights, lse, own))
    return sheet.statistics()


@dataclass(frozen=True, slots=True, eq=False)
class _Tile:
    """Whole rows: everything about some queries and all keys."""

    region: Region
    scores: Tensor
    weights: Tensor
    lse: Tensor
    norms: Tensor | None
    """b h 1 j: the length of each value"""

    @property
    def carried(self) -> Tensor:
        """‖weight · value‖: `b h r j`."""
        assert self.norms is not None
        return self.weights * self.norms


class _Sheet:
    """Collects the statistics of all tiles."""

    def __init__(self, lens: Lens, extent: Extent) -> None:
        self.lens, self.extent = lens, extent
        self.rows: dict[str, Tensor] = {}
        self.received: Tensor | None = None
        self.map = None if lens.map is None else _Pool(lens.map, extent)
        self.value_map = None if lens.value_map is None else _Pool(lens.value_map, extent)

    def add(self, tile: _Tile) -> None:
        region = tile.region
        for name, part in _row_statistics(tile, self.lens).items():
            if name not in self.rows:
                self.rows[name] = part.new_empty(*self.extent[:3], *part.shape[3:])
            self.rows[name][region.batches, region.heads, region.rows] = part
        if self.lens.received:
            if self.received is None:
                b, h, _, j = self.extent
                self.received = tile.weights.new_zeros(b, h, j)
            self.received[region.batches, region.heads] += tile.weights.sum(-2)
        if self.map is not None:
            self.map.add(region, tile.weights)
        if self.value_map is not None:
            self.value_map.add(region, tile.carried)

    def statistics(self) -> Statistics:
        rows, lens = self.rows, self.lens
        return Statistics(
            lse=rows["lse"],
            max_score=rows["max_score"],
            top=Links(rows["top"], rows["top_indices"]) if lens.top else None,
            entropy=rows.get("entropy"),
            distance=rows.get("distance"),
            columns=rows.get("columns"),
            band=rows.get("band"),
            received=self.received,
            map=None if self.map is None else self.map.pooled(),
            value_top=Links(rows["value_top"], rows["value_indices"]) if lens.value_top else None,
            value_map=None if self.value_map is None else self.value_map.pooled(),
        )


def _row_statistics(tile: _Tile, lens: Lens) -> dict[str, Tensor]:
    """Each is `b h r`, or `b h r k` for links and columns."""
    weights, scores = tile.weights, tile.scores
    # There is no greatest of no keys; the log-sum-exp is −∞ there, as the maximum should be.
    found = {"lse": tile.lse, "max_score": scores.amax(-1) if scores.shape[-1] else tile.lse}
    if lens.top:
        found["top"], found["top_indices"] = _strongest(weights, lens.top)
    if lens.entropy:
        # Σ w·(lse − s) is lse − E[s] without the cancellation; where w is 0, s may be −∞.
        surprise = tile.lse[..., None] - scores
        found["entropy"] = torch.where(weights > 0, weights * surprise, 0.0).sum(-1)
    if lens.distance or lens.band is not None:
        away = tile.region.behind.abs()
        if lens.distance:
            found["distance"] = (weights * away).sum(-1)
        if lens.band is not None:
            found["band"] = (weights * (away <= lens.band)).sum(-1)
    if lens.columns:
        found["columns"] = weights[..., list(lens.columns)]
    if lens.value_top:
        found["value_top"], found["value_indices"] = _strongest(tile.carried, lens.value_top)
    return found


def _strongest(weights: Tensor, k: int) -> Links:
    """The k greatest of each row; a region without weight is no link."""
    best, indices = weights.topk(min(k, weights.shape[-1]), dim=-1)
    missing = (0, k - best.shape[-1])
    indices = torch.nn.functional.pad(indices.masked_fill(best == 0, -1), missing, value=-1)
    return Links(torch.nn.functional.pad(best, missing), indices)


class _Pool:
    """Mean and maximum over disjoint cells; row i lies in cell ⌊i·R/I⌋, columns alike."""

    def __init__(self, cells: tuple[int, int], extent: Extent) -> None:
        self.cells, self.extent = cells, extent
        self.sum: Tensor | None = None
        self.max: Tensor | None = None

    def add(self, region: Region, weights: Tensor) -> None:
        if self.sum is None or self.max is None:
            self.sum = weights.new_zeros(*self.extent[:2], *self.cells)
            self.max = torch.zeros_like(self.sum)
        if not weights.numel():
            return
        gather, inside = _cell_members(self.extent.j, self.cells[1], weights.device)
        members = weights[..., gather]
        cell = region.rows * self.cells[0] // max(self.extent.i, 1)
        run = self.sum[region.batches, region.heads]
        run.index_add_(-2, cell, (members * inside).sum(-1))
        peak = self.max[region.batches, region.heads]
        # A cell's spare places repeat its last member, which leaves the maximum as it is.
        highest = members.amax(-1)
        peak.scatter_reduce_(2, cell[:, None].expand_as(highest), highest, "amax")

    def pooled(self) -> Pooled:
        assert self.sum is not None
        assert self.max is not None
        heights = _cell_sizes(self.extent.i, self.cells[0], self.sum.device)
        widths = _cell_sizes(self.extent.j, self.cells[1], self.sum.device)
        return Pooled(self.sum / (heights[:, None] * widths).clamp_min(1), self.max)


def _cell_starts(size: int, cells: int, device: torch.device) -> Tensor:
    edges = torch.arange(cells + 1, device=device) * size
    return -(-edges // max(cells, 1))


def _cell_sizes(size: int, cells: int, device: torch.device) -> Tensor:
    return _cell_starts(size, cells, device).diff()


def _cell_members(size: int, cells: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which places each cell holds, and which of those are not repeated: both `cells width`."""
    starts = _cell_starts(size, cells, device)
    width = -(-size // max(cells, 1))
    members = starts[:-1, None] + torch.arange(width, device=device)
    return members.minimum(starts[1:, None] - 1), members < starts[1:, None]


def _regions(extent: Extent, group: int, budget: int, device: torch.device) -> Iterator[Region]:
    """Tiles of whole rows that cover all, each of about `budget` weights; at least one."""
    b, h, i, j = extent
    rows = _share(budget, group * j, i)
    groups = _share(budget, group * j * rows, h // group)
    batches = _share(budget, group * j * rows * groups, b)
    for batch in _runs(b, batches):
        for heads in _runs(h, groups * group):
            for run in _runs(i, rows):
                yield Region.at(extent, batch, heads, run, slice(0, j), device)


def _share(budget: int, each: int, most: int) -> int:
    return max(1, min(most, budget // max(each, 1)))


def _runs(total: int, size: int) -> Iterator[slice]:
    for start in range(0, max(total, 1), size):
        yield slice(start, min(start + size, total))


def _groups(region: Region, group: int) -> slice:
    """The key/value heads that serve a run of query heads, which holds whole groups."""
    return slice(region.heads.start // max(group, 1), region.heads.stop // max(group, 1))


def _norms(value: Tensor) -> Tensor:
    """‖v_j‖: `b g j`."""
    return torch.linalg.vector_norm(wide(value), dim=-1)


def _head_norms(norms: Tensor, heads: int) -> Tensor:
    """`b g j` → `b h 1 j`."""
    return norms.repeat_interleave(heads // max(norms.shape[1], 1), dim=1)[:, :, None]
