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
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import LENS
from limelight.seeing.own_models import look_with_own_model
from limelight.seeing.recording.join import Piece, cut_out, join, without_source
from limelight.seeing.recording.offload import trim_heap
from limelight.seeing.recording.recording import Recording, Window
from limelight.seeing.recording.tokens import Token, place_tokens

_SEARCH = 64
"""How far to look for the edge of a word: some scripts have none."""

MOST_CHARACTERS = 1 << 23
"""Of a text: each token takes some 400 bytes before anything is read."""
MOST_ROWS = 1 << 24
"""Rows of all layers and heads, some 120 bytes each: 233,000 tokens on 72 heads."""
MOST_SOURCE = 1 << 30
"""Bytes of queries, keys and values; of windows that have more only statistics are kept."""

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


class _Part(NamedTuple):
    """Tokens that are looked at by themselves, and those of them that are recorded here."""

    first: int
    last: int
    own: range


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
    it. Special tokens that open and close each window are left out of the joined recording. Weights
    can be recomputed where the windows are few enough to keep what they come from (`MOST_SOURCE`).

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
    if len(text) > MOST_CHARACTERS:
        raise OptionError(
            f"text has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}; "
            "a part of it can be looked at"
        )
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
    taken = min(total, max(size, MOST_ROWS // (_layers(model) * model.config.heads)))
    tokens = _tokens(model, text, encoded)[:taken]
    spans = spans[:taken]
    parts = _parts(model, text, spans, size, stride or max(1, size // 2))
    counter = _Counter(_layers(model) * len(parts), progress)
    with intercept(counter.count):
        recording = _look_at_parts(model, text[: spans[-1][1]], tokens, spans, parts, lens)
    return Reading(
        recording,
        total,
        taken,
        tuple((part.first, part.last) for part in parts),
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


def _parts(
    model: Model, text: str, spans: Sequence[tuple[int, int]], size: int, stride: int
) -> list[_Part]:
    """Windows until one reaches the end, and the tokens that each answers for."""
    starts = [0]
    while starts[-1] + size < len(spans):
        starts.append(starts[-1] + stride)
    windows = [_window(text, spans, first, size) for first in starts]
    edges = [0]
    for before, after in itertools.pairwise(windows):
        middle = (after[0] + before[1]) // 2
        edges.append(max(edges[-1], middle) if isinstance(model, Encoder) else before[1])
    edges.append(len(spans))
    owned = itertools.pairwise(edges)
    return [_Part(*window, range(*own)) for window, own in zip(windows, owned, strict=True)]


def _window(text: str, spans: Sequence[tuple[int, int]], first: int, size: int) -> tuple[int, int]:
    """The window that begins at a token, or rather at the next word, so that its tokens stay."""
    last = min(first + size, len(spans))
    if last < len(spans):
        last = _word_edge(text, spans, range(last, max(first + 1, last - _SEARCH), -1))
    if first > 0:
        first = _word_edge(text, spans, range(first, min(last - 1, first + _SEARCH)))
    return first, last


def _word_edge(text: str, spans: Sequence[tuple[int, int]], places: range) -> int:
    """The first of these tokens before which there is a space; else the first of them."""
    for place in places:
        start = spans[place][0]
        if text[start - 1].isspace() or text[start].isspace():
            return place
    return places.start


def _tokens(model: Model, text: str, encoded: Encoded) -> tuple[Token, ...]:
    """The tokens of the text, without those that the tokenizer adds."""
    assert model.tokens is not None
    kept = [place for place, (start, end) in enumerate(encoded.spans) if end > start]
    return place_tokens(
        text,
        [encoded.spans[place] for place in kept],
        [encoded.pieces[place] for place in kept],
        [encoded.ids[place] in model.tokens.special for place in kept],
    )


def _look_at_parts(
    model: Model,
    text: str,
    tokens: tuple[Token, ...],
    spans: Sequence[tuple[int, int]],
    parts: Sequence[_Part],
    lens: Lens,
) -> Recording:
    """One recording of all parts, each of which answers for the tokens that it sees best."""
    pieces: list[list[Piece]] = [[] for _ in range(_layers(model))]
    first: Recording | None = None
    keep = lens.keep
    for part in parts:
        recording = _look_at_part(model, text, spans, part, lens)
        if first is None:
            first = recording
            keep = keep and len(parts) * _source_size(recording) <= MOST_SOURCE
        # Cut at once: all that the windows hold together may be larger than the memory.
        for layer, own in enumerate(pieces):
            piece = _piece(recording, layer, part)
            own.append(piece if keep else without_source(piece))
    assert first is not None
    longest = max(part.last - part.first for part in parts)
    made = {
        **first.made,
        "taken": f"{len(tokens):,} tokens, in {len(parts)} windows of up to {longest:,}",
    }
    if lens.keep and not keep:
        made["weights"] = "not kept of so many windows: only what the lens recorded"
    layers: list[Seen] = []
    while pieces:
        layers.append(join(pieces.pop(0)))
        trim_heap()
    return replace(
        first, text=text, tokens=tokens, queries=(), query_text="", layers=tuple(layers),
        flows=(), made=made,
        windows=tuple(Window(len(part.own), part.first, part.last - part.first) for part in parts),
    )  # fmt: skip


def _look_at_part(
    model: Model, text: str, spans: Sequence[tuple[int, int]], part: _Part, lens: Lens
) -> Recording:
    words = text[spans[part.first][0] : spans[part.last - 1][1]]
    recording = look_with_own_model(model, words, None, lens)
    plain = sum(not token.special for token in recording.tokens)
    if plain != part.last - part.first:
        raise UnavailableError(
            f"the tokenizer reads tokens {part.first} to {part.last - 1} by themselves as {plain} "
            "tokens: this text cannot be looked at in windows"
        )
    return recording


def _source_size(recording: Recording) -> int:
    """Bytes of the queries, keys and values that weights are recomputed from."""
    sources = [seen.source for seen in recording.layers]
    problems = [source.problem for source in sources if isinstance(source, Recomputed)]
    return sum(x.nbytes for each in problems for x in (each.query, each.key, each.value))


def _piece(recording: Recording, layer: int, part: _Part) -> Piece:
    opened = next(k for k, token in enumerate(recording.tokens) if not token.special)
    keys = range(opened, opened + part.last - part.first)
    shift = opened - part.first
    own = range(part.own.start + shift, part.own.stop + shift)
    return Piece(cut_out(recording.layers[layer], own, keys), part.first)
