"""The highest-valued links of a recording, exact whatever the lens recorded.

A link is worth at most its weight times a known factor, so few links have to be valued: recorded
ones that are heavy enough, and unrecorded ones in rows where they could matter. An unrecorded link
weighs no more than the lightest recorded one of its row, so there is hardly ever such a row.
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
"""How many of a head's heaviest links are valued first: they tell which others could matter."""


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
    """The n highest-valued links, at most `per_head` of one head, highest first.

    A link's value is at most its weight times `reach`.
    """
    if not n:
        return []
    numbers = recording.layer_numbers if layer is None else (layer,)
    heads = recording.head_numbers if head is None else (head,)
    positions = [recording.head_position(number) for number in heads]
    by_layer: dict[int, list[list[Ranked]]] = {}
    least, listed = 0.0, list[tuple[float, Link]]()
    # the recorded links of all layers come first: they rule out most rows of the second pass
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
    """The first of the links between each two words."""
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
    """The search for the highest-valued links of some heads of a layer."""

    recording: Recording
    position: int
    """of the layer among the recorded ones"""
    heads: Sequence[int]
    """their positions among the recorded ones"""
    count: int
    """links of each head, at most"""
    value: Value
    least: float = 0.0
    """links worth no more than this do not count"""
    reach: float = 1.0
    """the bound of value / weight"""

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
            # in a text of one repeated word all of them matter, which at once would take gigabytes
            count = weights.shape[1]
            for chunk in others.split(TILE):
                by_head = self._better(by_head, links(chunk // count, chunk % count))
        return by_head

    def completed(self, by_head: list[list[Ranked]]) -> list[list[Ranked]]:
        """The best of all links: rows where an unrecorded one could matter are recomputed."""
        seen = self.recording.layers[self.position]
        if seen.source is None:
            return by_head
        bound = summary(self.recording).unrecorded_bound[self.position][list(self.heads)]
        for queries, keys in _runs(self.recording):
            # all heads of a short run at once: a call for each would take most of the time
            together = len(self.heads) * len(queries) * len(keys) <= TILE
            every = range(len(self.heads))
            for group in [every] if together else [[index] for index in every]:
                self._complete(by_head, bound, group, queries, keys)
        return by_head

    def _complete(
        self,
        by_head: list[list[Ranked]],
        bound: Tensor,
        group: Sequence[int],
        queries: range,
        keys: range,
    ) -> None:
        """Update the best links of a group of heads with those of these queries to these keys."""
        seen, run = self.recording.layers[self.position], slice(queries.start, queries.stop)
        best = [by_head[index] for index in group]
        candidates = self._could_matter(bound[group, run], best)
        rows = candidates.any(0).nonzero()[:, 0] + queries.start
        if not len(rows):
            return
        heads = [self.heads[index] for index in group]
        source = seen.heads(heads).source
        assert source is not None
        step = max(1, TILE // max(1, len(heads) * len(keys)))
        for block in rows.split(step):
            weights = finite(source.weights(block.to(seen.device), keys)[0])
            candidates = self._could_matter(weights.flatten(1), best).view_as(weights)
            head, row, key = candidates.nonzero(as_tuple=True)
            links = LayerLinks(
                self.position,
                torch.tensor(heads)[head],
                block[row],
                key + keys.start,
                weights[head, row, key],
            )
            best = self._better(best, links, heads)
        for index, links in zip(group, best, strict=True):
            by_head[index] = links

    def _could_matter(self, weights: Tensor, by_head: Sequence[Sequence[Ranked]]) -> Tensor:
        """Which of these weights `h x` may be worth more than the best of their head so far."""
        thresholds = [
            max(self.least, links[-1].worth if len(links) >= self.count else 0.0)
            for links in by_head
        ]
        return weights * self.reach > torch.tensor(thresholds)[:, None]

    def _best(self, links: LayerLinks) -> list[list[Ranked]]:
        """The best of these links `h x`, equally many of each head: all heads in one call."""
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
        """The best of each head, among those so far and these links."""
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
