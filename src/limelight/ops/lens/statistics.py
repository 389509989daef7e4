"""The statistics of a lens, from whole rows of weights: each is its plain formula."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics
from limelight.ops.masks.region import Extent, Region
from limelight.ops.problem import wide


def statistics_of_weights(weights: Tensor, lens: Lens, value: Tensor | None = None) -> Statistics:
    """The statistics of a lens, of dense weights `b h i j` computed elsewhere.

    Their scores are known only up to a constant in each row: log weights take their place, so the
    log-sum-exp is 0. `value` (`b g j e`) is needed for `value_top`.
    """
    extent = Extent(*weights.shape)
    if value is None and lens.value_top:
        raise OptionError(f"{lens} needs value for value_top, but no value was given")
    scores = weights.log()
    norms = None if value is None else by_head(norms_of(value), extent.h)
    collector = Collector(lens.fit(extent), extent)
    region = Region.whole(extent, weights.device)
    collector.add(Tile(region, scores, weights, torch.logsumexp(scores, -1), norms))
    return collector.statistics()


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Whole rows: everything about some queries and all keys. Nothing carries a gradient."""

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


class Collector:
    """Gathers the statistics of all tiles."""

    def __init__(self, lens: Lens, extent: Extent) -> None:
        self.lens, self.extent = lens, extent
        self.rows: dict[str, Tensor] = {}
        self.received: Tensor | None = None
        self.map = None if lens.map is None else _Pool(lens.map, extent)

    def add(self, tile: Tile) -> None:
        """Record the statistics of a tile."""
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

    def statistics(self) -> Statistics:
        """What was recorded of all tiles."""
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
        )


def _row_statistics(tile: Tile, lens: Lens) -> dict[str, Tensor]:
    """Each is `b h r`, or `b h r k` for links and columns."""
    weights, scores = tile.weights, tile.scores
    # There is no maximum of no keys; the log-sum-exp is −∞ there, as the maximum should be.
    statistics = {"lse": tile.lse, "max_score": scores.amax(-1) if scores.shape[-1] else tile.lse}
    if lens.top:
        statistics["top"], statistics["top_indices"] = _strongest(weights, lens.top)
    if lens.entropy:
        statistics["entropy"] = -torch.special.xlogy(weights, weights).sum(-1)
    if lens.distance or lens.band is not None:
        away = tile.region.behind.abs()
        if lens.distance:
            statistics["distance"] = (weights * away).sum(-1)
        if lens.band is not None:
            statistics["band"] = (weights * (away <= lens.band)).sum(-1)
    if lens.columns:
        statistics["columns"] = weights[..., list(lens.columns)]
    if lens.value_top:
        links = _strongest(tile.carried, lens.value_top)
        statistics["value_top"], statistics["value_indices"] = links
    return statistics


def _strongest(weights: Tensor, k: int) -> Links:
    """The k largest of each row; a key without weight is no link."""
    best, indices = weights.topk(min(k, weights.shape[-1]), dim=-1)
    padding = (0, k - best.shape[-1])
    indices = torch.nn.functional.pad(indices.masked_fill(best == 0, -1), padding, value=-1)
    return Links(torch.nn.functional.pad(best, padding), indices)


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
        sums = self.sum[region.batches, region.heads]
        sums.index_add_(-2, cell, (members * inside).sum(-1))
        maxima = self.max[region.batches, region.heads]
        # Padding repeats the last member of a cell, which does not change the maximum.
        row_maxima = members.amax(-1)
        maxima.scatter_reduce_(2, cell[:, None].expand_as(row_maxima), row_maxima, "amax")

    def pooled(self) -> Pooled:
        assert self.sum is not None
        assert self.max is not None
        heights = cell_sizes(self.extent.i, self.cells[0], self.sum.device)
        widths = cell_sizes(self.extent.j, self.cells[1], self.sum.device)
        return Pooled(self.sum / (heights[:, None] * widths).clamp_min(1), self.max)


def _cell_starts(size: int, cells: int, device: torch.device) -> Tensor:
    edges = torch.arange(cells + 1, device=device) * size
    return -(-edges // max(cells, 1))


def cell_sizes(size: int, cells: int, device: torch.device) -> Tensor:
    """How many of `size` rows or columns each cell holds: `cells`."""
    return _cell_starts(size, cells, device).diff()


def _cell_members(size: int, cells: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The members of each cell, padded by its last, and which are not padding: `cells width`."""
    starts = _cell_starts(size, cells, device)
    width = -(-size // max(cells, 1))
    members = starts[:-1, None] + torch.arange(width, device=device)
    return members.minimum(starts[1:, None] - 1), members < starts[1:, None]


def norms_of(value: Tensor) -> Tensor:
    """‖v_j‖: `b g j`."""
    return torch.linalg.vector_norm(wide(value), dim=-1)


def by_head(norms: Tensor, heads: int) -> Tensor:
    """`b g j` → `b h 1 j`."""
    return norms.repeat_interleave(heads // max(norms.shape[1], 1), dim=1)[:, :, None]
