"""Texts longer than a model reads at once: read in windows, joined into one recording."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from limelight.errors import OptionError, UnavailableError
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model
from limelight.models.tokens import Encoded, Tokens
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
"""Tokens searched for a word boundary; some scripts have none."""

MOST_CHARACTERS = 1 << 23
"""Characters of a text: each token takes some 400 bytes before the model runs."""
MOST_ROWS = 1 << 24
"""Rows of all layers and heads, some 120 bytes each: 233,000 tokens on 72 heads."""
MOST_SOURCE = 1 << 30
"""Bytes of queries, keys and values of all windows; beyond, only statistics are kept."""

ProgressCallback = Callable[[int, int], None]
"""Called after each layer with the number of layers done, and of all layers in all windows."""


class Reading(NamedTuple):
    """The recording of a text, and how much of the text it covers."""

    recording: Recording
    total: int
    """tokens in the whole text, without those that the tokenizer adds"""
    taken: int
    """tokens of it that the recording holds"""
    windows: tuple[tuple[int, int], ...]
    """the first token of each window, and one past its last"""
    trained: int | None
    """tokens per training sequence, where the model states it and the windows follow it"""
    unknown: int
    """tokens outside the vocabulary, such as [UNK]"""


class _TextWindow(NamedTuple):
    """Tokens read in one pass, and those of them that are recorded from this pass."""

    tokens: range
    recorded: range


def read(
    model: Model,
    text: str,
    stride: int | None = None,
    lens: Lens = LENS,
    progress: ProgressCallback | None = None,
) -> Reading:
    """Record a text of any length: in one pass, or in windows where the model takes fewer tokens.

    Each token is recorded in one window: by a decoder in the one where it has most tokens before
    it, by models that read both ways in the one where it is farthest from an edge. Special tokens
    that open and close each window are left out of the joined recording. Weights can be recomputed
    if queries, keys and values of all windows fit into `MOST_SOURCE`.

    Args:
        model: with its tokenizer.
        text: of any length.
        stride: windows begin this many tokens apart. Unless given, windows overlap by half where
            the model states how many tokens it was trained on; other models take what fits their
            context.
        lens: what to record.
        progress: called after each layer.

    >>> import limelight as ll
    >>> reading = read(ll.load("minilm"), "tick tock " * 100)
    >>> reading.windows, len(reading.recording.tokens)
    (((0, 126), (63, 189), (126, 252), (189, 300)), 300)
    """
    tokenizer = _tokenizer(model, text)
    encoded = tokenizer.encode(text)
    spans = [(start, end) for start, end in encoded.spans if end > start]
    added, total = len(encoded.spans) - len(spans), len(spans)
    trained, unknown = _trained_length(model), _count_unknown(tokenizer, encoded)
    size = min(model.config.context, trained or model.config.context) - added
    if stride is not None and not 0 < stride <= size:
        raise OptionError(f"stride must be 1 to {size}, a window's tokens, found {stride}")
    if total <= size or (stride is None and trained is None):
        taken = min(total, model.config.context - added)
        with intercept(_LayerCounter(_layers(model), progress).count):
            recording = look_with_own_model(model, text, None, lens)
        return Reading(recording, total, taken, ((0, taken),), None, unknown)
    taken = min(total, max(size, MOST_ROWS // (_layers(model) * model.config.heads)))
    tokens, spans = _text_tokens(tokenizer, text, encoded)[:taken], spans[:taken]
    windows = _windows(model, text, spans, size, stride or max(1, size // 2))
    with intercept(_LayerCounter(_layers(model) * len(windows), progress).count):
        recording = _look_in_windows(model, text[: spans[-1][1]], tokens, spans, windows, lens)
    return Reading(
        recording,
        total,
        taken,
        tuple((window.tokens.start, window.tokens.stop) for window in windows),
        trained if stride is None else None,
        unknown,
    )


def _tokenizer(model: Model, text: str) -> Tokens:
    """The model's tokenizer; an error if the model or the text cannot be read."""
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
    return model.tokens


def _count_unknown(tokenizer: Tokens, encoded: Encoded) -> int:
    """How many tokens are the vocabulary's unknown token."""
    # byte-level BPE encodes every byte and has no such token
    unknown = getattr(tokenizer.tokenizer.model, "unk_token", None)
    return 0 if unknown is None else encoded.pieces.count(unknown)


class _LayerCounter:
    """An interceptor that counts attention calls for a progress bar and changes nothing."""

    def __init__(self, total: int, progress: ProgressCallback | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def count(self, call: AttentionCall) -> Tensor:
        output = call.attend()
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)
        return output


def _layers(model: Model) -> int:
    return len((model.encoder if isinstance(model, Transformer) else model.stack).blocks)


def _trained_length(model: Model) -> int | None:
    """Tokens per training sequence, where the model's files state it and it is below the context.

    Positions beyond it were never trained, and heads that depend on positions fail there.
    """
    assert model.tokens is not None
    limits = [model.tokens.trained, model.pooling.limit if isinstance(model, Encoder) else None]
    known = [limit for limit in limits if limit is not None and limit < model.config.context]
    return min(known, default=None)


def _windows(
    model: Model, text: str, spans: Sequence[tuple[int, int]], size: int, stride: int
) -> list[_TextWindow]:
    """Windows over the whole text; between them they record each token once."""
    starts = [0]
    while starts[-1] + size < len(spans):
        starts.append(starts[-1] + stride)
    windows = [_window(text, spans, first, size) for first in starts]
    edges = [0]
    for before, after in itertools.pairwise(windows):
        middle = (after.start + before.stop) // 2
        edges.append(before.stop if isinstance(model, Decoder) else max(edges[-1], middle))
    edges.append(len(spans))
    recorded = itertools.starmap(range, itertools.pairwise(edges))
    return [_TextWindow(*pair) for pair in zip(windows, recorded, strict=True)]


def _window(text: str, spans: Sequence[tuple[int, int]], first: int, size: int) -> range:
    """A window from about this token, moved to word boundaries to be tokenized as in the text."""
    last = min(first + size, len(spans))
    if last < len(spans):
        last = _word_boundary(text, spans, range(last, max(first + 1, last - _SEARCH), -1))
    if first > 0:
        first = _word_boundary(text, spans, range(first, min(last - 1, first + _SEARCH)))
    return range(first, last)


def _word_boundary(text: str, spans: Sequence[tuple[int, int]], candidates: range) -> int:
    """The first of these tokens with a space before it; the first of all if none has one."""
    for token in candidates:
        start = spans[token][0]
        if text[start - 1].isspace() or text[start].isspace():
            return token
    return candidates.start


def _text_tokens(tokenizer: Tokens, text: str, encoded: Encoded) -> tuple[Token, ...]:
    """The tokens of the text, without those that the tokenizer adds."""
    kept = [index for index, (start, end) in enumerate(encoded.spans) if end > start]
    return place_tokens(
        text,
        [encoded.spans[index] for index in kept],
        [encoded.pieces[index] for index in kept],
        [encoded.ids[index] in tokenizer.special for index in kept],
    )


def _look_in_windows(
    model: Model,
    text: str,
    tokens: tuple[Token, ...],
    spans: Sequence[tuple[int, int]],
    windows: Sequence[_TextWindow],
    lens: Lens,
) -> Recording:
    """The windows, each read by itself, joined into one recording."""
    pieces: list[list[Piece]] = [[] for _ in range(_layers(model))]
    first: Recording | None = None
    keep = lens.keep
    for window in windows:
        recording = _look_at_window(model, text, spans, window, lens)
        if first is None:
            first = recording
            keep = keep and len(windows) * _source_size(recording) <= MOST_SOURCE
        # Cut at once: the tensors of all windows together may exceed the memory.
        for layer, layer_pieces in enumerate(pieces):
            piece = _piece(recording, layer, window)
            layer_pieces.append(piece if keep else without_source(piece))
    assert first is not None
    longest = max(len(window.tokens) for window in windows)
    made = {
        **first.made,
        "taken": f"{len(tokens):,} tokens, in {len(windows)} windows of up to {longest:,}",
    }
    if lens.keep and not keep:
        made["weights"] = "not kept for so many windows: only what the lens recorded"
    layers: list[Seen] = []
    while pieces:
        layers.append(join(pieces.pop(0)))
        trim_heap()
    return replace(
        first, text=text, tokens=tokens, queries=(), query_text="", layers=tuple(layers),
        flows=(), made=made,
        windows=tuple(
            Window(len(window.recorded), window.tokens.start, len(window.tokens))
            for window in windows
        ),
    )  # fmt: skip


def _look_at_window(
    model: Model, text: str, spans: Sequence[tuple[int, int]], window: _TextWindow, lens: Lens
) -> Recording:
    first, last = window.tokens[0], window.tokens[-1]
    recording = look_with_own_model(model, text[spans[first][0] : spans[last][1]], None, lens)
    count = sum(not token.special for token in recording.tokens)
    if count != len(window.tokens):
        raise UnavailableError(
            f"the tokenizer reads tokens {first} to {last} by themselves as {count} tokens: this "
            "text cannot be looked at in windows"
        )
    return recording


def _source_size(recording: Recording) -> int:
    """Bytes of the queries, keys and values that weights are recomputed from."""
    sources = [seen.source for seen in recording.layers]
    problems = [source.problem for source in sources if isinstance(source, Recomputed)]
    return sum(x.nbytes for each in problems for x in (each.query, each.key, each.value))


def _piece(recording: Recording, layer: int, window: _TextWindow) -> Piece:
    """What a layer saw of the tokens recorded from a window, without its special tokens."""
    opened = next(k for k, token in enumerate(recording.tokens) if not token.special)
    keys = range(opened, opened + len(window.tokens))
    shift = opened - window.tokens.start
    queries = range(window.recorded.start + shift, window.recorded.stop + shift)
    return Piece(cut_out(recording.layers[layer], queries, keys), window.tokens.start)
