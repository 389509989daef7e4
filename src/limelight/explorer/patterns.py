"""Simple attention patterns: the share of each head's weight, in one text, that follows each."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.seeing.recording.recording import Recording

MAX_TOKENS = 512
"""Of a longer text, going over all weights of all heads takes longer than reading it."""

PATTERNS = ["previous", "self", "next", "first", "same", "after same"]
"""Attention to the previous token; the token itself; the next one; the first one (a sink); earlier
occurrences of the same token; and the tokens after those (induction)."""


def patterns(recording: Recording, weights: Tensor | None) -> Tensor:
    """The mean share of a query's weight that follows each pattern: `l h p`.

    Zeros for attention between two texts (cross-attention), which has no such patterns.

    Args:
        recording: what was seen.
        weights: `l h i j`, if they are computed already.
    """
    layers, heads = len(recording.layers), len(recording.head_numbers)
    shares = torch.zeros(layers, heads, len(PATTERNS))
    if recording.queries is not recording.tokens:
        return shares
    links = _pattern_links([token.text.casefold() for token in recording.tokens])
    for layer, seen in enumerate(recording.layers):
        tiles = seen.in_tiles() if weights is None else [(0, weights[layer, None])]
        for first, tile in tiles:
            tile = tile[0].float().cpu()
            last = first + tile.shape[1]
            for pattern, (queries, keys) in enumerate(links):
                if first or last < len(recording.queries):
                    inside = (queries >= first) & (queries < last)
                    queries, keys = queries[inside] - first, keys[inside]
                shares[layer, :, pattern] += tile[:, queries, keys].sum(-1)
    counts = torch.tensor([max(1, len(queries.unique())) for queries, _ in links])
    return shares / counts


def _pattern_links(texts: list[str]) -> list[tuple[Tensor, Tensor]]:
    """For each pattern the queries and the keys of its links."""
    n = len(texts)
    earlier: dict[str, list[int]] = {}
    same: list[tuple[int, int]] = []
    after_same: list[tuple[int, int]] = []
    for i, text in enumerate(texts):
        for j in earlier.get(text, [])[-32:]:
            same.append((i, j))
            if j + 1 < i:
                after_same.append((i, j + 1))
        earlier.setdefault(text, []).append(i)
    by_pattern = [
        [(i, i - 1) for i in range(1, n)],
        [(i, i) for i in range(n)],
        [(i, i + 1) for i in range(n - 1)],
        [(i, 0) for i in range(1, n)],
        same,
        after_same,
    ]
    return [_columns(pairs) for pairs in by_pattern]


def _columns(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(pairs, dtype=torch.long).view(-1, 2)
    return table[:, 0], table[:, 1]
