"""A text that may be longer than a model's context, looked at in one window or in several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from limelight.errors import OptionError, UnavailableError
from limelight.models.loading.pretrained import Model
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import LENS
from limelight.seeing.look import look_inside
from limelight.seeing.recording.recording import Recording

_SEARCH = 64
"""How far to look for the edge of a word: some scripts have none."""


class Window(NamedTuple):
    """Tokens `first` to `last` (not included) of a text, and what was seen of them."""

    first: int
    last: int
    total: int
    """tokens in the whole text, without those that the tokenizer adds"""
    recording: Recording


def look_in_windows(
    model: Model, text: str, stride: int | None = None, lens: Lens = LENS
) -> list[Window]:
    """Look at as much of a text as the model takes at once; with a stride, at all of it.

    Args:
        model: with its tokenizer.
        text: of any length.
        stride: windows begin this many tokens apart, each as long as the context allows. None
            takes the first window only.
        lens: what to note.

    >>> import limelight as ll
    >>> model = ll.load("minilm")
    >>> [(one.first, one.last) for one in look_in_windows(model, "tick tock " * 300, stride=400)]
    [(0, 510), (400, 900)]
    """
    if model.tokens is None:
        raise UnavailableError("this model came without a tokenizer: it cannot read a text")
    encoded = model.tokens.encode(text)
    spans = [span for span in encoded.spans if span[1] > span[0]]
    room = model.config.context - (len(encoded.spans) - len(spans))
    if stride is not None and not 0 < stride <= room:
        raise OptionError(f"stride must be 1 to {room}, a window's tokens, found {stride}")
    if stride is None or len(spans) <= room:
        taken = min(room, len(spans))
        recording = look_inside(model, model.tokens, text, None, lens)
        return [Window(0, taken, len(spans), recording)]
    starts = _starts(len(spans), room, stride)
    return [_window(model, text, spans, first, room, lens) for first in starts]


def _starts(total: int, room: int, stride: int) -> list[int]:
    """Where windows begin, until one reaches the end."""
    starts = [0]
    while starts[-1] + room < total:
        starts.append(starts[-1] + stride)
    return starts


def _window(
    model: Model, text: str, spans: Sequence[tuple[int, int]], first: int, room: int, lens: Lens
) -> Window:
    """The window that begins at a token, or rather at the next word, so that its tokens stay."""
    last = min(first + room, len(spans))
    if last < len(spans):
        last = _word_edge(text, spans, range(last, max(first + 1, last - _SEARCH), -1))
    if first > 0:
        first = _word_edge(text, spans, range(first, min(last - 1, first + _SEARCH)))
    part = text[spans[first][0] : spans[last - 1][1]]
    assert model.tokens is not None
    recording = look_inside(model, model.tokens, part, None, lens)
    return Window(first, last, len(spans), recording)


def _word_edge(text: str, spans: Sequence[tuple[int, int]], places: range) -> int:
    """The first of these tokens before which there is a space; else the first of them."""
    for place in places:
        start = spans[place][0]
        if text[start - 1].isspace() or text[start].isspace():
            return place
    return places.start
