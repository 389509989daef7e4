"""The tiled form outside the graph of torch.compile.

In a graph its loop would be unrolled, for one length only; a graph break keeps its memory linear.
`fullgraph=True`, which forbids graph breaks, raises and says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.ops.backends.tiled import sweep
from limelight.ops.problem import Problem


@torch.compiler.disable(  # pyright: ignore[reportUntypedFunctionDecorator]
    reason="no fused kernel serves this attention call, and a loop over tiles is not traced; "
    "impl='reference' is, in memory quadratic in the sequence"
)
def untraced_sweep(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output and normaliser of a call."""
    return sweep(problem, None)
