"""The meaning panel: a word's path through the layers toward groups of words, by sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limelight.errors import OptionError
from limelight.explorer.pausing import pausing
from limelight.explorer.worker import Job
from limelight.insight.shift import TEMPLATE, shift
from limelight.models.loading.pretrained import Model
from limelight.models.vision import VisionEncoder

MAX_CHARACTERS = 4000
"""Of a sentence: documents are too long for this panel."""


def word_path(
    model: Model, name: str, word: str, sentences: Sequence[str],
    groups: Mapping[str, Sequence[str]], template: str | None, job: Job,
) -> dict[str, Any]:  # fmt: skip
    """The result of `limelight.shift`; `name` is what Python loads the model by."""
    if isinstance(model, VisionEncoder):
        raise OptionError("words are followed in text models, this one reads pictures")
    longest = max(map(len, sentences))
    if longest > MAX_CHARACTERS:
        raise OptionError(
            f"a word is followed in texts of up to {MAX_CHARACTERS:,} characters, "
            f"this one has {longest:,}"
        )

    toward = {group: list(members) for group, members in groups.items()}
    with pausing(job):
        shifted = shift(word, sentences, toward, model=model, template=template or TEMPLATE)
    template_argument = "" if template is None else f", template={template!r}"
    return {
        "word": shifted.word,
        "template": template or TEMPLATE,
        "sentences": shifted.sentences,
        "groups": list(shifted.groups),
        "similarity": shifted.similarity.tolist(),
        "paths": shifted.paths.tolist(),
        "ends": shifted.group_ends.tolist(),
        "nearest": [shifted.nearest(s) for s in range(len(sentences))],
        "sources": [shifted.sources(s) for s in range(len(sentences))],
        "tokens": shifted.tokens,
        "places": shifted.places,
        "took": [by_layer.sum(0).tolist() for by_layer in shifted.took],
        "python": (
            "import limelight as ll\n\n"
            f"groups = {toward!r}\n"
            f"shift = ll.shift({word!r}, {list(sentences)!r}, groups, "
            f"model={name!r}{template_argument})\n"
            "print(shift)\n"
        ),
    }
