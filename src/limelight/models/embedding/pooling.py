"""How an encoder pools the tokens of a text into one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from limelight.checks import check_whole
from limelight.fields import check_fields

Pool = Literal["mean", "first"]


@dataclass(frozen=True)
class Pooling:
    """How the hidden states of a text become its embedding.

        mean     Σ_t hidden_t / n
        first    hidden_0

    Args:
        kind: which of them.
        normalise: whether vectors are scaled to length 1, so that a dot product is a cosine.
        limit: texts are truncated to so many tokens, special tokens included.

    >>> Pooling(normalise=True, limit=256)
    Pooling(kind='mean', normalise=True, limit=256)
    """

    kind: Pool = "mean"
    normalise: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "pooling ")
        if self.limit is not None:
            check_whole("pooling limit", self.limit)
