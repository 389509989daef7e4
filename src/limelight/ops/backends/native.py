"""The C++ kernels as an implementation of a checked problem."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops.kernels import eager, kernels, missing, transform
from limelight.ops.problem import Problem

if kernels is None:
    native_op = None
else:
    from limelight.ops.backends import native_op

_KINDS = (torch.float32, torch.bfloat16, torch.float16)


def obstacle(problem: Problem) -> str | None:
    """Why the kernels cannot serve this call, or None."""
    if native_op is None:
        return missing()
    query = problem.query
    if query.device.type != "cpu":
        return f"the kernels run on the CPU, the tensors are on {query.device}"
    if query.dtype not in _KINDS:
        return f"the kernels take float32, bfloat16 and float16, the tensors are {query.dtype}"
    return transform()


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e`, and the log-sum-exp `b h i` in float32."""
    assert native_op is not None
    program: tuple[int, ...] = ()
    tables: tuple[Tensor, ...] = ()
    if problem.mask is not None:
        program, tables = problem.mask.lower(problem.extent, problem.query.device)
    return native_op.attend(
        problem.query, problem.key, problem.value, problem.bias, problem.slopes, problem.seed,
        tables, program, problem.scale, problem.softcap, problem.dropout,
    )  # fmt: skip


def quick(
    query: Tensor, key: Tensor, value: Tensor, program: tuple[int, ...], scale: float | None
) -> Tensor | None:
    """The output of a call with at most a mask without tables, in the shortest way there is.

    A small call costs less than torch's dispatcher, or than checking it in Python: if nothing of
    torch watches and everything about it is plain, the kernel's own check is enough. Otherwise
    None.
    """
    if kernels is None or not eager():
        return None
    if query is None or key is None or value is None:  # the one thing that it cannot be handed
        return None
    return kernels.quick(query, key, value, program, scale, torch.is_grad_enabled())
