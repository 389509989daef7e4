"""The overview of a long text: the numbers that every view of it shows."""

from __future__ import annotations

from typing import NamedTuple

from limelight.insight.salience import copies, receivers
from limelight.insight.summary import summary
from limelight.seeing.recording.recording import Link, Recording

LONG = 400
"""Tokens beyond which a text has an overview."""


class Overview(NamedTuple):
    """What all layers and heads do in a long text."""

    entropy: list[float]
    """of each layer: how spread out its heads look, mean over heads and queries, in bits"""
    distance: list[float]
    """of each layer: how far, in tokens"""
    receivers: list[tuple[int, float]]
    """the keys that receive most, background and function words left out, and their shares"""
    copies: list[Link]
    """repeats that are copied: a token looks at what followed the same token before"""


def overview(recording: Recording) -> Overview | None:
    """The overview of a text, or None for a short one or a picture."""
    if len(recording.tokens) <= LONG or recording.picture is not None:
        return None
    stats = summary(recording)
    return Overview(
        stats.entropy.mean(1).tolist(),
        stats.distance.mean(1).tolist(),
        receivers(recording, 8),
        copies(recording, 4),
    )
