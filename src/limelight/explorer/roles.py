"""The heads panel: what every head does, over the built-in sentences or a text of the user."""

from __future__ import annotations

from typing import Any

from limelight.explorer.pausing import pausing
from limelight.explorer.worker import Job
from limelight.insight.heads import heads
from limelight.models.loading.pretrained import Model

_REPORT_EVERY = 24
"""Attention calls between two reports."""


def roles(model: Model, corpus: str | None, job: Job) -> dict[str, Any]:
    """The roles of every head, as `limelight.insight.heads` finds them.

    Each role has its chance level, the score needed for it, the held-out score of every head `l h`,
    and the heads that have it. Reports the number of attention calls so far.
    """

    def report(calls: int) -> None:
        if calls % _REPORT_EVERY == 0:
            job.report({"calls": calls + 1})

    with pausing(job, report):
        head_roles = heads(model, None if corpus is None else [corpus], progress=False)
    return {
        "texts": head_roles.texts,
        "labels": head_roles.labels(),
        "roles": [
            {
                "name": name,
                "chance": score.chance,
                "needed": score.chance + score.margin,
                "held_out": score.held_out.double().tolist(),
                "heads": score.assigned.nonzero().tolist(),
            }
            for name, score in head_roles.scores.items()
        ],
    }
