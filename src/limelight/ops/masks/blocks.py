"""Block sparsity: `blocks(layout, size)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from limelight.checks import check_table, shape_text
from limelight.errors import OptionError, ShapeError
from limelight.ops.masks.counts import count
from limelight.ops.masks.drawing import table_text
from limelight.ops.masks.mask import Lowered, Mask, StoredMask
from limelight.ops.masks.region import Extent, Region


def blocks(layout: Tensor | Sequence[Sequence[bool]], size: int | tuple[int, int]) -> Mask:
    """Block-sparse: query i sees key j where `layout[..., i // size, j // size]` is True.

    `layout` is `rows columns`, or `h rows columns` with a layout for each head.

    >>> print(blocks([[True, False], [True, True]], 2))
    blocks(torch.tensor([[True, False], [True, True]]), (2, 2)): 4 queries (down) x 4 keys (across)
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ■
    ■ ■ ■ ■
    """
    table = check_table("blocks layout", layout, torch.bool)
    if table.ndim not in (2, 3):
        raise ShapeError(f"blocks layout must have 2 or 3 axes, found {shape_text(table)}")
    sizes = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sizes) != 2:
        raise OptionError(f"blocks size must be one number or two (rows, columns), found {size!r}")
    rows, columns = (count("blocks size", side, least=1) for side in sizes)
    return Blocks(table if table.ndim == 3 else table[None], (rows, columns))


@dataclass(frozen=True, eq=False)
class Blocks(Mask, kind="blocks", code=5):
    """Block sparsity: query i sees key j where `layout[i // size, j // size]` is True."""

    layout: Tensor
    size: tuple[int, int]

    def check(self, extent: Extent) -> None:
        heads, rows, columns = self.layout.shape
        if heads != 1 and heads != extent.h:
            raise ShapeError(f"blocks has a layout for {heads} heads, expected 1 or h = {extent.h}")
        need = (-(-extent.i // self.size[0]), -(-extent.j // self.size[1]))
        if rows != need[0] or columns != need[1]:
            raise ShapeError(
                f"blocks has a layout of {rows} x {columns} "
                f"blocks of {self.size[0]} x {self.size[1]}, "
                f"expected {need[0]} x {need[1]} to cover i = {extent.i}, j = {extent.j}"
            )

    def allowed(self, region: Region) -> Tensor:
        layout = self.layout.to(region.rows.device)
        if layout.shape[0] != 1:
            layout = layout[region.heads]
        rows, columns = region.rows // self.size[0], region.keys // self.size[1]
        return layout[:, rows[:, None], columns][None]

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        shared = heads is None or self.layout.shape[0] == 1
        return self if shared else replace(self, layout=self.layout[heads])

    def tensors(self) -> Iterator[Tensor]:
        if self.layout.device.type != "cpu":
            yield self.layout

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        layout = self.layout.to(device).contiguous()
        return Lowered((self.code, first_table, *self.size), (layout,))

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        tensors[name] = self.layout
        return {"tensor": name, "size": self.size}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        size = stored["size"]
        return blocks(stored.tensor("tensor"), tuple(size) if isinstance(size, list) else size)

    def natural_extent(self) -> Extent | None:
        heads, rows, columns = self.layout.shape
        return Extent(1, heads, rows * self.size[0], columns * self.size[1])

    def name(self) -> str:
        shared = len(self.layout) == 1
        return f"blocks({table_text(self.layout[0] if shared else self.layout)}, {self.size})"
