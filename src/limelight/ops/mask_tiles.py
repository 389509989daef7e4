"""A mask asked for some rows and columns only, so that nothing n² is made.

`allowed_at(mask, place)` equals `mask.allowed(extent, device)` taken at those places. Each rule has
its own few lines; a mask of an unknown kind is asked whole and then cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from limelight.ops.mask import Both, Dense, Either, Extent, Mask
from limelight.ops.mask_rules import Anchors, Band, Blocks, Dilated, Documents, Padding


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Which part of `b h i j` is meant: runs of batch rows and heads, any queries and keys."""

    extent: Extent
    batches: slice
    heads: slice
    rows: Tensor
    """r, int64: query indices"""
    columns: range
    """c key indices, one after the other"""

    @property
    def keys(self) -> Tensor:
        """The key indices as a tensor: `c`."""
        return torch.arange(self.columns.start, self.columns.stop, device=self.rows.device)

    @property
    def behind(self) -> Tensor:
        """How far each key lies behind its query, p_i − j with p_i = i + J − I: `r c`."""
        positions = self.rows + (self.extent.j - self.extent.i)
        return positions[:, None] - self.keys

    def cut(self, table: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to `b h i j`; axes of size 1 stay so."""
        table = table[(None,) * (4 - table.ndim)]
        if table.shape[0] != 1:
            table = table[self.batches]
        if table.shape[1] != 1:
            table = table[:, self.heads]
        if table.shape[2] != 1:
            table = table[:, :, self.rows]
        return table if table.shape[3] == 1 else table[..., self.columns.start : self.columns.stop]


@singledispatch
def allowed_at(mask: Mask, place: Place) -> Tensor:
    """Which of the keys at `place` the queries there may see: broadcasts to `b h r c`."""
    return place.cut(mask.allowed(place.extent, place.rows.device))


@allowed_at.register
def _(mask: Band, place: Place) -> Tensor:
    behind = place.behind
    if mask.diagonal is not None:
        behind = behind - (place.extent.j - place.extent.i) + mask.diagonal
    return _between(behind, mask.left, mask.right)[None, None]


@allowed_at.register
def _(mask: Dilated, place: Place) -> Tensor:
    behind = place.behind
    left = None if mask.left is None else mask.left * mask.step
    right = None if mask.right is None else mask.right * mask.step
    return (_between(behind, left, right) & (behind % mask.step == 0))[None, None]


@allowed_at.register
def _(mask: Padding, place: Place) -> Tensor:
    keys = place.keys
    lengths = mask.lengths.to(keys.device)[place.batches, None]
    start = torch.zeros_like(lengths) if mask.side == "right" else place.extent.j - lengths
    inside = (keys >= start) & (keys < start + lengths)
    return inside[:, None, None, :]


@allowed_at.register
def _(mask: Anchors, place: Place) -> Tensor:
    tokens = torch.tensor(mask.tokens, dtype=torch.int64, device=place.rows.device)
    positions = place.rows + (place.extent.j - place.extent.i)
    return (torch.isin(positions, tokens)[:, None] | torch.isin(place.keys, tokens))[None, None]


@allowed_at.register
def _(mask: Blocks, place: Place) -> Tensor:
    layout = mask.layout.to(place.rows.device)
    if layout.shape[0] != 1:
        layout = layout[place.heads]
    rows, columns = place.rows // mask.size[0], place.keys // mask.size[1]
    return layout[:, rows[:, None], columns[None, :]][None]


@allowed_at.register
def _(mask: Dense, place: Place) -> Tensor:
    return place.cut(mask.tensor.to(place.rows.device))


@allowed_at.register
def _(mask: Documents, place: Place) -> Tensor:
    starts, key_starts = mask.bounds.to(place.rows.device)
    document = torch.searchsorted(starts, place.rows, right=True) - 1
    owner = torch.searchsorted(key_starts, place.keys, right=True) - 1
    result = (document[:, None] == owner)[None, None]
    if mask.inside is None:
        return result
    # Only the documents that these rows belong to need their inner mask asked.
    for t in document.unique().tolist():
        rows = (document == t).nonzero()[:, 0]
        first = int(key_starts[t])
        low = min(max(first, place.columns.start), place.columns.stop)
        high = max(low, min(first + mask.key_lengths[t], place.columns.stop))
        own = Place(
            place.extent._replace(i=mask.lengths[t], j=mask.key_lengths[t]),
            place.batches,
            place.heads,
            place.rows[rows] - starts[t],
            range(low - first, high - first),
        )
        inner = allowed_at(mask.inside, own)
        lead = torch.broadcast_shapes(result.shape[:2], inner.shape[:2])
        result = result.expand(*lead, -1, -1).clone()
        here = slice(low - place.columns.start, high - place.columns.start)
        result[:, :, rows, here] = inner
    return result


@allowed_at.register
def _(mask: Both, place: Place) -> Tensor:
    return allowed_at(mask.first, place) & allowed_at(mask.second, place)


@allowed_at.register
def _(mask: Either, place: Place) -> Tensor:
    return allowed_at(mask.first, place) | allowed_at(mask.second, place)


def _between(behind: Tensor, left: int | None, right: int | None) -> Tensor:
    inside = torch.ones_like(behind, dtype=torch.bool)
    if left is not None:
        inside &= behind <= left
    if right is not None:
        inside &= behind >= -right
    return inside
