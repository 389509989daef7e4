"""A recording read by words instead of tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token, word_indices, words


def merge_words(recording: Recording) -> Recording:
    """The recording with a token for each word and `word_weights` in place of its weights.

    Rows still sum to one. The merged weights are dense, so this is for short texts.
    """
    same = recording.queries is recording.tokens
    return replace(
        recording,
        tokens=_word_tokens(recording.tokens, recording.text),
        queries=() if same else _word_tokens(recording.queries, recording.query_text),
        layers=tuple(
            Seen.of_weights(word_weights(recording, seen.dense()), _without_values(seen))
            for seen in recording.layers
        ),
        flows=(),
        windows=(),
        made={**recording.made, "merged": "tokens merged to words"},
    )


def word_weights(recording: Recording, weights: Tensor) -> Tensor:
    """Weights `… i j` by words, `… u v`: summed over a word's keys, averaged over its queries.

    merged_uv = 1/|u| Σ_{i in word u} Σ_{j in word v} weights_ij
    """
    rows, columns = (
        torch.tensor(word_indices(tokens), dtype=torch.int64, device=weights.device)
        for tokens in (recording.queries, recording.tokens)
    )
    sizes, count = rows.bincount(), len(columns.unique())
    summed = weights.new_zeros(*weights.shape[:-1], count).index_add_(-1, columns, weights)
    merged = summed.new_zeros(*weights.shape[:-2], len(sizes), count).index_add_(-2, rows, summed)
    return merged / sizes[:, None]


def has_merged_words(recording: Recording) -> bool:
    """Whether some word has several tokens."""
    sides = (recording.queries, recording.tokens)
    return any(len(words(tokens)) < len(tokens) for tokens in sides)


def _word_tokens(tokens: tuple[Token, ...], text: str) -> tuple[Token, ...]:
    merged: list[Token] = []
    for number, group in enumerate(words(tokens)):
        first, last = tokens[group[0]], tokens[group[-1]]
        shown = text[first.start : last.end] or "".join(tokens[index].text for index in group)
        merged.append(Token(shown, first.start, last.end, number, first.special))
    return tuple(merged)


def _without_values(seen: Seen) -> Lens:
    """The lens for merged weights, which have no values of their own to be weighed by."""
    size = seen.extent.j
    columns = tuple(column for column in seen.lens.columns if column == 0 and size)
    return replace(seen.lens, value_top=0, keep=True, columns=columns)
