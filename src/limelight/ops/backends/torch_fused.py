"""PyTorch's own fused attention, for devices that our kernels do not serve."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from limelight.ops.masks.band import Band
from limelight.ops.problem import Problem

_CAUSAL = Band(None, 0)


def serves(problem: Problem) -> bool:
    """Whether PyTorch's fused kernels compute this call as we define it.

    Only what all of its backends agree on: no mask, or causality with as many queries as keys.
    """
    extras = problem.softcap or problem.dropout
    added = problem.bias is not None or problem.slopes is not None
    causal = problem.mask == _CAUSAL and problem.extent.i == problem.extent.j
    elsewhere = problem.query.device.type != "cpu"
    return elsewhere and not extras and not added and (problem.mask is None or causal)


def attend(problem: Problem) -> Tensor:
    """The output `b h i e` of a call that `serves` accepts."""
    return scaled_dot_product_attention(
        problem.query,
        problem.key,
        problem.value,
        is_causal=problem.mask is not None,
        scale=problem.scale,
        enable_gqa=problem.query.shape[1] != problem.key.shape[1],
    )
