"""A bool tensor as a mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.checks import check_broadcast, check_plain, shape_text
from limelight.errors import DtypeError, ShapeError
from limelight.ops.masks.drawing import table_text
from limelight.ops.masks.mask import Lowered, Mask, StoredMask
from limelight.ops.masks.region import Extent, Region, part_of_table


def of_tensor(tensor: Tensor) -> Mask:
    """The mask of a bool tensor of at most four axes."""
    tensor = check_plain("mask", tensor)
    if tensor.dtype != torch.bool:
        raise DtypeError(
            f"mask is {tensor.dtype}, expected bool (True = may attend); "
            "numbers to add to the scores go into bias="
        )
    if tensor.ndim > 4:
        raise ShapeError(f"mask has shape {shape_text(tensor)}, expected at most 4 axes (b h i j)")
    return Dense(tensor)


@dataclass(frozen=True, eq=False)
class Dense(Mask, kind="dense", code=6):
    """A bool tensor that broadcasts to `b h i j`."""

    tensor: Tensor

    def check(self, extent: Extent) -> None:
        check_broadcast("mask", self.tensor, "b h i j", tuple(extent))

    def allowed(self, region: Region) -> Tensor:
        return region.cut(self.tensor.to(region.rows.device))

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        return Dense(part_of_table(self.tensor, heads=heads, row=row))

    def tensors(self) -> Iterator[Tensor]:
        yield self.tensor

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        return Lowered((self.code, first_table), (self.tensor.to(device).expand(extent),))

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        tensors[name] = self.tensor
        return {"tensor": name}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return of_tensor(stored.tensor("tensor"))

    def natural_extent(self) -> Extent | None:
        return Extent(*(1,) * (4 - self.tensor.ndim), *self.tensor.shape)

    def name(self) -> str:
        return table_text(self.tensor)
