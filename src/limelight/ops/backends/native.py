"""The C++ kernels as an implementation of a checked problem."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops.backends.native_lens import Buffers, by_rows_only, scaled
from limelight.ops.backends.protocol import Extras
from limelight.ops.backends.tiled import exact_log_sum_exp
from limelight.ops.kernels import eager, kernels, missing, transform
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.masks.mask import Lowered
from limelight.ops.problem import Problem

if kernels is None:
    native_op = None
else:
    from limelight.ops.backends import native_op

NAME = "native"
REASON = "the fused CPU kernel serves this call"

_KINDS = (torch.float32, torch.bfloat16, torch.float16)


def why_not(problem: Problem, extras: Extras) -> str | None:
    """Why the kernels cannot serve this call, or None."""
    if native_op is None:
        return missing()
    query = problem.query
    if query.device.type != "cpu":
        return f"the kernels run on the CPU, the tensors are on {query.device}"
    if query.dtype not in _KINDS:
        return f"the kernels take float32, bfloat16 and float16, the tensors are {query.dtype}"
    lens = extras.lens
    if lens is not None and not problem.rows_sum_to_one and not by_rows_only(lens):
        return "the kernels pool only weights whose rows sum to 1"
    return transform()


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e`, and what normalises the rows, `b h i` in float32."""
    assert native_op is not None
    return _shared(problem, *native_op.attend(*_arguments(problem)))


def attend_with_statistics(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """The same with the statistics of a fitted lens, computed in the same sweep."""
    assert native_op is not None
    buffers = Buffers.of(problem.extent, lens, problem.value.detach())
    output, own = native_op.attend_with_lens(buffers, *_arguments(problem))
    statistics = buffers.statistics(own.detach(), problem.extent)
    if problem.rows_sum_to_one:
        return output, statistics
    share, total = _share(problem, own)
    statistics = scaled(statistics, share.detach(), total.detach())
    return output * share[..., None].to(output.dtype), statistics


def _arguments(problem: Problem) -> tuple[object, ...]:
    """What the registered op takes; the mask is lowered here, once a call."""
    lowered = Lowered((), ())
    if problem.mask is not None:
        lowered = problem.mask.lower(problem.extent, problem.query.device)
    return (
        problem.query, problem.key, problem.value, problem.bias, problem.slopes, problem.seed,
        lowered.tables, lowered.program, problem.scale, problem.softcap, problem.dropout,
    )  # fmt: skip


def _shared(problem: Problem, output: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that sum to 1, made to sum to their share."""
    if problem.rows_sum_to_one:
        return output, own
    share, total = _share(problem, own)
    return output * share[..., None].to(output.dtype), total


def _share(problem: Problem, own: Tensor) -> tuple[Tensor, Tensor]:
    """As `Problem.share`; what the kernels' float32 loses of a large `own` is made good."""
    if problem.lse is not None and problem.lse.dtype != torch.float64:
        return problem.share(own)  # rounded alike: what both lost cancels
    beside = problem.total(torch.full_like(own, -torch.inf)).detach()
    own, rest = exact_log_sum_exp(problem, own, beside)
    return problem.share(own, rest)


def attend_plain(
    query: Tensor, key: Tensor, value: Tensor, program: tuple[int, ...], scale: float | None
) -> Tensor | None:
    """The output of a call with at most a mask without tables, on plain tensors; otherwise None.

    A small call costs less than torch's dispatcher, or than checking it in Python: where nothing of
    torch watches, the kernel's own check is enough.
    """
    if kernels is None or not eager():
        return None
    try:
        return kernels.attend_plain(query, key, value, program, scale, torch.is_grad_enabled())
    except (RuntimeError, AttributeError):  # sparse, nested, no tensors: the checks say it in words
        return None
