"""Files to save: the page as HTML, the weights of a head as JSON."""

from __future__ import annotations

from json import dumps
from typing import Any

from limelight.errors import OptionError
from limelight.insight.salience import opening
from limelight.seeing.recording.recording import Recording
from limelight.views.page.document import file_parts, header
from limelight.views.page.html import page

MAX_TOKENS = 1024
"""Of a text whose weights are saved as JSON."""


def html_file(recording: Recording, layer: int, head: int) -> str:
    """The self-contained page, as `recording.save("attention.html")` writes it."""
    choice = opening(recording, layer, head)
    return "".join(page(header(recording, layer, head), file_parts(recording, choice)))


def json_file(recording: Recording, layer: int, head: int) -> str:
    """The tokens, and the weights of one head with all digits."""
    count = max(len(recording.queries), len(recording.tokens))
    if count > MAX_TOKENS:
        raise OptionError(f"JSON is for up to {MAX_TOKENS:,} tokens, this text has {count:,}")
    document: dict[str, Any] = {
        "model": recording.model,
        "text": recording.text,
        "tokens": [token.text for token in recording.tokens],
        "layer": layer,
        "head": head,
        "weights": recording.weights(layer, head).tolist(),
    }
    return dumps(document)
