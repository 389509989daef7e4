"""Single links cut: `without(pairs)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.checks import check_plain, check_whole
from limelight.errors import OptionError, ShapeError
from limelight.ops.masks.drawing import LISTED
from limelight.ops.masks.mask import DRAWN, Lowered, Mask, StoredMask
from limelight.ops.masks.region import Extent, Region

_MOST = (1 << 31) - 1
"""No call has more queries or keys, so a link is one number: query · 2³¹ + key."""


def without(pairs: Iterable[Sequence[int]] | Tensor) -> Mask:
    """All links but these: each pair is (query, key), both counted from 0 within the call.

    `causal() & without(pairs)` cuts links of a causal mask, `~without(pairs)` allows only these.
    Memory is that of the pairs. With a cache the queries of a call are the new tokens only.

    >>> print(without([(4, 2), (1, 0)]).draw(5))
    without([(1, 0), (4, 2)]): 5 queries (down) x 5 keys (across)
    ■ ■ ■ ■ ■
    · ■ ■ ■ ■
    ■ ■ ■ ■ ■
    ■ ■ ■ ■ ■
    ■ ■ · ■ ■
    """
    if isinstance(pairs, Tensor):
        pairs = check_plain("pairs", pairs)
        is_integer = not pairs.is_floating_point() and not pairs.is_complex()
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not is_integer or pairs.dtype == torch.bool:
            raise OptionError(
                "pairs must be whole numbers of shape (count, 2), "
                f"found {pairs.dtype} of shape {tuple(pairs.shape)}"
            )
        pairs = pairs.tolist()
    try:
        links = [(query, key) for query, key in pairs]
    except (TypeError, ValueError):
        raise OptionError(f"pairs must be (query, key) pairs, found {pairs!r}") from None
    checked = {
        (check_whole("query of a pair", i, 0, _MOST), check_whole("key of a pair", j, 0, _MOST))
        for i, j in links
    }
    needed = max((0, *[i + 1 for i, _ in checked])), max((0, *[j + 1 for _, j in checked]))
    return Without(torch.tensor(sorted(checked), dtype=torch.int64).view(-1, 2), needed)


@dataclass(frozen=True, eq=False)
class Without(Mask, kind="without", code=11):
    """All links but these."""

    pairs: Tensor
    """count 2, int64: (query, key), sorted and without repetition"""
    needed: tuple[int, int]
    """the least numbers of queries and keys that these links fit"""

    def check(self, extent: Extent) -> None:
        if self.needed[0] > extent.i or self.needed[1] > extent.j:
            beyond = (self.pairs >= torch.tensor([extent.i, extent.j])).any(1)
            query, key = self.pairs[beyond][0].tolist()
            raise ShapeError(
                f"without names the link ({query}, {key}), expected queries below "
                f"i = {extent.i} and keys below j = {extent.j}"
            )

    def allowed(self, region: Region) -> Tensor:
        cut = self.pairs.to(region.rows.device)
        numbers = region.rows[:, None] * (_MOST + 1) + region.keys
        return ~torch.isin(numbers, cut[:, 0] * (_MOST + 1) + cut[:, 1])[None, None]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        return Lowered((self.code, first_table), (self.pairs.to(device),))

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"pairs": self.pairs.tolist()}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return without(stored["pairs"])

    def natural_extent(self) -> Extent | None:
        size = max(self.needed)
        return Extent(1, 1, size, size) if size > DRAWN else None

    def name(self) -> str:
        if len(self.pairs) > LISTED:
            return f"without({len(self.pairs)} links)"
        return f"without({[(query, key) for query, key in self.pairs.tolist()]})"
