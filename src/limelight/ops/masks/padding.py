"""Batches of sequences of different lengths: `padding(lengths)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from limelight.checks import shape_text
from limelight.errors import OptionError, ShapeError
from limelight.ops.masks.counts import counts
from limelight.ops.masks.mask import Lowered, Mask, StoredMask
from limelight.ops.masks.region import Extent, Region


def padding(lengths: Sequence[int] | Tensor, side: Literal["right", "left"] = "right") -> Mask:
    """Row b of the batch holds `lengths[b]` real keys; the rest is padding, on the given side.

    A tensor of lengths that torch.compile traces has no values yet: the kernel checks them.
    """
    if side not in ("right", "left"):
        raise OptionError(f"padding side must be 'right' or 'left', found {side!r}")
    if torch.compiler.is_compiling() and isinstance(lengths, Tensor):
        return Padding(_traced(lengths), side)
    return Padding(torch.tensor(counts("padding length", lengths), dtype=torch.int64), side)


def _traced(lengths: Tensor) -> Tensor:
    """The tensor as the rule takes it, without reading its values."""
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ShapeError(
            f"padding lengths must be whole numbers in one axis, found {lengths.dtype} of shape "
            f"{shape_text(lengths)}"
        )
    return lengths.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Padding(Mask, kind="padding", code=3):
    """Row b of the batch holds `lengths[b]` real keys, at its start or (side="left") at its end."""

    lengths: Tensor
    side: Literal["right", "left"]
    longest: int | None = field(init=False, repr=False)
    """of the lengths; None while torch.compile traces them, when they have no values yet"""

    def __post_init__(self) -> None:
        # Read at construction: torch.compile could not trace a check that reads the tensor.
        longest = None
        if not torch.compiler.is_compiling():
            longest = int(self.lengths.max()) if len(self.lengths) else 0
        object.__setattr__(self, "longest", longest)

    def check(self, extent: Extent) -> None:
        if len(self.lengths) != extent.b:
            raise ShapeError(f"padding has {len(self.lengths)} lengths, expected b = {extent.b}")
        if self.longest is not None and self.longest > extent.j:
            raise ShapeError(
                f"padding has a length of {self.longest}, expected at most j = {extent.j}"
            )

    def allowed(self, region: Region) -> Tensor:
        lengths = self.lengths.to(region.keys.device)[region.batches, None]
        from_real_side = region.keys if self.side == "right" else region.following
        return (from_real_side < lengths)[:, None, None, :]

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        return self if row is None else replace(self, lengths=self.lengths[row : row + 1])

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        at_end = int(self.side == "left")
        return Lowered((self.code, first_table, at_end), (self.lengths.to(device),))

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"lengths": self.lengths.tolist(), "side": self.side}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return padding(stored["lengths"], stored["side"])

    def natural_extent(self) -> Extent | None:
        if self.longest is None:
            return None
        return Extent(len(self.lengths), 1, self.longest, self.longest)

    def name(self) -> str:
        side = "" if self.side == "right" else f', side="{self.side}"'
        return f"padding({self.lengths.tolist()}{side})"
