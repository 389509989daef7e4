"""The why panel: a score split by where its parts came from, the strongest of them shown."""

from __future__ import annotations

from typing import Any

from limelight.errors import OptionError
from limelight.explorer.pausing import pausing
from limelight.explorer.worker import Job
from limelight.insight.why import why
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model
from limelight.seeing.recording.recording import Recording

MAX_TOKENS = 128
"""Every source has a vector for every token: a deep model has hundreds of sources."""
SHOWN = 24
"""Sources of the matrix; the others are added up."""
LISTED = 12


def score_parts(
    model: Model, recording: Recording, name: str, layer: int, head: int, query: int, key: int,
    job: Job,
) -> dict[str, Any]:  # fmt: skip
    """The parts of one link's score, as `limelight.why` finds them.

    `sources` and `parts` are those of the strongest `SHOWN` in the model's order; `rest` is what
    all other pairs add, so that parts and rest make the score. `name` is what Python loads by.
    """
    if not isinstance(model, Encoder | Decoder):
        raise OptionError(
            f"scores are split in encoders and decoders of texts, found a {type(model).__name__}"
        )
    count = len(recording.tokens)
    if count > MAX_TOKENS:
        raise OptionError(f"why is for texts of up to {MAX_TOKENS} tokens, this one has {count:,}")
    if max(query, key) >= count:
        raise OptionError(f"a link names token {max(query, key)} of {count}")
    if isinstance(model, Decoder) and key > query:
        raise OptionError(f"token {query} cannot see token {key}, which comes later")

    with pausing(job):
        split = why(recording, layer, head, query, key, model=model)
    strength = split.parts.abs().sum(0) + split.parts.abs().sum(1)
    order = sorted(strength.topk(min(SHOWN, len(strength))).indices.tolist())
    shown = split.parts[order][:, order]
    text = recording.text
    return {
        "query": split.query,
        "key": split.key,
        "score": split.score,
        "reach": split.reach,
        "exact": split.reach.startswith("all sources"),
        "count": len(split.sources),
        "sources": [split.sources[at] for at in order],
        "parts": shown.tolist(),
        "rest": float(split.parts.sum() - shown.sum()),
        "strongest": split.strongest(LISTED),
        "python": (
            "import limelight as ll\n\n"
            f"rec = ll.look({text!r}, model={name!r})\n"
            f"why = ll.why(rec, {layer}, {head}, {query}, {key})\n"
            "print(why.score, why.strongest())\n"
        ),
    }
