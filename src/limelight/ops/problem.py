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
    check_plain,
    check_positive,
    check_probability,
    check_rank,
    check_same_device,
    check_same_kind,
    check_shape,
    check_size,
    shape_text,
)
from limelight.errors import DtypeError, OptionError, ShapeError
from limelight.ops.bias import Alibi, is_causal_bias, with_causal_bias
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.masks.region import Extent


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A call whose arguments are known to fit one another.

        scores_ij = cap(scale · q_i·k_j) + bias_ij − slope·|p_i − j|
        weights_ij = dropout(factor_ij · exp(scores_ij − lse_i))

    over the keys j that the mask allows, where factors are 1 unless given, and lse_i is what makes
    the row and its sink sum to 1, log(Σ_j factor_ij · exp(scores_ij) + exp(sink)), unless given.
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
    sinks: Tensor | None = None
    """h: the score of a key without value, which only takes weight; None where lse is given"""
    lse: Tensor | None = None
    """b h i: what the rows are normalised by in place of their own log-sum-exp; −∞ gives a row of
    zeros, as in a row without keys"""
    factors: Tensor | None = None
    """broadcasts to b h i j, always with 4 axes"""

    @property
    def extent(self) -> Extent:
        """b, h, i, j"""
        b, h, i, _ = self.query.shape
        return Extent(b, h, i, self.key.shape[2])

    @property
    def rows_sum_to_one(self) -> bool:
        """Whether the rows are normalised by their own log-sum-exp and nothing else."""
        return self.sinks is None and self.lse is None

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient is needed."""
        return torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in self.tensors().values()
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the call by name, without those of the mask."""
        names = ("query", "key", "value", "bias", "slopes", "sinks", "lse", "factors")
        tensors = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the type that attention is computed in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def wide_type(problem: Problem) -> torch.dtype:
    """The type that a call is computed in."""
    return torch.float64 if problem.query.dtype == torch.float64 else torch.float32


def widest(tensor: Tensor) -> Tensor:
    """The tensor in the most exact type that its device has."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def exceeds(tensor: Tensor, bound: float) -> bool:
    """Whether any finite element is above `bound` in absolute value."""
    return bool((tensor.isfinite() & (tensor.abs() > bound)).any())


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
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
    factors: Tensor | None = None,
) -> Problem:
    """The call as a Problem, or a LimelightError that names the argument that does not fit."""
    query, key, value = _check_tensors(query, key, value)
    b, h, i, d = query.shape
    extent = Extent(b, h, i, key.shape[2])
    if is_causal_bias(mask):
        mask = with_causal_bias("mask", mask, None, extent)
    if is_causal_bias(bias):
        mask, bias = with_causal_bias("bias", bias, mask, extent), None
    if mask is not None:
        mask = as_mask(mask)
        mask.check(extent)
        for tensor in mask.tensors():
            check_same_device("mask", tensor, query, "query")
    slopes = None
    if isinstance(bias, Alibi):
        bias, slopes = bias.added, _check_slopes(bias.slopes, h, query)
    if bias is not None:
        bias = _check_bias(bias, extent, query)
    if sinks is not None:
        sinks = _check_sinks(sinks, h, query)
    if lse is not None:
        lse = _check_lse(lse, extent, query)
        if sinks is not None:
            lse, sinks = torch.logaddexp(widest(lse), widest(sinks)[:, None]), None
    probability = check_probability("dropout", dropout)
    return Problem(
        query, key, value, mask, bias, slopes,
        scale=_check_scale(scale, d),
        softcap=0.0 if softcap is None else check_positive("softcap", softcap),
        dropout=probability,
        seed=torch.randint(1 << 62, ()) if probability else None,
        sinks=sinks,
        lse=lse,
        factors=None if factors is None else _check_factors(factors, extent, query),
    )  # fmt: skip


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    checked: list[Tensor] = []
    for name, tensor, letters in (
        ("query", query, "b h i d"),
        ("key", key, "b g j d"),
        ("value", value, "b g j e"),
    ):
        checked.append(check_plain(name, tensor))
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
    return checked[0], checked[1], checked[2]


def _check_slopes(slopes: Tensor, h: int, query: Tensor) -> Tensor:
    if slopes.shape != (h,):
        raise ShapeError(f"bias has {shape_text(slopes)} ALiBi slopes, expected h = {h}")
    if slopes.device.type != "cpu":  # those on the CPU go wherever they are needed
        check_same_device("bias", slopes, query, "query")
    return slopes.to(query.device)


def _check_bias(bias: Tensor, extent: Extent, query: Tensor) -> Tensor:
    if not isinstance(bias, Tensor):
        raise DtypeError(f"bias must be a tensor or alibi(...), found {type(bias).__name__}")
    bias = check_plain("bias", bias)
    if bias.dtype not in (query.dtype, torch.float32):
        raise DtypeError(f"bias is {bias.dtype}, expected {query.dtype} as query, or float32")
    check_same_device("bias", bias, query, "query")
    check_broadcast("bias", bias, "b h i j", tuple(extent))
    return bias[(None,) * (4 - bias.ndim)]


def _check_sinks(sinks: Tensor, h: int, query: Tensor) -> Tensor:
    sinks = check_plain("sinks", sinks).reshape(-1)
    check_shape("sinks", sinks, "h", (h,))
    check_same_device("sinks", sinks, query, "query")
    return sinks


def _check_lse(lse: Tensor, extent: Extent, query: Tensor) -> Tensor:
    lse = check_plain("lse", lse)
    check_shape("lse", lse, "b h i", tuple(extent[:3]))
    check_same_device("lse", lse, query, "query")
    return lse


def _check_factors(factors: Tensor, extent: Extent, query: Tensor) -> Tensor:
    factors = check_plain("factors", factors)
    check_same_device("factors", factors, query, "query")
    check_broadcast("factors", factors, "b h i j", tuple(extent))
    if factors.dtype not in FLOATING or not bool((factors >= 0).all()):
        raise OptionError("factors must be a tensor of numbers of at least 0")
    return factors[(None,) * (4 - factors.ndim)]


def _check_scale(scale: float | None, d: int) -> float:
    return 1.0 / math.sqrt(d) if scale is None else check_number("scale", scale, "a finite number")
