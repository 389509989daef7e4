"""A recording read by words instead of tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token, words


def merge_words(recording: Recording) -> Recording:
    """Tokens of a word become one: weights to them are added, weights from them averaged.

        merged_uv = 1/|u| Σ_{i in word u} Σ_{j in word v} weights_ij

    Rows still sum to one. The merged weights are dense, so this is for texts one can read.
    """
    rows, row_words = _membership(recording.queries, recording.query_text)
    columns, column_words = _membership(recording.tokens, recording.text)
    layers: list[Seen] = []
    for seen in recording.layers:
        to = columns.to(seen.device, seen.dtype)
        out = rows.to(seen.device, seen.dtype)
        merged = (out / out.sum(1, keepdim=True)) @ seen.dense() @ to.T
        layers.append(Seen.of_weights(merged, _without_values(seen)))
    same = recording.queries is recording.tokens
    return replace(
        recording,
        tokens=column_words,
        queries=() if same else row_words,
        layers=tuple(layers),
        flows=(),
        made={**recording.made, "merged": "tokens merged to words"},
    )


def word_weights(recording: Recording, weights: Tensor) -> Tensor:
    """The weights of one head, `i j`, by words: added up to a word's tokens, averaged from them."""
    rows, columns = (
        torch.tensor(_places(tokens)) for tokens in (recording.queries, recording.tokens)
    )
    count = int(columns.max()) + 1 if len(columns) else 0
    summed = weights.new_zeros(weights.shape[0], count).index_add_(1, columns, weights)
    sizes = rows.bincount()
    added = weights.new_zeros(len(sizes), count).index_add_(0, rows, summed)
    return added / sizes[:, None]


def _places(tokens: tuple[Token, ...]) -> list[int]:
    """The word of each token, counted from 0."""
    places: dict[int, int] = {}
    return [places.setdefault(token.word, len(places)) for token in tokens]


def _membership(tokens: tuple[Token, ...], text: str) -> tuple[Tensor, tuple[Token, ...]]:
    """Which word each token belongs to, `words tokens`, and the words."""
    groups = words(tokens)
    belongs = torch.zeros(len(groups), len(tokens))
    merged: list[Token] = []
    for number, group in enumerate(groups):
        belongs[number, group] = 1
        first, last = tokens[group[0]], tokens[group[-1]]
        shown = text[first.start : last.end] or "".join(tokens[index].text for index in group)
        merged.append(Token(shown, first.start, last.end, number, first.special))
    return belongs, tuple(merged)


def _without_values(seen: Seen) -> Lens:
    """The lens for merged weights, which have no values of their own to be weighed by."""
    size = seen.extent.j
    columns = tuple(column for column in seen.lens.columns if column == 0 and size)
    return replace(seen.lens, value_top=0, keep=True, columns=columns)
