"""The highest-valued links of a recording, exact whatever the lens recorded.

A link is worth at most its weight times a known factor, so few have to be valued: of the links that
were recorded those that weigh enough, and of the others, each at most as heavy as the lightest that
was recorded of its row, those of rows where that could matter: hardly ever one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.insight.layer_statistics import finite
from limelight.insight.summary import LayerLinks, summary
from limelight.ops.backends.tiled import TILE
from limelight.seeing.recording.recording import Link, Recording, Window

Value = Callable[["LayerLinks"], Tensor]
"""How much each link is worth; nothing or less for links that do not count."""

SAMPLE = 1024
"""Links of a head, the heaviest, that are valued before it is known which others matter."""


class Ranked(NamedTuple):
    """One link of a head and what it is worth."""

    weight: float
    query: int
    key: int
    worth: float


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
    """The n highest-valued links, at most so many of one head, highest first.

    A link's value is at most its weight times `reach`.
    """
    if not n:
        return []
    numbers = recording.layer_numbers if layer is None else (layer,)
    heads = recording.head_numbers if head is None else (head,)
    positions = [recording.head_position(number) for number in heads]
    by_layer: dict[int, list[list[Ranked]]] = {}
    least, listed = 0.0, list[tuple[float, Link]]()
    # the recorded links of all layers come first: their values spare most rows of the second
    for complete in (False, True):
        for number in numbers:
            recording.seen(number)
            search = _Search(
                recording, recording.layer_numbers.index(number), positions, per_head, value,
                least, reach,
            )  # fmt: skip
            ranked = search.completed(by_layer[number]) if complete else search.recorded()
            by_layer[number] = ranked
            if complete:
                listed = [pair for pair in listed if pair[1].layer != number]
            listed += [
                (link.worth, recording.link(number, name, link.query, link.key, link.weight))
                for name, links in zip(heads, ranked, strict=True)
                for link in links
            ]
            listed.sort(key=lambda pair: -pair[0])
            if distinct:
                listed = _distinct(recording, listed)
            listed = listed[:n]
            least = listed[-1][0] if len(listed) == n else 0.0
    return listed


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
    recording: Recording, position: int, count: int, value: Value
) -> list[list[Ranked]]:
    """The highest-valued links of every head of a layer, highest first.

    A link's value is at most its weight.
    """
    heads = range(recording.layers[position].extent.h)
    search = _Search(recording, position, heads, count, value)
    return search.completed(search.recorded())


def _runs(recording: Recording) -> Iterator[tuple[range, range]]:
    """Queries and the keys that they see: of a long text window by window."""
    first = 0
    for window in recording.windows or [Window(len(recording.queries), 0, len(recording.tokens))]:
        keys = range(window.first_key, window.first_key + window.keys)
        yield range(first, first + window.queries), keys
        first += window.queries


@dataclass(frozen=True, eq=False)
class _Search:
    """What is looked for in some heads of a layer."""

    recording: Recording
    position: int
    """of the layer among the recorded"""
    heads: Sequence[int]
    """positions"""
    count: int
    """links of each head"""
    value: Value
    least: float = 0.0
    """what a link must be worth more than"""
    reach: float = 1.0
    """value / weight, at most"""

    def recorded(self) -> list[list[Ranked]]:
        """The best of the links that the lens recorded."""
        stats = summary(self.recording).layers[self.position]
        every = list(self.heads) == list(range(len(stats.weights)))
        chosen = slice(None) if every else list(self.heads)
        weights = stats.weights[chosen].flatten(1)
        keys = stats.keys[chosen].flatten(1)
        width = stats.weights.shape[-1]

        def links(heads: Tensor, places: Tensor) -> LayerLinks:
            return LayerLinks(
                self.position,
                torch.tensor(self.heads)[heads],
                places // width,
                keys[heads, places],
                weights[heads, places],
            )

        heaviest, places = weights, torch.arange(weights.shape[1]).expand_as(weights)
        if weights.shape[1] > SAMPLE:
            heaviest, places = weights.topk(SAMPLE)
        rows = torch.arange(len(self.heads))[:, None].expand_as(places)
        by_head = self._best(links(rows, places))
        if heaviest.shape[1] < weights.shape[1]:
            lighter = weights <= heaviest[:, -1:]
            others = (lighter & self._could_matter(weights, by_head)).flatten().nonzero()[:, 0]
            # in a text of one word all of them: valued at once, they would take gigabytes
            for some in others.split(TILE):
                count = weights.shape[1]
                by_head = self._better(by_head, links(some // count, some % count))
        return by_head

    def completed(self, by_head: list[list[Ranked]]) -> list[list[Ranked]]:
        """The same with all other links: rows where one could matter are recomputed."""
        seen = self.recording.layers[self.position]
        if seen.source is None:
            return by_head
        lightest = summary(self.recording).least[self.position][list(self.heads)]
        for queries, keys in _runs(self.recording):
            # all heads of a short run at once: a call for each would take most of the time
            together = len(self.heads) * len(queries) * len(keys) <= TILE
            every = range(len(self.heads))
            for group in [every] if together else [[at] for at in every]:
                self._complete(by_head, lightest, group, queries, keys)
        return by_head

    def _complete(
        self,
        by_head: list[list[Ranked]],
        lightest: Tensor,
        group: Sequence[int],
        queries: range,
        keys: range,
    ) -> None:
        """Put better links of some heads, of these queries to these keys, in their place."""
        seen, run = self.recording.layers[self.position], slice(queries.start, queries.stop)
        best = [by_head[at] for at in group]
        short = self._could_matter(lightest[group, run], best)
        rows = short.any(0).nonzero()[:, 0] + queries.start
        if not len(rows):
            return
        heads = [self.heads[at] for at in group]
        source = seen.heads(heads).source
        assert source is not None
        step = max(1, TILE // max(1, len(heads) * len(keys)))
        for block in rows.split(step):
            weights = finite(source.weights(block.to(seen.device), keys)[0])
            matter = self._could_matter(weights.flatten(1), best).view_as(weights)
            at, row, key = matter.nonzero(as_tuple=True)
            links = LayerLinks(
                self.position,
                torch.tensor(heads)[at],
                block[row],
                key + keys.start,
                weights[at, row, key],
            )
            best = self._better(best, links, heads)
        for at, links in zip(group, best, strict=True):
            by_head[at] = links

    def _could_matter(self, weights: Tensor, by_head: Sequence[Sequence[Ranked]]) -> Tensor:
        """Which of these weights `h x` may be worth more than the best of their head so far."""
        enough = [
            max(self.least, links[-1].worth if len(links) >= self.count else 0.0)
            for links in by_head
        ]
        return weights * self.reach > torch.tensor(enough)[:, None]

    def _best(self, links: LayerLinks) -> list[list[Ranked]]:
        """The best of as many links of each head, `h x`: all heads in one call."""
        values = self.value(links)
        worths, order = values.topk(min(self.count, values.shape[1]))
        columns = (
            *(part.gather(1, order) for part in (links.weights, links.queries, links.keys)),
            worths,
        )
        by_head = zip(*(column.tolist() for column in columns), strict=True)
        return [[link for link in map(Ranked, *head) if link.worth > 0] for head in by_head]

    def _better(
        self,
        by_head: Sequence[Sequence[Ranked]],
        links: LayerLinks,
        heads: Sequence[int] | None = None,
    ) -> list[list[Ranked]]:
        """The best of each head so far, and of these links."""
        values = self.value(links)
        better: list[list[Ranked]] = []
        for head, best in zip(self.heads if heads is None else heads, by_head, strict=True):
            own = ((links.heads == head) & (values > 0)).nonzero(as_tuple=True)
            worths, order = values[own].topk(min(self.count, len(own[0])))
            weights, queries, keys = (
                part[own][order].tolist() for part in (links.weights, links.queries, links.keys)
            )
            best = [*best, *map(Ranked, weights, queries, keys, worths.tolist())]
            unique = {(link.query, link.key): link for link in best}
            better.append(sorted(unique.values(), key=lambda link: -link.worth)[: self.count])
        return better
