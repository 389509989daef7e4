"""What is worth showing of a recording: strong links, and the link that a view opens at."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from limelight.checks import check_whole
from limelight.insight.summary import FAR, HeadLinks, LayerLinks, Summary, summary
from limelight.insight.top_links import top_links, top_links_of_layer
from limelight.seeing.recording.recording import Link, Recording, Strongest

PER_HEAD = 2
"""Links of one head among the most salient, at most."""

_CACHED = 64
"""Links that a search lists at least: a view that needs a few more does not search again."""


def strongest(recording: Recording, n: int = 10) -> Strongest:
    """The n strongest links over all recorded layers and heads.

    Links that would crowd out all others and say little are listed separately: those from or to
    background tokens, and those within a word or between neighbouring words. A token's weight on
    itself is not a link.
    """
    check_whole("n", n, 0)
    stats = summary(recording)

    def strongest_of(chosen: Callable[[LayerLinks], Tensor]) -> list[Link]:
        best = top_links(recording, n, n, lambda links: links.weights.where(chosen(links), 0.0))
        return [link for _, link in best]

    return Strongest(strongest_of(stats.plain), strongest_of(stats.others))


def head_links(recording: Recording) -> HeadLinks:
    """The strongest link of every head, by weight, background left out."""
    stats = summary(recording)
    if stats.best is None:
        object.__setattr__(stats, "best", _head_links(recording, stats))
    assert stats.best is not None
    return stats.best


def _head_links(recording: Recording, stats: Summary) -> HeadLinks:
    def plain_weights(links: LayerLinks) -> Tensor:
        return links.weights.where(stats.plain(links), 0.0)

    layers = range(len(recording.layers))
    best = [top_links_of_layer(recording, layer, 1, plain_weights) for layer in layers]
    # weight, query and key of the best link of each head, or none
    rows = [[links[0][:3] if links else (0.0, -1, -1) for links in by_head] for by_head in best]
    weight, query, key = torch.tensor(rows, dtype=torch.float64).unbind(-1)
    return HeadLinks(weight.float(), query.long(), key.long())


def rule(layer: int | None = None, head: int | None = None) -> str:
    """The rule of `salient`, in words.

    >>> rule(layer=3).split("; ")[0].split(", ")[-1]
    'highest over the heads of layer 3'
    """
    if layer is None:
        among = "all heads" if head is None else f"head {head} of all layers"
    else:
        among = f"the heads of layer {layer}" if head is None else f"layer {layer} head {head}"
    return (
        "(weight − what other tokens give to that key or at that offset) × log₂(distance in "
        f"words), highest over {among}; background tokens left out, function words at half"
    )


def salient(recording: Recording, layer: int | None = None, head: int | None = None) -> Link | None:
    """The most salient link: strong, and not explained by its key, its offset or its nearness.

        salience_ij = (weights_ij − max(key_j, offset_{i−j})) · log₂ min(|word_i − word_j|, 64)

    Neighbours attend to one another in any model, some keys draw weight from every query, and some
    heads look a fixed number of tokens back: weight alone would pick those. key_j is the mean
    weight that the other queries which may see key j give to it, offset_δ what other queries give
    to the key δ before them or next to it (of the recorded links). Links between neighbouring words
    count nothing, and the logarithm lets reach count without outweighing the weight: a link over 8
    words is worth as much as one over 2 that is three times as strong. Background tokens are left
    out, and function words (articles, prepositions, conjunctions, auxiliaries; English and German)
    count half. Between two texts (cross-attention) there is no distance.

    Args:
        recording: what was seen.
        layer: look in this layer only.
        head: look in this head only.

    Returns:
        The link, or None where no link is left to choose from.

    >>> import torch
    >>> weights = torch.tensor([[[.0, .9, .1], [.5, .0, .5], [.7, .3, .0]]])
    >>> rec = Recording.of_weights([weights], ["cats", "chase", "mice"])
    >>> tuple(salient(rec))[:4]
    (0, 0, 2, 0)
    """
    links = salient_links(recording, 1, layer, head)
    return links[0] if links else None


def salient_links(
    recording: Recording, n: int = 6, layer: int | None = None, head: int | None = None
) -> list[Link]:
    """The n most salient links, at most two of one head, no two between the same words."""
    check_whole("n", n, 0)
    stats = summary(recording)
    links = stats.salient.get((layer, head))
    if links is None or len(links) < n > _CACHED:
        best = top_links(
            recording, max(n, _CACHED), PER_HEAD, stats.unexplained, layer, head,
            reach=math.log2(FAR), distinct=True,
        )  # fmt: skip
        links = stats.salient[layer, head] = [link for _, link in best]
    return links[:n]


def salience(recording: Recording, link: Link) -> float:
    """The value that `salient` ranks links by."""
    position = recording.layer_numbers.index(link.layer)
    head = recording.head_position(link.head)
    heads, queries, keys = torch.tensor([[head], [link.query], [link.key]])
    links = LayerLinks(position, heads, queries, keys, torch.tensor([link.weight]))
    return float(summary(recording).unexplained(links))


def opening(recording: Recording, layer: int | None = None, head: int | None = None) -> Link:
    """The link that a view opens at: the most salient, else the first query's link to key 0."""
    link = salient(recording, layer, head)
    if link is not None:
        return link
    layer = recording.layer_numbers[0] if layer is None else layer
    head = recording.head_numbers[0] if head is None else head
    stats = summary(recording).layers[recording.layer_numbers.index(layer)]
    position = recording.head_position(head)
    first = stats.weights[position, 0][stats.keys[position, 0] == 0]
    return recording.link(layer, head, 0, 0, float(first.sum()))


def receivers(recording: Recording, n: int = 8) -> list[tuple[int, float]]:
    """The keys that receive most weight, each with its share of all attention.

    Background tokens and function words are left out: heads rest on them.

    share_j = Σ over layers, heads and queries of weights_ij / Σ over all keys
    """
    stats = summary(recording)
    total = torch.stack([layer.received.double().sum(0) for layer in stats.layers]).sum(0)
    share = total / total.sum().clamp_min(1e-30)
    informative = stats.content_keys & (stats.key_worth == 1)
    best = (share * informative).topk(min(n, len(share)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(key, value) for key, value in pairs if value > 0]


def copies(recording: Recording, n: int = 6) -> list[Link]:
    """Links of copying: a token looks at what followed an earlier occurrence of itself.

    Strongest first, one for each pair of words. Heads that do so (induction heads) continue a
    repeated passage. Olsson et al. 2022, https://arxiv.org/abs/2209.11895
    """
    stats = summary(recording)
    if stats.words is None:
        return []
    numbers: dict[str, int] = {}
    texts = torch.tensor(
        [numbers.setdefault(token.text, len(numbers)) for token in recording.tokens]
    )

    def follows(links: LayerLinks) -> Tensor:
        before = links.keys - 1
        match = texts[before.clamp_min(0)] == texts[links.queries]
        # a key next to the query is no repetition
        past = (before >= 0) & (links.keys < links.queries - 2)
        plain = stats.content_queries[links.queries] & stats.content_keys[links.keys.clamp_min(0)]
        return links.weights.where(match & past & plain, 0.0)

    best = top_links(recording, 8 * n, 4 * n, follows)
    distinct: dict[tuple[str, str], Link] = {}
    for _, link in best:
        distinct.setdefault((link.query_token, link.key_token), link)
    return list(distinct.values())[:n]


def pooled(
    recording: Recording,
    layer: int,
    cells: tuple[int, int],
    *,
    background: bool = False,
    head: int | None = None,
) -> Tensor:
    """The strongest recorded link in each of `rows × columns` cells: `h rows columns`.

    Only links that the lens recorded count, by default the eight strongest of each query: what is
    missed is weaker than each of those. Query i is in row ⌊i·R/I⌋, and keys are in columns alike.

    Args:
        recording: what was seen.
        layer: its number.
        cells: how many rows and columns, at most.
        background: whether links to background tokens count.
        head: only the head at this position.
    """
    overall = summary(recording)
    stats = overall.layers[recording.layer_numbers.index(layer)]
    if head is not None:
        only = slice(head, head + 1)
        stats = stats._replace(keys=stats.keys[only], weights=stats.weights[only])
    queries, keys = len(overall.content_queries), len(overall.content_keys)
    rows, columns = min(cells[0], queries), min(cells[1], keys)
    counts = stats.keys >= 0
    if not background:
        counts = counts & overall.content_keys[stats.keys.clamp_min(0)]
    row = torch.arange(queries)[:, None] * rows // max(queries, 1)
    cell = row * columns + stats.keys.clamp_min(0) * columns // max(keys, 1)
    empty = torch.zeros(stats.keys.shape[0], rows * columns)
    weights = stats.weights.where(counts, 0.0)
    maxima = empty.scatter_reduce_(1, cell.flatten(1), weights.flatten(1), "amax")
    return maxima.unflatten(1, (rows, columns))
