"""Which weights dropout keeps: a pure function of seed, batch, head, query and key.

Being a function of the place alone, it does not depend on tiles, threads or implementation, and the
backward pass draws it again instead of storing it. `csrc/dropout.h` is the same arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def keep(
    seed: Tensor, dropout: float, b: int, h: int, i: int, j: int, device: torch.device
) -> Tensor:
    """The weights that stay: bool `b h i j`."""
    seed = seed.to(device)
    word = _mix(_mix(seed & _WORD) ^ ((seed >> 32) & _WORD))
    word = _mix(word ^ torch.arange(b * h, device=device)).view(b, h, 1, 1)
    word = _mix(word ^ torch.arange(i, device=device)[:, None])
    word = _mix(word ^ torch.arange(j, device=device))
    return word >= threshold(dropout)
