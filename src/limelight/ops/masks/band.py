"""Bands around the diagonal: `causal()` and `window(left, right)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.ops.masks.counts import FAR, UNLIMITED, count, limit
from limelight.ops.masks.mask import Mask, StoredMask
from limelight.ops.masks.region import Region


def causal(diagonal: int | None = None) -> Mask:
    """Each query sees the keys up to its own position.

    >>> print(causal())
    causal(): 8 queries (down) x 8 keys (across)
    ■ · · · · · · ·
    ■ ■ · · · · · ·
    ■ ■ ■ · · · · ·
    ■ ■ ■ ■ · · · ·
    ■ ■ ■ ■ ■ · · ·
    ■ ■ ■ ■ ■ ■ · ·
    ■ ■ ■ ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■ ■ ■ ■

    With fewer queries than keys the last query sees the last key. `diagonal=0` gives PyTorch's
    `is_causal` instead, where the first query sees only the first key.
    """
    if diagonal is not None:
        diagonal = count("causal diagonal", diagonal, least=-FAR)
    return Band(None, 0, diagonal)


def window(left: int | None, right: int | None = 0) -> Mask:
    """Query at position p sees keys p - left ... p + right (None: no limit on that side).

    >>> print(window(2, 1).draw(5))
    window(2, 1): 5 queries (down) x 5 keys (across)
    ■ ■ · · ·
    ■ ■ ■ · ·
    ■ ■ ■ ■ ·
    · ■ ■ ■ ■
    · · ■ ■ ■
    """
    return Band(limit("window left", left), limit("window right", right))


@dataclass(frozen=True)
class Band(Mask, kind="band", code=1):
    """Keys at p - left ... p + right, p the query's position; None is no limit.

    `diagonal` moves the band: None puts the last query on the last key (p = i + J - I), a number
    puts query i at p = i + diagonal (0 is PyTorch's upper-left alignment).
    """

    left: int | None
    right: int | None
    diagonal: int | None = None

    def allowed(self, region: Region) -> Tensor:
        behind = region.behind
        if self.diagonal is not None:
            behind = (region.rows + self.diagonal)[:, None] - region.keys
        return between(behind, self.left, self.right)[None, None]

    def program(self) -> tuple[int, ...]:
        low = -UNLIMITED if self.left is None else -self.left
        high = UNLIMITED if self.right is None else self.right
        aligned, shift = (1, 0) if self.diagonal is None else (0, self.diagonal)
        return (self.code, low, high, aligned, shift)

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"left": self.left, "right": self.right, "diagonal": self.diagonal}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        diagonal = stored["diagonal"]
        return cls(
            limit("window left", stored["left"]),
            limit("window right", stored["right"]),
            None if diagonal is None else count("causal diagonal", diagonal, least=-FAR),
        )

    def name(self) -> str:
        if self.left is None and self.right == 0:
            return "causal()" if self.diagonal is None else f"causal(diagonal={self.diagonal})"
        # Only `causal` takes a diagonal; other bands that have one come from Hugging Face's masks.
        return f"window({self.left}, {self.right})" if self.diagonal is None else repr(self)


def between(behind: Tensor, left: int | None, right: int | None) -> Tensor:
    """Where a key lies at most `left` behind and at most `right` ahead of its query."""
    inside = torch.ones_like(behind, dtype=torch.bool)
    if left is not None:
        inside &= behind <= left
    if right is not None:
        inside &= behind >= -right
    return inside
