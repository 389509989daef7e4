"""A text longer than a model reads at once, looked at in windows that end in one recording."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from limelight.errors import OptionError, UnavailableError
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model
from limelight.models.tokens import Encoded
from limelight.models.transformer import Transformer
from limelight.models.vision import VisionEncoder
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import LENS
from limelight.seeing.own_models import look_with_own_model
from limelight.seeing.recording.join import Piece, cut_out, join
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import place_tokens

_SEARCH = 64
"""How far to look for the edge of a word: some scripts have none."""

Progress = Callable[[int, int], None]
"""Called after each layer with how many are done, and of how many."""


class Reading(NamedTuple):
    """A text as a model read it, whole or in part."""

    recording: Recording
    total: int
    """tokens in the whole text, without those that the tokenizer adds"""
    taken: int
    """tokens of it that the recording holds"""
    windows: tuple[tuple[int, int], ...]
    """the first token of each window, and one past its last"""
    trained: int | None
    """tokens that the model was trained on at once, where it says so and windows follow it"""
    unknown: int
    """tokens of it that the model has no piece for, such as [UNK]"""


class _Window(NamedTuple):
    first: int
    last: int
    recording: Recording


def read(
    model: Model,
    text: str,
    stride: int | None = None,
    lens: Lens = LENS,
    progress: Progress | None = None,
) -> Reading:
    """Look at a text at once, or in windows where the model was trained on less, or by a stride.

    Each token is recorded in one window: for a model that reads both ways in the one where it
    stands farthest from an edge, for one that reads forward in the one where it sees most before
    it. Special tokens that open and close each window are left out of the joined recording.

    Args:
        model: with its tokenizer.
        text: of any length.
        stride: windows begin this many tokens apart. Unless given, windows overlap by half where
            the model says how many tokens it was trained on; other models take what fits their
            context.
        lens: what to note.
        progress: called after each layer.

    >>> import limelight as ll
    >>> reading = read(ll.load("minilm"), "tick tock " * 100)
    >>> reading.windows, len(reading.recording.tokens)
    (((0, 126), (63, 189), (126, 252), (189, 300)), 300)
    """
    if isinstance(model, VisionEncoder):
        raise OptionError("a VisionEncoder reads pictures, found a text")
    if model.tokens is None:
        raise UnavailableError("this model came without a tokenizer: it cannot read a text")
    if not text.strip():
        raise OptionError("text is empty: there is nothing to attend to")
    encoded = model.tokens.encode(text)
    spans = [span for span in encoded.spans if span[1] > span[0]]
    added, total = len(encoded.spans) - len(spans), len(spans)
    trained = _trained(model)
    size = min(model.config.context, trained or model.config.context) - added
    if stride is not None and not 0 < stride <= size:
        raise OptionError(f"stride must be 1 to {size}, a window's tokens, found {stride}")
    several = total > size and (stride is not None or trained is not None)
    if not several:
        taken = min(total, model.config.context - added)
        counter = _Counter(_layers(model), progress)
        with intercept(counter.count):
            recording = look_with_own_model(model, text, None, lens)
        return Reading(recording, total, taken, ((0, taken),), None, _unknown(model, encoded))
    starts = _starts(total, size, stride or max(1, size // 2))
    counter = _Counter(_layers(model) * len(starts), progress)
    with intercept(counter.count):
        windows = [_window(model, text, spans, first, size, lens) for first in starts]
    recording = _joined(model, text, encoded, windows)
    return Reading(
        recording,
        total,
        total,
        tuple((window.first, window.last) for window in windows),
        trained if stride is None else None,
        _unknown(model, encoded),
    )


def _unknown(model: Model, encoded: Encoded) -> int:
    """How many tokens stand for what the vocabulary does not know."""
    assert model.tokens is not None
    # tokenizers of other kinds (byte-level BPE) know every byte and have no such piece
    unknown = getattr(model.tokens.tokenizer.model, "unk_token", None)
    return 0 if unknown is None else encoded.pieces.count(unknown)


class _Counter:
    """Counts attention calls for a progress bar, and changes nothing."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def count(self, call: AttentionCall) -> Tensor:
        output = call.attend()
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)
        return output


def _layers(model: Model) -> int:
    return len((model.encoder if isinstance(model, Transformer) else model.stack).blocks)


def _trained(model: Model) -> int | None:
    """Tokens that the model was trained on at once, where its files say so: fewer than its context.

    Positions beyond them were never learned, and heads that follow positions go astray there.
    """
    assert model.tokens is not None
    limits = [model.tokens.trained, model.pooling.limit if isinstance(model, Encoder) else None]
    known = [limit for limit in limits if limit is not None and limit < model.config.context]
    return min(known, default=None)


def _starts(total: int, size: int, stride: int) -> list[int]:
    """Where windows begin, until one reaches the end."""
    starts = [0]
    while starts[-1] + size < total:
        starts.append(starts[-1] + stride)
    return starts


def _window(
    model: Model, text: str, spans: Sequence[tuple[int, int]], first: int, size: int, lens: Lens
) -> _Window:
    """The window that begins at a token, or rather at the next word, so that its tokens stay."""
    last = min(first + size, len(spans))
    if last < len(spans):
        last = _word_edge(text, spans, range(last, max(first + 1, last - _SEARCH), -1))
    if first > 0:
        first = _word_edge(text, spans, range(first, min(last - 1, first + _SEARCH)))
    part = text[spans[first][0] : spans[last - 1][1]]
    recording = look_with_own_model(model, part, None, lens)
    plain = sum(not token.special for token in recording.tokens)
    if plain != last - first:
        raise UnavailableError(
            f"the tokenizer reads tokens {first} to {last - 1} by themselves as {plain} tokens: "
            "this text cannot be looked at in windows"
        )
    return _Window(first, last, recording)


def _word_edge(text: str, spans: Sequence[tuple[int, int]], places: range) -> int:
    """The first of these tokens before which there is a space; else the first of them."""
    for place in places:
        start = spans[place][0]
        if text[start - 1].isspace() or text[start].isspace():
            return place
    return places.start


def _joined(model: Model, text: str, encoded: Encoded, windows: Sequence[_Window]) -> Recording:
    """One recording of the whole text; each window answers for the tokens that it sees best."""
    assert model.tokens is not None
    kept = [place for place, (start, end) in enumerate(encoded.spans) if end > start]
    tokens = place_tokens(
        text,
        [encoded.spans[place] for place in kept],
        [encoded.pieces[place] for place in kept],
        [encoded.ids[place] in model.tokens.special for place in kept],
    )
    forward = not isinstance(model, Encoder)
    owned = _owned(windows, len(tokens), forward)
    first = windows[0].recording
    layers = [
        join([_piece(window, rows, layer) for window, rows in zip(windows, owned, strict=True)])
        for layer in range(len(first.layers))
    ]
    lengths = max(window.last - window.first for window in windows)
    made = dict(first.made) | {
        "taken": f"all {len(tokens):,} tokens, in {len(windows)} windows of up to {lengths:,}"
    }
    return replace(
        first, text=text, tokens=tokens, queries=(), query_text="", layers=tuple(layers),
        flows=(), made=made,
    )  # fmt: skip


def _owned(windows: Sequence[_Window], total: int, forward: bool) -> list[range]:
    """The tokens that each window answers for."""
    edges = [0]
    for before, after in itertools.pairwise(windows):
        middle = (after.first + before.last) // 2
        edges.append(before.last if forward else max(edges[-1], middle))
    edges.append(total)
    return [range(*pair) for pair in itertools.pairwise(edges)]


def _piece(window: _Window, rows: range, layer: int) -> Piece:
    recording = window.recording
    opened = next(k for k, token in enumerate(recording.tokens) if not token.special)
    keys = range(opened, opened + window.last - window.first)
    shift = opened - window.first
    own = range(rows.start + shift, rows.stop + shift)
    return Piece(cut_out(recording.layers[layer], own, keys), window.first)
