"""The C++ kernels behind one registered torch op."""

from __future__ import annotations

from torch import Tensor

from limelight.ops.problem import Problem


def missing() -> str | None:
    """Why the kernels are not there at all, or None."""
    return "the C++ kernels were not built (no C++ compiler was found at install time)"


def obstacle(problem: Problem) -> str | None:
    """Why the kernels cannot serve this call, or None."""
    return missing()


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp."""
    raise NotImplementedError
