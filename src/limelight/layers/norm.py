"""Normalisation: each token's vector is brought to unit size, then scaled by learned weights.

    layer norm   y = (x − mean(x)) / √(var(x) + ε) · weight + bias
    RMS norm     y = x / √(mean(x²) + ε) · weight

Ba et al. 2016, https://arxiv.org/abs/1607.06450; Zhang and Sennrich 2019,
https://arxiv.org/abs/1910.07467
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from limelight.errors import OptionError

Norm = Literal["layer", "rms"]


def make_norm(kind: Norm, width: int, eps: float) -> nn.Module:
    """PyTorch's own module of that kind over the last axis `m`.

    >>> make_norm("rms", 8, 1e-6)
    RMSNorm((8,), eps=1e-06, elementwise_affine=True)
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps)
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps)
    raise OptionError(f"norm must be 'layer' or 'rms', found {kind!r}")
