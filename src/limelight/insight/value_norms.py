"""The lengths of the value vectors that weights multiply."""

from __future__ import annotations

from torch import Tensor

from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.statistics import by_head, norms_of


def value_norms(seen: Seen) -> Tensor:
    """‖value‖ of each key in each query head: `b h j`; the heads of a group share their values."""
    assert isinstance(seen.source, Recomputed)
    return by_head(norms_of(seen.source.problem.value), seen.extent.h)[:, :, 0]
