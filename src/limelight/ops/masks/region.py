"""Which queries and keys a rule is evaluated for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Extent(NamedTuple):
    """The sizes of a call: batch, query heads, queries, keys."""

    b: int
    h: int
    i: int
    j: int


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A part of `b h i j`: runs of batch rows and heads, any queries and keys.

    It holds all that a rule needs to know of each query and each key, so that they may belong to
    documents of different sizes.
    """

    batches: slice
    heads: slice
    rows: Tensor
    """r, int64: the queries' numbers, i"""
    positions: Tensor
    """r: the positions of the queries among the keys, p_i = i + J − I"""
    keys: Tensor
    """c, int64: the keys' numbers, j"""
    following: Tensor
    """c: how many keys come after each, J − 1 − j"""
    row_index: slice | Tensor
    """the rows as they index a tensor: a slice where they are a run, which copies nothing"""
    key_index: slice | Tensor

    @classmethod
    def at(
        cls,
        extent: Extent,
        batches: slice,
        heads: slice,
        rows: slice | Tensor,
        keys: slice,
        device: torch.device,
    ) -> Region:
        """These queries and this run of keys of a call of this extent; slices have both ends."""
        if isinstance(rows, Tensor):
            numbers = rows
        else:
            numbers = torch.arange(rows.start, rows.stop, device=device)
        columns = torch.arange(keys.start, keys.stop, device=device)
        positions, following = numbers + (extent.j - extent.i), extent.j - 1 - columns
        return cls(batches, heads, numbers, positions, columns, following, rows, keys)

    @classmethod
    def whole(cls, extent: Extent, device: torch.device) -> Region:
        """All of `b h i j`."""
        b, h, i, j = (slice(0, size) for size in extent)
        return cls.at(extent, b, h, i, j, device)

    @property
    def behind(self) -> Tensor:
        """How far each key is behind its query, p_i − j: `r c`."""
        return self.positions[:, None] - self.keys

    def cut(self, table: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to `b h i j`; axes of size 1 stay so."""
        table = table[(None,) * (4 - table.ndim)]
        for axis, index in enumerate((self.batches, self.heads, self.row_index, self.key_index)):
            if table.shape[axis] != 1:
                table = table[(slice(None),) * axis + (index,)]
        return table


def part_of_table(
    table: Tensor, *, heads: list[int] | None = None, row: int | None = None
) -> Tensor:
    """Some heads and one batch row of a tensor that broadcasts to `b h i j`.

    Axes of size 1 stay so.
    """
    if heads is not None and table.ndim >= 3 and table.shape[-3] != 1:
        table = table[..., heads, :, :]
    if row is not None and table.ndim == 4 and table.shape[0] != 1:
        table = table[row : row + 1]
    return table
