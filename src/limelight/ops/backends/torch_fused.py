"""PyTorch's own fused attention, for devices that our kernels do not serve."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from limelight.errors import UnavailableError
from limelight.ops.backends.protocol import Extras
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.masks.band import Band
from limelight.ops.problem import Problem

NAME = "torch"
REASON = "PyTorch's fused kernel serves this device"

_CAUSAL = Band(None, 0)


def why_not(problem: Problem, extras: Extras) -> str | None:
    """Why PyTorch's fused kernels do not compute this call as we define it, or None.

    Only what all of its backends agree on: no mask, or causality with as many queries as keys.
    """
    if problem.query.device.type == "cpu":
        return "on the CPU limelight has its own kernels and PyTorch form"
    if extras.lse or extras.lens is not None:
        return "PyTorch's fused kernels give no log-sum-exp and no statistics"
    if problem.softcap or problem.dropout or not problem.rows_sum_to_one:
        return "PyTorch's fused kernels take no softcap, no sinks and not our dropout"
    if problem.bias is not None or problem.slopes is not None:
        return "PyTorch's fused kernels do not all take a bias"
    square = problem.extent.i == problem.extent.j
    if problem.mask is not None and not (problem.mask == _CAUSAL and square):
        return f"PyTorch's fused kernels do not take {problem.mask.name()}"
    return None


def attend(problem: Problem) -> tuple[Tensor, None]:
    """The output `b h i e`."""
    output = scaled_dot_product_attention(
        problem.query,
        problem.key,
        problem.value,
        is_causal=problem.mask is not None,
        scale=problem.scale,
        enable_gqa=problem.query.shape[1] != problem.key.shape[1],
    )
    return output, None


def attend_with_statistics(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """Refused: `why_not` says so first."""
    del problem, lens
    raise UnavailableError("PyTorch's fused kernels give no statistics")
