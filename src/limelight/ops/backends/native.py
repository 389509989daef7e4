"""The C++ kernels as an implementation of a checked problem."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops.backends.native_lens import Buffers
from limelight.ops.backends.protocol import Extras
from limelight.ops.kernels import eager, kernels, missing, transformed, unsupported_transform
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.masks.mask import Lowered
from limelight.ops.problem import Problem, exceeds

if kernels is None:
    native_op = None
else:
    from limelight.ops.backends import native_op

NAME = "native"
REASON = "the fused CPU kernel serves this call"

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

COARSE = 2.0**10
"""Larger scores are rounded by more than 1e-4 in float32: in the kernels' units, log2, they no
longer match numbers that were rounded in others."""


def why_not(problem: Problem, extras: Extras) -> str | None:
    """Why the kernels cannot serve this call, or None."""
    if native_op is None:
        return missing()
    query = problem.query
    if query.device.type != "cpu":
        return f"the kernels run on the CPU, the tensors are on {query.device}"
    if query.dtype not in _DTYPES:
        return f"the kernels take float32, bfloat16 and float16, the tensors are {query.dtype}"
    del extras
    return unsupported_transform() or _too_coarse(problem)


def _too_coarse(problem: Problem) -> str | None:
    """Why the kernels' float32 would lose what the caller gives beside large scores, or None."""
    if problem.lse is not None and (transformed() or exceeds(problem.lse, COARSE)):
        return "the given log-sum-exp may be too large for the kernels' float32"
    if problem.factors is None or problem.bias is None:
        return None
    if transformed() or exceeds(problem.bias.amax(-1), COARSE):
        return "the factors may be lost beside a bias this large in the kernels' float32"
    return None


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e`, and what normalises the rows, `b h i`: in float32 unless given."""
    assert native_op is not None
    output, lse = native_op.attend(*_arguments(problem))
    return output, lse if problem.lse is None else problem.lse


def attend_with_statistics(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """The same with the statistics of a fitted lens, computed in the same sweep."""
    assert native_op is not None
    buffers = Buffers.of(problem.extent, lens, problem.value.detach())
    output, lse = native_op.attend_with_lens(buffers, *_arguments(problem))
    return output, buffers.statistics(lse.detach(), problem.extent)


def _arguments(problem: Problem) -> tuple[object, ...]:
    """What the registered op takes; the mask is lowered here, once a call."""
    lowered = Lowered((), ())
    if problem.mask is not None:
        lowered = problem.mask.lower(problem.extent, problem.query.device)
    bias, sinks, lse = problem.bias, problem.sinks, problem.lse
    if problem.factors is not None:  # factor · exp(score) = exp(score + log factor)
        added = problem.factors.float().log()
        bias = added if bias is None else bias + added
    return (
        problem.query, problem.key, problem.value, bias, problem.slopes,
        None if sinks is None else sinks.float(), None if lse is None else lse.double(),
        problem.seed, lowered.tables, lowered.program,
        problem.scale, problem.softcap, problem.dropout,
    )  # fmt: skip


def attend_plain(
    query: Tensor, key: Tensor, value: Tensor, program: tuple[int, ...], scale: float | None
) -> Tensor | None:
    """The output of a call with at most a mask without tables, on plain tensors; otherwise None.

    A small call costs less than torch's dispatcher, or than checks in Python: where no mode or
    transform of torch is active, the kernel's own checks suffice.
    """
    if kernels is None or not eager():
        return None
    try:
        return kernels.attend_plain(query, key, value, program, scale, torch.is_grad_enabled())
    except (RuntimeError, AttributeError):  # sparse, nested, no tensor: `check_problem` raises
        return None
