"""What a backend implements."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.problem import Problem


class Extras(NamedTuple):
    """What a call requests besides its output."""

    lse: bool = False
    """the log-sum-exp of each row"""
    lens: Lens | None = None
    """statistics of the weights"""


@runtime_checkable
class Backend(Protocol):
    """Computes checked problems. A module with these names is one."""

    NAME: str
    """what `attend(impl=...)` and `explain_choice` call it"""
    REASON: str
    """why it is chosen, where it is"""

    def why_not(self, problem: Problem, extras: Extras) -> str | None:
        """Why it cannot serve this call, or None."""
        ...

    def attend(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """The output `b h i e`, and what normalises the rows, `b h i`.

        None for the latter only where `why_not` refuses calls that request it.
        """
        ...

    def attend_with_statistics(self, problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
        """The output, and what a fitted lens sees of the weights in the same sweep.

        The output carries gradients and has dropout applied, as `attend`'s does; the statistics
        carry none, and are those of the weights before dropout.
        """
        ...
