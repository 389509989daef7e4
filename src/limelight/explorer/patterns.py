"""What kind of place each head looks at, in one text: the share of its weight that goes there."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.seeing.recording.recording import Recording

MAX_TOKENS = 512
"""Beyond, to go over all weights of all heads would take longer than to read the text."""

PATTERNS = ["previous", "self", "next", "first", "same", "after same"]
"""The token before; the token itself; the one after; the first token (a sink); the same token
earlier in the text; and the token that came after it (induction)."""


def patterns(recording: Recording, weights: Tensor | None) -> Tensor:
    """The mean share of a query's weight that goes to each kind of place: `l h p`.

    Between two texts (cross-attention) there are no such places: all zeros.

    Args:
        recording: what was seen.
        weights: `l h i j`, where they are known already.
    """
    layers, heads = len(recording.layers), len(recording.head_numbers)
    shares = torch.zeros(layers, heads, len(PATTERNS))
    if recording.queries is not recording.tokens:
        return shares
    places = _places([token.text.casefold() for token in recording.tokens])
    for layer, seen in enumerate(recording.layers):
        tiles = seen.in_tiles() if weights is None else [(0, weights[layer, None])]
        for first, tile in tiles:
            tile = tile[0].float().cpu()
            last = first + tile.shape[1]
            for kind, (queries, keys) in enumerate(places):
                if first or last < len(recording.queries):
                    inside = (queries >= first) & (queries < last)
                    queries, keys = queries[inside] - first, keys[inside]
                shares[layer, :, kind] += tile[:, queries, keys].sum(-1)
    counts = torch.tensor([max(1, len(queries.unique())) for queries, _ in places])
    return shares / counts


def _places(texts: list[str]) -> list[tuple[Tensor, Tensor]]:
    """For each kind the queries and the keys that count for it."""
    n = len(texts)
    before: dict[str, list[int]] = {}
    same: list[tuple[int, int]] = []
    after: list[tuple[int, int]] = []
    for i, text in enumerate(texts):
        for j in before.get(text, [])[-32:]:
            same.append((i, j))
            if j + 1 < i:
                after.append((i, j + 1))
        before.setdefault(text, []).append(i)
    pairs = [
        [(i, i - 1) for i in range(1, n)],
        [(i, i) for i in range(n)],
        [(i, i + 1) for i in range(n - 1)],
        [(i, 0) for i in range(1, n)],
        same,
        after,
    ]
    return [_columns(each) for each in pairs]


def _columns(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    both = torch.tensor(pairs, dtype=torch.long).view(-1, 2)
    return both[:, 0], both[:, 1]
