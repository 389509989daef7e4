"""Global tokens: `anchors(tokens)`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.errors import ShapeError
from limelight.ops.masks.counts import counts
from limelight.ops.masks.mask import DRAWN, Lowered, Mask, StoredMask
from limelight.ops.masks.region import Extent, Region


def anchors(tokens: int | Iterable[int]) -> Mask:
    """Global tokens, as in Longformer: they see every key and every query sees them.

    >>> import limelight as ll
    >>> print((anchors(0) | ll.window(1)).draw(5))
    (anchors([0]) | window(1, 0)): 5 queries (down) x 5 keys (across)
    ■ ■ ■ ■ ■
    ■ ■ · · ·
    ■ ■ ■ · ·
    ■ · ■ ■ ·
    ■ · · ■ ■
    """
    chosen = [tokens] if isinstance(tokens, int) else tokens
    return Anchors(tuple(sorted(set(counts("anchors token", chosen)))))


@dataclass(frozen=True)
class Anchors(Mask, kind="anchors", code=4):
    """Global tokens: the anchors see every key, and every query sees the anchors."""

    tokens: tuple[int, ...]

    def check(self, extent: Extent) -> None:
        beyond = [token for token in self.tokens if token >= extent.j]
        if beyond:
            raise ShapeError(
                f"anchors names token {beyond[0]}, expected tokens below j = {extent.j}"
            )

    def _among(self, positions: Tensor) -> Tensor:
        tokens = torch.tensor(self.tokens, dtype=torch.int64, device=positions.device)
        return torch.isin(positions, tokens)

    def allowed(self, region: Region) -> Tensor:
        return (self._among(region.positions)[:, None] | self._among(region.keys))[None, None]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        before = torch.zeros(extent.j + 1, dtype=torch.int64, device=device)
        before[1:] = self._among(torch.arange(extent.j, device=device)).cumsum(0)
        return Lowered((self.code, first_table), (before,))

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"tokens": self.tokens}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return anchors(stored["tokens"])

    def natural_extent(self) -> Extent | None:
        needed = max(self.tokens, default=0) + 1
        return Extent(1, 1, needed, needed) if needed > DRAWN else None

    def name(self) -> str:
        return f"anchors({list(self.tokens)})"
