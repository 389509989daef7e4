"""x·Wᵀ + b, fast also for a few rows.

A model that generates one token at a time multiplies a single row by every matrix it has: all the
work is reading the matrices. PyTorch's product does that on one core; the kernel behind `project`
reads each weight once, on all cores.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.ops.kernels import eager, kernels

FEW = 8
"""Rows up to which reading the matrix, not arithmetic, takes the time."""


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply by a matrix, y = x·Wᵀ + b: `… c` → `… o`, weight `o c`, bias `o`, as `F.linear`.

    >>> project(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[11., 17.]])
    """
    if kernels is None or not _serves(x, weight, bias):
        return F.linear(x, weight, bias)
    outputs, channels = weight.shape
    out = x.new_empty((*x.shape[:-1], outputs))
    kernels.skinny_gemm(x.contiguous(), weight, bias, out, x.numel() // channels, outputs, channels)
    return out


def _serves(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel takes this call: a few rows of float32 on the CPU, and no gradient."""
    if torch.is_grad_enabled():  # checked first, for training
        return False
    return (
        eager(x, weight, bias)
        and x.numel() <= FEW * x.shape[-1]
        and x.dtype is torch.float32
        and weight.dtype is torch.float32
        and weight.ndim == 2
        and weight.shape[1] == x.shape[-1] > 0
        and weight.is_cpu
        and x.is_cpu
        and weight.is_contiguous()
        and (
            bias is None
            or (
                bias.is_cpu
                and bias.dtype is torch.float32
                and bias.shape == weight.shape[:1]
                and bias.is_contiguous()
            )
        )
    )
