"""The links of greatest value in a recording, exact whatever the lens noted.

A link that was not noted weighs at most as much as the least that was noted of its row, so only
rows where that could matter are recomputed: hardly ever one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from limelight.insight.layer_statistics import finite
from limelight.insight.summary import Links, summary
from limelight.ops.backends.tiled import TILE
from limelight.seeing.recording.recording import Link, Recording

Value = Callable[["Links"], Tensor]
"""How much a link is worth; nothing or less for links that do not count."""


def top_links(
    recording: Recording,
    n: int,
    per_head: int,
    value: Value,
    layer: int | None = None,
    head: int | None = None,
    *,
    reach: float = 1.0,
    distinct: bool = False,
) -> list[tuple[float, Link]]:
    """The n links of greatest value, at most so many of one head, greatest first.

    A link's value is at most its weight times `reach`.
    """
    if not n:
        return []
    numbers = recording.layer_numbers if layer is None else (layer,)
    heads = recording.head_numbers if head is None else (head,)
    positions = [recording.head_position(number) for number in heads]
    listed: list[tuple[float, Link]] = []
    for number in numbers:
        recording.seen(number)
        position = recording.layer_numbers.index(number)
        # only what would be among the greatest so far can come from rows that must be recomputed
        least = listed[n - 1][0] if len(listed) >= n else 0.0
        by_head = top_links_of_layer(recording, position, per_head, value, positions, least, reach)
        for name, links in zip(heads, by_head, strict=True):
            listed += [
                (worth, recording.link(number, name, query, key, weight))
                for weight, query, key, worth in links
            ]
        listed.sort(key=lambda pair: -pair[0])
        if distinct:
            listed = _distinct(recording, listed)
        listed = listed[:n]
    return listed[:n]


def _distinct(
    recording: Recording, listed: Sequence[tuple[float, Link]]
) -> list[tuple[float, Link]]:
    """Of links between the same two words the first."""
    kept: dict[tuple[int, int], tuple[float, Link]] = {}
    for worth, link in listed:
        pair = recording.queries[link.query].word, recording.tokens[link.key].word
        kept.setdefault(pair, (worth, link))
    return list(kept.values())


def top_links_of_layer(
    recording: Recording,
    position: int,
    count: int,
    value: Value,
    heads: Sequence[int] | None = None,
    least: float = 0.0,
    reach: float = 1.0,
) -> list[list[tuple[float, int, int, float]]]:
    """The links of greatest value of some heads: weight, query, key and value, greatest first.

    Rows of which the lens noted too little to tell are recomputed: those where a link that it did
    not note could exceed both `least` and what was found in the head. A link's value is at most its
    weight times `reach`.
    """
    noted, seen = summary(recording), recording.layers[position]
    heads = range(seen.extent.h) if heads is None else heads
    run = slice(heads[0], heads[0] + 1) if len(heads) == 1 else slice(None)
    links = noted.links(position, run)
    values = value(links)
    by_head = [_best(links, values, head - (run.start or 0), count) for head in heads]
    if seen.source is None:
        return by_head
    enough = torch.tensor(
        [max(least, some[-1][3] if len(some) >= count else 0.0) for some in by_head]
    )
    short = noted.least[position][heads] * reach > enough[:, None]
    # all heads of a short text at once: a call for each would take most of the time
    together = short.numel() * seen.extent.j <= TILE
    for places in [range(len(heads))] if together else [[place] for place in range(len(heads))]:
        rows = short[places].any(0).nonzero()[:, 0]
        group = slice(heads[places[0]], heads[places[-1]] + 1)
        step = max(1, TILE // max(1, len(places) * seen.extent.j))
        for some in rows.split(step) if len(rows) else ():
            weights = finite(seen.heads(range(group.start, group.stop)).rows(some)[0])
            keys = torch.arange(seen.extent.j).expand_as(weights)
            row_links = Links(position, group, some, keys, weights)
            values = value(row_links)
            for at, place in enumerate(places):
                by_head[place] += _best(row_links, values, at, count)
    for place, links in enumerate(by_head):
        unique = {link[1:3]: link for link in sorted(links, key=lambda link: link[3])}
        by_head[place] = sorted(unique.values(), key=lambda link: -link[3])[:count]
    return by_head


def _best(
    links: Links, values: Tensor, head: int, count: int
) -> list[tuple[float, int, int, float]]:
    width = values.shape[2]
    best, places = values[head].flatten().topk(min(count, values[head].numel()))
    return [
        (
            float(links.weights[head, place // width, place % width]),
            int(links.rows[place // width]),
            int(links.keys[head, place // width, place % width]),
            worth,
        )
        for worth, place in zip(best.tolist(), places.tolist(), strict=True)
        if worth > 0
    ]
