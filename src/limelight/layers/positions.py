"""Positions: sinusoids added to a token, or a bias on the scores by distance.

Rotary positions have their own file; ALiBi is a structural bias of the operation (`ll.alibi`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limelight.checks import check_flag, check_tensor, check_whole
from limelight.errors import OptionError

MOST = 1 << 31
"""Positions, or channels of one: more than fit in any memory."""


def sinusoidal(positions: Tensor, width: int) -> Tensor:
    """Sinusoidal positions, from fast waves to slow ones: integers `…` → float32 `… m`.

        out[2t] = sin(p · 10000^(−2t/m)),  out[2t + 1] = cos(p · 10000^(−2t/m))

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    >>> import torch
    >>> sinusoidal(torch.arange(2), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if check_whole("width", width, 1, MOST) % 2:
        raise OptionError(f"sinusoidal positions need an even width, found {width}")
    check_tensor("positions", positions)
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device)
    waves = positions.float()[..., None] * torch.exp(steps * (-math.log(10000.0) / width))
    return torch.stack((waves.sin(), waves.cos()), dim=-1).flatten(-2)


class RelativeBias(nn.Module):
    """A learned bias for each head and distance, added to the scores, as in T5.

        scores_ij += table[bucket(j − p_i), h]

    Near distances have a bucket each, farther ones share buckets that widen logarithmically up to
    `furthest`; beyond it all share the last. With `both_ways` half of the buckets are for keys
    ahead of the query.
    Raffel et al. 2019, https://arxiv.org/abs/1910.10683

    >>> import torch, limelight as ll
    >>> ll.RelativeBias(heads=2)(3, 5).shape
    torch.Size([1, 2, 3, 5])
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, furthest: int = 128, both_ways: bool = True
    ) -> None:
        super().__init__()
        check_whole("heads", heads, 1, 1 << 20)
        both_ways = check_flag("both_ways", both_ways)
        side = check_whole("buckets", buckets, 1, 1 << 20) // (2 if both_ways else 1)
        if side < 2 or (both_ways and buckets % 2):
            least = "an even number of buckets, at least 4" if both_ways else "at least 2 buckets"
            raise OptionError(f"relative positions need {least}, found {buckets}")
        if check_whole("furthest", furthest) <= side // 2:
            raise OptionError(
                f"relative positions need furthest above {side // 2}, found {furthest}"
            )
        self.buckets, self.furthest, self.both_ways = buckets, furthest, both_ways
        self.table = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each signed distance j − p (negative: the key is behind)."""
        side = self.buckets
        first = torch.zeros_like(distance)
        if self.both_ways:
            side //= 2
            first = torch.where(distance > 0, side, 0)
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        near = side // 2
        # Logarithmic fraction of the way from `near` to `furthest`, in the buckets that are left.
        fraction = torch.log(distance.clamp(min=1).float() / near) / math.log(self.furthest / near)
        far = (near + (fraction * (side - near)).long()).clamp(max=side - 1)
        return first + torch.where(distance < near, distance, far)

    def forward(self, queries: int, keys: int) -> Tensor:
        """The bias `1 h i j`; the last query is at the last key."""
        check_whole("queries", queries, 0, MOST)
        check_whole("keys", keys, 0, MOST)
        device = self.table.device
        rows = torch.arange(queries, device=device)[:, None] + (keys - queries)
        buckets = self.bucket(torch.arange(keys, device=device) - rows)
        return self.table[buckets].permute(2, 0, 1)[None]
