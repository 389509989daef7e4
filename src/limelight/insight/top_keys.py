"""The keys that one query looked at most."""

from __future__ import annotations

import torch

from limelight.checks import check_whole
from limelight.seeing.recording.recording import Link, Recording

SINK = 0.3
"""A first token that draws more than this share of all attention is an attention sink."""


def top_keys(recording: Recording, n: int = 3, query: int = 0) -> list[Link]:
    """The n keys that a query looked at most, each in the head that gave it most.

    Special tokens, punctuation and spaces are left out, and so is the first token where it draws
    more than `SINK` of the attention of all heads: heads with nothing to look at rest there.

    Args:
        recording: seen through a lens with `top`, such as `stream` gives for each token.
        n: how many links, at most.
        query: index of the query.

    >>> import torch
    >>> weights = torch.tensor([[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.1, 0.7, 0.2]]])
    >>> from limelight.ops.lens.spec import Lens
    >>> rec = Recording.of_weights([weights], ["cats", "chase", "mice"], lens=Lens(top=3))
    >>> top_keys(rec, n=1, query=2)
    [mice → chase 0.700 (layer 0 head 0, tokens 2 → 1)]
    """
    check_whole("n", n, 0)
    heads = len(recording.head_numbers)
    size = len(recording.tokens)
    weights = torch.zeros(len(recording.layers) * heads, size)
    for position, seen in enumerate(recording.layers):
        recorded = seen.top.weights[0, :, query].float().cpu()
        keys = seen.top.indices[0, :, query].cpu()
        rows = weights[position * heads : (position + 1) * heads]
        # a key of -1 is no link and weighs 0
        rows.scatter_add_(1, keys.clamp_min(0), recorded)
    weights = weights.nan_to_num(0.0, 0.0, 0.0)
    excluded = [token.special or token.separates for token in recording.tokens]
    excluded[0] |= float(weights[:, 0].mean()) > SINK
    best, best_row = weights.max(0)
    best[torch.tensor(excluded)] = 0
    links: list[Link] = []
    for key in best.argsort(descending=True, stable=True)[:n].tolist():
        if best[key] > 0:
            position, head = divmod(int(best_row[key]), heads)
            layer, number = recording.layer_numbers[position], recording.head_numbers[head]
            links.append(recording.link(layer, number, query, key, float(best[key])))
    return links
