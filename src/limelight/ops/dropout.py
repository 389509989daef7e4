"""Which weights dropout keeps: a pure function of seed, batch, head, query and key.

So it does not depend on tiles, threads or implementation, and the backward pass draws it again
instead of storing it. `csrc/attention/dropout.h` computes the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops.masks.region import Region

_WORD = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that looks random (an xorshift-multiply finaliser)."""
    x = (x + 0x9E3779B9) & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def threshold(dropout: float) -> int:
    """Words below this are dropped: dropout · 2³²."""
    return min(int(dropout * 4294967296.0), _WORD)


def keep(seed: Tensor, dropout: float, heads: int, region: Region) -> Tensor:
    """Which weights of a region are kept: bool `b h r c`; `heads` is h of the whole call."""
    device = region.rows.device
    seed = seed.to(device)
    batch = torch.arange(region.batches.start, region.batches.stop, device=device)
    head = torch.arange(region.heads.start, region.heads.stop, device=device)
    word = _mix(_mix(seed & _WORD) ^ ((seed >> 32) & _WORD))
    word = _mix(word ^ (batch[:, None] * heads + head))[..., None, None]
    word = _mix(word ^ region.rows[:, None])
    word = _mix(word ^ region.keys)
    return word >= threshold(dropout)
