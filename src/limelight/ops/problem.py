"""One attention call, checked: what every implementation takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.checks import (
    FLOATING,
    check_broadcast,
    check_groups,
    check_number,
    check_positive,
    check_probability,
    check_rank,
    check_same_device,
    check_same_kind,
    check_size,
    shape_text,
)
from limelight.errors import DtypeError, ShapeError
from limelight.ops.bias import Alibi
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.masks.region import Extent


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A call whose parts are known to fit one another.

    weights = dropout(softmax(cap(scale · q·k) + bias − slope·|p_i − j|))

    where softmax runs over the keys that the mask allows.
    """

    query: Tensor
    """b h i d"""
    key: Tensor
    """b g j d, where g divides h"""
    value: Tensor
    """b g j e"""
    mask: Mask | None
    bias: Tensor | None
    """broadcasts to b h i j, always with 4 axes"""
    slopes: Tensor | None
    """h, float32: ALiBi"""
    scale: float
    softcap: float
    """0 means none"""
    dropout: float
    seed: Tensor | None
    """of dropout: one whole number, a tensor so that torch.compile and vmap can draw it"""

    @property
    def extent(self) -> Extent:
        """b, h, i, j"""
        b, h, i, _ = self.query.shape
        return Extent(b, h, i, self.key.shape[2])


def check_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Problem:
    """The call as a Problem, or a LimelightError that names the argument that does not fit."""
    _check_tensors(query, key, value)
    b, h, i, d = query.shape
    extent = Extent(b, h, i, key.shape[2])
    if mask is not None:
        mask = as_mask(mask)
        mask.check(extent)
        for tensor in mask.tensors():
            check_same_device("mask", tensor, query, "query")
    slopes = None
    if isinstance(bias, Alibi):
        bias, slopes = None, _check_slopes(bias.slopes, h, query)
    elif bias is not None:
        bias = _check_bias(bias, extent, query)
    chance = check_probability("dropout", dropout)
    return Problem(
        query, key, value, mask, bias, slopes,
        scale=_check_scale(scale, d),
        softcap=0.0 if softcap is None else check_positive("softcap", softcap),
        dropout=chance,
        seed=torch.randint(1 << 62, ()) if chance else None,
    )  # fmt: skip


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor, letters in (
        ("query", query, "b h i d"),
        ("key", key, "b g j d"),
        ("value", value, "b g j e"),
    ):
        check_rank(name, tensor, letters)
        if tensor.dtype not in FLOATING:
            kinds = "float32, bfloat16, float16 or float64"
            raise DtypeError(f"{name} is {tensor.dtype}, expected {kinds}")
        if name != "query":
            check_same_kind(name, tensor, query, "query")
    check_size("key", key, 0, "b", query.shape[0], "query")
    check_size("key", key, 3, "d", query.shape[3], "query")
    check_size("value", value, 0, "b", query.shape[0], "query")
    check_size("value", value, 1, "g", key.shape[1], "key")
    check_size("value", value, 2, "j", key.shape[2], "key")
    if query.shape[3] == 0 or value.shape[3] == 0:
        raise ShapeError("query and value need at least 1 channel (d), found 0")
    check_groups("key", key, query.shape[1])


def _check_slopes(slopes: Tensor, h: int, query: Tensor) -> Tensor:
    if slopes.shape != (h,):
        raise ShapeError(f"bias has {shape_text(slopes)} ALiBi slopes, expected h = {h}")
    if slopes.device.type != "cpu":  # those on the CPU go wherever they are needed
        check_same_device("bias", slopes, query, "query")
    return slopes.to(query.device)


def _check_bias(bias: Tensor, extent: Extent, query: Tensor) -> Tensor:
    if not isinstance(bias, Tensor):
        raise DtypeError(f"bias must be a tensor or alibi(...), found {type(bias).__name__}")
    if bias.dtype not in (query.dtype, torch.float32):
        raise DtypeError(f"bias is {bias.dtype}, expected {query.dtype} as query, or float32")
    check_same_device("bias", bias, query, "query")
    check_broadcast("bias", bias, "b h i j", tuple(extent))
    return bias[(None,) * (4 - bias.ndim)]


def _check_scale(scale: float | None, d: int) -> float:
    return 1.0 / math.sqrt(d) if scale is None else check_number("scale", scale, "a finite number")
