"""Every n-th key: `dilated(step, left, right)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from limelight.ops.masks.band import between
from limelight.ops.masks.counts import UNLIMITED, count, limit
from limelight.ops.masks.mask import Mask, StoredMask
from limelight.ops.masks.region import Region


def dilated(step: int, left: int | None = None, right: int | None = None) -> Mask:
    """Every `step`-th key before and after the query; `left` and `right` count steps.

    >>> print(dilated(2, left=1, right=0).draw(5))
    dilated(2, 1, 0): 5 queries (down) x 5 keys (across)
    ■ · · · ·
    · ■ · · ·
    ■ · ■ · ·
    · ■ · ■ ·
    · · ■ · ■
    """
    step = count("dilated step", step, least=1)
    left, right = limit("dilated left", left), limit("dilated right", right)
    limit("dilated left in keys", left and left * step)
    limit("dilated right in keys", right and right * step)
    return Dilated(step, left, right)


@dataclass(frozen=True)
class Dilated(Mask, kind="dilated", code=2):
    """Every `step`-th key around the query: p - left·step, ..., p, ..., p + right·step."""

    step: int
    left: int | None
    right: int | None

    def allowed(self, region: Region) -> Tensor:
        behind = region.behind
        left = None if self.left is None else self.left * self.step
        right = None if self.right is None else self.right * self.step
        return (between(behind, left, right) & (behind % self.step == 0))[None, None]

    def program(self) -> tuple[int, ...]:
        low = -UNLIMITED if self.left is None else -self.left * self.step
        high = UNLIMITED if self.right is None else self.right * self.step
        return (self.code, self.step, low, high)

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"step": self.step, "left": self.left, "right": self.right}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return dilated(stored["step"], stored["left"], stored["right"])

    def name(self) -> str:
        return f"dilated({self.step}, {self.left}, {self.right})"
