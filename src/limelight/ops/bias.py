"""Structural biases: a rule added to the scores without a table of size n²."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from limelight.checks import check_rank, check_table, check_whole
from limelight.errors import ShapeError
from limelight.ops.masks.band import causal
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.masks.region import Extent

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias


@dataclass(frozen=True, eq=False)
class Alibi:
    """Attention with linear biases: score − slope_h · |p_i − j|, p_i the query's position.

    Press et al. 2021, https://arxiv.org/abs/2108.12409
    """

    slopes: Tensor
    added: Tensor | None = None
    """also added to the scores; broadcasts to `b h i j`"""

    def __add__(self, table: Tensor) -> Alibi:
        return Alibi(self.slopes, table if self.added is None else self.added + table)


def alibi(slopes: int | Sequence[float] | Tensor) -> Alibi:
    """ALiBi, one slope per head; a number of heads stands for the slopes of the paper.

    >>> alibi(8).slopes.tolist()
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    """
    if isinstance(slopes, int):
        return Alibi(torch.tensor(_paper_slopes(slopes), dtype=torch.float32))
    table = check_table("alibi slopes", slopes, torch.float32)
    check_rank("alibi slopes", table, "h")
    return Alibi(table)


def _paper_slopes(heads: int) -> list[float]:
    """2^(−8/h), 2^(−16/h), … for h a power of two.

    Any other number of heads has the slopes of the power below it, then every other one of the
    power above.
    """
    check_whole("alibi heads", heads, 1, 1 << 20)
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (t + 1) / power) for t in range(power)]
    finer = [2.0 ** (-8.0 * (t + 1) / (2 * power)) for t in range(0, 2 * power, 2)]
    return slopes + finer[: heads - power]


def is_causal_bias(bias: object) -> TypeGuard[CausalBias]:
    """Whether a bias is one of PyTorch's causal ones.

    Recognised by the module of its type: importing that module takes longer than all of limelight.
    """
    return type(bias).__module__ == "torch.nn.attention.bias"


def with_causal_bias(name: str, bias: Tensor, mask: Mask | Tensor | None, extent: Extent) -> Mask:
    """A mask together with one of PyTorch's causal biases, whose own memory holds no numbers."""
    from torch.nn.attention.bias import CausalBias, CausalVariant

    assert isinstance(bias, CausalBias)
    sizes = bias.seq_len_q, bias.seq_len_kv
    if sizes != (extent.i, extent.j):
        raise ShapeError(f"{name} is causal for {sizes}, expected (i, j) = {extent[2:]}")
    lower_right = bias.variant == CausalVariant.LOWER_RIGHT
    rule = causal() if lower_right else causal(diagonal=0)
    return rule if mask is None else as_mask(mask) & rule
