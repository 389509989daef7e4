"""The why panel: a score split by the sources of its query and its key."""

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
"""Every source has a vector for every token, and a deep model has hundreds of sources."""
MATRIX_SOURCES = 24
"""Sources in the matrix; all other pairs are summed."""
LISTED_PARTS = 12


def score_parts(
    model: Model, recording: Recording, name: str, layer: int, head: int, query: int, key: int,
    job: Job,
) -> dict[str, Any]:  # fmt: skip
    """The parts of one link's score, as `limelight.why` finds them.

    `sources` and `parts` are those of the strongest `MATRIX_SOURCES`, in the model's order; `rest`
    is the sum of all other pairs, so that parts and rest add up to the score. `name` is what Python
    loads the model by.
    """
    if not isinstance(model, Encoder | Decoder):
        raise OptionError(
            f"scores are split in text encoders and decoders, found a {type(model).__name__}"
        )
    count = len(recording.tokens)
    if count > MAX_TOKENS:
        raise OptionError(f"why is for texts of up to {MAX_TOKENS} tokens, this one has {count:,}")
    if max(query, key) >= count:
        raise OptionError(
            f"query and key must be tokens from 0 to {count - 1}, found {max(query, key)}"
        )
    if isinstance(model, Decoder) and key > query:
        raise OptionError(f"token {query} cannot attend to token {key}, which comes later")

    with pausing(job):
        split = why(recording, layer, head, query, key, model=model)
    strength = split.parts.abs().sum(0) + split.parts.abs().sum(1)
    strongest = sorted(strength.topk(min(MATRIX_SOURCES, len(strength))).indices.tolist())
    parts = split.parts[strongest][:, strongest]
    return {
        "query": split.query,
        "key": split.key,
        "score": split.score,
        "reach": split.reach,
        "exact": split.reach.startswith("all sources"),
        "count": len(split.sources),
        "sources": [split.sources[index] for index in strongest],
        "parts": parts.tolist(),
        "rest": float(split.parts.sum() - parts.sum()),
        "strongest": split.strongest(LISTED_PARTS),
        "python": (
            "import limelight as ll\n\n"
            f"rec = ll.look({recording.text!r}, model={name!r})\n"
            f"why = ll.why(rec, {layer}, {head}, {query}, {key})\n"
            "print(why.score, why.strongest())\n"
        ),
    }
