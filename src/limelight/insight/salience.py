"""What is worth showing of a recording: background tokens, strong links, the link a view opens at.

Everything is read from what the lens noted of each query (its top links, entropy, distance) and of
each key (what it receives): one `Summary` per recording, in memory linear in the text. A search
over all links is exact all the same. A link that was not noted weighs at most as much as the least
that was noted of its row, so only rows where that could matter are recomputed: hardly ever one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from limelight.checks import check_whole
from limelight.errors import UnavailableError
from limelight.ops.backends.tiled import TILE
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Joined
from limelight.seeing.choice import LENS
from limelight.seeing.recording.recording import Link, Recording, Strongest
from limelight.seeing.recording.tokens import Token, word_at

FAR = 64
"""Words beyond which a link is as far as any: reach must not win over weight in a long text."""
AROUND = 64
"""Tokens on either side that one is compared with: what is near stands alike among the queries."""
FEW = 2
"""Links of one head among those worth a look, at most."""
FUNCTION = 0.5
"""What a link counts for each of its ends that is a function word."""
# Articles, prepositions, conjunctions, particles and auxiliaries; no pronouns, which stand for what
# they look at.
_ENGLISH = (
    "a an the of to in on at by for from with into onto over under as than about after before "
    "between through during without within and or but nor so yet because although though while "
    "whereas if unless until when not no do does did doesn don didn t s be been being am is was "
    "has had have will would can could shall should may might must too also just"
)
_GERMAN = (
    "der die das dem den des ein eine einen einem einer eines und oder aber denn weil dass wenn "
    "als ob zu im in am an auf aus bei mit nach von vor für über unter durch ohne um bis nicht "
    "auch nur noch"
)
FUNCTION_WORDS = frozenset(f"{_ENGLISH} {_GERMAN}".split())
_LISTED = 64
"""Links that are listed at once, so that a view which asks for a few more finds them ready."""
_PRIOR = 2.0
"""Imagined queries that ignore a key or an offset: a mean over one or two others says little."""


class Noted(NamedTuple):
    """What a lens noted of one layer; no weight in it is NaN."""

    weights: Tensor
    """h i k: each query's strongest links, strongest first"""
    keys: Tensor
    """h i k, −1 where there is none"""
    received: Tensor
    """h j"""
    entropy: Tensor
    """h i, in nats"""
    distance: Tensor
    """h i, in tokens"""


class HeadLinks(NamedTuple):
    """The strongest link of every head, background left out: `layers heads` each."""

    weight: Tensor
    query: Tensor
    """−1 where a head has no such link"""
    key: Tensor


_Value = Callable[["_Links"], Tensor]
"""How much a link is worth; nothing or less for links that do not count."""


class _Links(NamedTuple):
    """Some links of one layer."""

    layer: int
    """its position among the recorded"""
    heads: slice
    """their positions"""
    rows: Tensor
    """r: the queries"""
    keys: Tensor
    """h r k, −1 where there is none"""
    weights: Tensor
    """h r k"""


_summaries: WeakKeyDictionary[Recording, Summary] = WeakKeyDictionary()


def summary(recording: Recording) -> Summary:
    """What is worth showing of a recording, worked out once however many views ask."""
    if recording not in _summaries:
        _summaries[recording] = Summary.of(recording)
    return _summaries[recording]


@dataclass(frozen=True, eq=False)
class Summary:
    """What the lens noted of a recording, and what follows from it."""

    layers: tuple[Noted, ...]
    sinks: frozenset[int]
    """keys that are looked at for want of anything better"""
    background: frozenset[int]
    """keys that would drown the others and say little: sinks, special tokens, punctuation"""
    asks: Tensor
    """i: which queries are neither special nor punctuation"""
    answers: Tensor
    """j: which keys are no background"""
    ask_worth: Tensor
    """i: 1, or less for function words"""
    answer_worth: Tensor
    """j: alike"""
    seeing: Tensor
    """j: how many queries may see each key"""
    words: Tensor | None
    """n: the word of each token; None between two texts, which have no distance"""
    _lists: dict[tuple[int | None, int | None], list[Link]] = field(default_factory=dict)
    """the most salient links that were asked for, by layer and head"""
    best: HeadLinks | None = None
    """the strongest link of every head, once `head_links` was asked"""

    @classmethod
    def of(cls, recording: Recording) -> Summary:
        """By what the lens noted, or in one sweep over the weights where it noted less."""
        layers = tuple(_noted(seen) for seen in recording.layers)
        sinks = _sinks(recording, layers)
        separators = {j for j, token in enumerate(recording.tokens) if token.separates}
        background = sinks | separators
        asks = [not (token.special or token.separates) for token in recording.queries]
        answers = [j not in background for j in range(len(recording.tokens))]
        same = recording.queries is recording.tokens
        words = torch.tensor([token.word for token in recording.tokens]) if same else None
        seeing = _seeing(recording, same and _looks_back_only(layers))
        ask_worth, answer_worth = _worth(recording.queries), _worth(recording.tokens)
        return cls(
            layers, sinks, background, torch.tensor(asks), torch.tensor(answers),
            ask_worth, answer_worth, seeing, words,
        )  # fmt: skip

    @cached_property
    def entropy(self) -> Tensor:
        """How spread out a head looks, mean over its queries, in bits: `layers heads`."""
        return torch.stack([noted.entropy.mean(-1) / math.log(2) for noted in self.layers])

    @cached_property
    def distance(self) -> Tensor:
        """How far a head looks, mean over its queries, in tokens: `layers heads`."""
        return torch.stack([noted.distance.mean(-1) for noted in self.layers])

    @cached_property
    def received(self) -> Tensor:
        """What keys receive per query, mean over all layers and heads: `j`."""
        total = torch.stack([noted.received.mean(0) for noted in self.layers]).mean(0)
        return total / max(1, len(self.asks))

    def links(self, layer: int, heads: slice = slice(None)) -> _Links:
        """All links that were noted of a layer, or of some of its heads."""
        noted, rows = self.layers[layer], torch.arange(len(self.asks))
        return _Links(layer, heads, rows, noted.keys[heads], noted.weights[heads])

    def plain(self, links: _Links) -> Tensor:
        """Which links are worth showing: no background, and not between neighbouring words."""
        keys = links.keys.clamp_min(0)
        plain = (links.keys >= 0) & self.asks[links.rows, None] & self.answers[keys]
        if self.words is not None:
            plain &= (self.words[links.rows, None] - self.words[keys]).abs() > 1
        return plain

    def others(self, links: _Links) -> Tensor:
        """Which links are not worth showing, but are links: no token's look at itself."""
        others = (links.keys >= 0) & ~self.plain(links)
        return others if self.words is None else others & (links.keys != links.rows[:, None])

    def unexplained(self, links: _Links) -> Tensor:
        """Salience: the part of a weight that others do not explain, times its reach."""
        keys, weights = links.keys.clamp_min(0), links.weights
        expected = self._key_share(links, keys)
        reach = torch.ones(())
        if self.words is not None:
            expected = torch.maximum(expected, self._offset_share(links, keys))
            distance = (self.words[links.rows, None] - self.words[keys]).abs()
            reach = distance.clamp(1, FAR).float().log2()
        reach = reach * self.ask_worth[links.rows, None] * self.answer_worth[keys]
        return ((weights - expected) * reach).where(self.plain(links), 0.0)

    def _key_share(self, links: _Links, keys: Tensor) -> Tensor:
        """What the key gets of the other queries that may see it, on average: `h r k`."""
        received = self.layers[links.layer].received[links.heads]
        heads = torch.arange(received.shape[0])[:, None, None]
        others = (received[heads, keys] - links.weights).clamp_min(0.0)
        return others / (self.seeing[keys] - 1 + _PRIOR)

    def _offset_share(self, links: _Links, keys: Tensor) -> Tensor:
        """What other queries give to the key as far from them, or next to it: `h r k`."""
        size = len(self.asks)
        total = self._offsets[links.layer][links.heads]
        offset = links.rows[:, None] - keys
        heads = torch.arange(total.shape[0])[:, None, None]
        # offsets run from 1 − n to n − 1, with one cell to spare at either end
        here = offset + size
        own = (total[heads, here] - links.weights).clamp_min(0.0)
        near = torch.maximum(own, torch.maximum(total[heads, here - 1], total[heads, here + 1]))
        return near / (size - offset.abs() - 1 + _PRIOR)

    def salient_links(
        self, recording: Recording, n: int, layer: int | None, head: int | None
    ) -> list[Link]:
        """At least n links of greatest salience, where there are as many."""
        known = self._lists.get((layer, head))
        if known is None or len(known) < n > _LISTED:
            best = _greatest(
                recording, n, FEW, self.unexplained, layer, head,
                reach=math.log2(FAR), distinct=True,
            )  # fmt: skip
            known = self._lists[layer, head] = [link for _, link in best]
        return known

    @cached_property
    def _offsets(self) -> list[Tensor]:
        """The weight noted at each offset, added up over all queries: `h 2n+1` of each layer."""
        totals: list[Tensor] = []
        size = len(self.asks)
        for noted in self.layers:
            offset = torch.arange(size)[:, None] - noted.keys.clamp_min(0) + size
            total = torch.zeros(noted.keys.shape[0], 2 * size + 1)
            totals.append(total.scatter_add_(1, offset.flatten(1), noted.weights.flatten(1)))
        return totals

    @cached_property
    def least(self) -> list[Tensor]:
        """The most that a link which was not noted can weigh, by query: `h i` of each layer."""
        return [
            noted.weights[..., -1] if noted.keys.shape[-1] < len(self.answers)
            else torch.zeros(noted.keys.shape[:2])
            for noted in self.layers
        ]  # fmt: skip


def background(recording: Recording) -> frozenset[int]:
    """Keys that would drown the others and say little: sinks, special tokens, punctuation.

    >>> import limelight as ll
    >>> rec = ll.look("It rained, and they stayed.")
    >>> [rec.tokens[key].text for key in sorted(background(rec))]
    ['[CLS]', ',', '.', '[SEP]']
    """
    return summary(recording).background


def strongest(recording: Recording, n: int = 10) -> Strongest:
    """The n links of greatest weight over all recorded layers and heads.

    Links that crowd out everything else and say little are kept apart: those from or to background
    tokens, and those between tokens of one word or of neighbouring words. A token's look at itself
    is no link.
    """
    check_whole("n", n, 0)
    noted = summary(recording)

    def lists(which: Callable[[_Links], Tensor]) -> list[Link]:
        found = _greatest(recording, n, n, lambda some: some.weights.where(which(some), 0.0))
        return [link for _, link in found]

    return Strongest(lists(noted.plain), lists(noted.others))


def head_links(recording: Recording) -> HeadLinks:
    """The strongest link of every head, by weight, background left out."""
    noted = summary(recording)
    if noted.best is None:
        object.__setattr__(noted, "best", _head_links(recording, noted))
    assert noted.best is not None
    return noted.best


def _head_links(recording: Recording, noted: Summary) -> HeadLinks:
    shape = len(recording.layers), len(recording.head_numbers)
    best = HeadLinks(torch.zeros(shape), torch.full(shape, -1), torch.full(shape, -1))
    for position in range(shape[0]):
        found = _greatest_of_layer(
            recording, position, 1, lambda some: some.weights.where(noted.plain(some), 0.0)
        )
        for head, links in enumerate(found):
            for weight, query, key, _ in links[:1]:
                best.weight[position, head] = weight
                best.query[position, head], best.key[position, head] = query, key
    return best


def rule(layer: int | None = None, head: int | None = None) -> str:
    """The rule of `salient`, in words.

    >>> rule(layer=3).split("; ")[0].split(", ")[-1]
    'greatest over the heads of layer 3'
    """
    if layer is None:
        among = "all heads" if head is None else f"head {head} of all layers"
    else:
        among = f"the heads of layer {layer}" if head is None else f"layer {layer} head {head}"
    return (
        "(weight − what other tokens give to that key or at that offset) × log₂(distance in "
        f"words), greatest over {among}; background tokens left out, function words at half"
    )


def salient(recording: Recording, layer: int | None = None, head: int | None = None) -> Link | None:
    """The link that says most: strong, and not explained by its key, its offset or its nearness.

        salience_ij = (weights_ij − max(key_j, offset_{i−j})) · log₂ min(|word_i − word_j|, 64)

    Neighbours attend to one another in any model, some keys are looked at by everyone, and some
    heads look so many tokens back whatever stands there: weight alone would pick those. key_j is
    what the other queries that may see key j give to it on average, offset_δ what other queries
    give to the key δ before them or next to it (of the links noted). Neighbouring words count
    nothing, and the logarithm lets reach count without letting it win over weight: a link over 8
    words is worth as much as one over 2 that is three times as strong. Background tokens have no
    say, and function words (articles, prepositions, conjunctions, auxiliaries; English and German)
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
    """The n links of greatest salience, at most two of one head, no two between the same words."""
    check_whole("n", n, 0)
    return summary(recording).salient_links(recording, max(n, _LISTED), layer, head)[:n]


def salience(recording: Recording, link: Link) -> float:
    """The value by which `salient` chooses a link."""
    position = recording.layer_numbers.index(link.layer)
    head = recording.head_position(link.head)
    some = _Links(
        position,
        slice(head, head + 1),
        torch.tensor([link.query]),
        torch.tensor([[[link.key]]]),
        torch.tensor([[[link.weight]]]),
    )
    return float(summary(recording).unexplained(some))


def opening(recording: Recording, layer: int | None = None, head: int | None = None) -> Link:
    """The link that a view opens at: the most salient, else the first token's look at the first."""
    link = salient(recording, layer, head)
    if link is not None:
        return link
    layer = recording.layer_numbers[0] if layer is None else layer
    head = recording.head_numbers[0] if head is None else head
    noted = summary(recording).layers[recording.layer_numbers.index(layer)]
    position = recording.head_position(head)
    first = noted.weights[position, 0][noted.keys[position, 0] == 0]
    return recording.link(layer, head, 0, 0, float(first.sum()))


def receivers(recording: Recording, n: int = 8) -> list[tuple[int, float]]:
    """The keys that receive most, each with its share of all attention.

    Background tokens and function words are left out: they receive for want of anything better.

    share_j = Σ over layers, heads and queries of weights_ij / Σ over all keys
    """
    noted = summary(recording)
    total = torch.stack([layer.received.double().sum(0) for layer in noted.layers]).sum(0)
    share = total / total.sum().clamp_min(1e-30)
    telling = noted.answers & (noted.answer_worth == 1)
    best = (share * telling).topk(min(n, len(share)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(key, value) for key, value in pairs if value > 0]


def copies(recording: Recording, n: int = 6) -> list[Link]:
    """Repeats that are copied: a token looks at what followed the same token before.

    Strongest first, one for each word. Heads that do so (induction heads) continue a repeated
    passage. Olsson et al. 2022, https://arxiv.org/abs/2209.11895
    """
    noted = summary(recording)
    if noted.words is None:
        return []
    numbers: dict[str, int] = {}
    texts = [numbers.setdefault(token.text, len(numbers)) for token in recording.tokens]
    same = torch.tensor(texts)

    def follows(links: _Links) -> Tensor:
        before = links.keys - 1
        match = same[before.clamp_min(0)] == same[links.rows, None]
        # what stands next to a token repeats nothing
        past = (before >= 0) & (links.keys < links.rows[:, None] - 2)
        plain = noted.asks[links.rows, None] & noted.answers[links.keys.clamp_min(0)]
        return links.weights.where(match & past & plain, 0.0)

    best = _greatest(recording, 8 * n, 4 * n, follows)
    words: dict[tuple[str, str], Link] = {}
    for _, link in best:
        words.setdefault((link.asks, link.answers), link)
    return list(words.values())[:n]


def pooled(
    recording: Recording,
    layer: int,
    cells: tuple[int, int],
    *,
    background: bool = False,
    head: int | None = None,
) -> Tensor:
    """The strongest noted link in each of `rows × columns` cells, for every head: `h rows columns`.

    Of the eight strongest links of each query, say, rather than of all weights: what is missed is
    weaker than each of those eight. Query i lies in row ⌊i·R/I⌋, keys alike.

    Args:
        recording: what was seen.
        layer: its number.
        cells: how many rows and columns, at most.
        background: whether links to background tokens count.
        head: only the head at this position.
    """
    whole = summary(recording)
    noted = whole.layers[recording.layer_numbers.index(layer)]
    if head is not None:
        one = slice(head, head + 1)
        noted = noted._replace(keys=noted.keys[one], weights=noted.weights[one])
    queries, keys = len(whole.asks), len(whole.answers)
    rows, columns = min(cells[0], queries), min(cells[1], keys)
    counts = noted.keys >= 0
    if not background:
        counts = counts & whole.answers[noted.keys.clamp_min(0)]
    row = torch.arange(queries)[:, None] * rows // max(queries, 1)
    place = row * columns + noted.keys.clamp_min(0) * columns // max(keys, 1)
    empty = torch.zeros(noted.keys.shape[0], rows * columns)
    weights = noted.weights.where(counts, 0.0)
    result = empty.scatter_reduce_(1, place.flatten(1), weights.flatten(1), "amax")
    return result.unflatten(1, (rows, columns))


def _greatest(
    recording: Recording,
    n: int,
    per_head: int,
    value: _Value,
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
        found = _greatest_of_layer(recording, position, per_head, value, positions, least, reach)
        for name, links in zip(heads, found, strict=True):
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


def _greatest_of_layer(
    recording: Recording,
    position: int,
    count: int,
    value: _Value,
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
    found = [_best(links, values, head - (run.start or 0), count) for head in heads]
    if seen.source is None:
        return found
    enough = torch.tensor(
        [max(least, some[-1][3] if len(some) >= count else 0.0) for some in found]
    )
    short = noted.least[position][heads] * reach > enough[:, None]
    # all heads of a short text at once: a call for each would take most of the time
    together = short.numel() * seen.extent.j <= TILE
    for places in [range(len(heads))] if together else [[place] for place in range(len(heads))]:
        rows = short[places].any(0).nonzero()[:, 0]
        group = slice(heads[places[0]], heads[places[-1]] + 1)
        step = max(1, TILE // max(1, len(places) * seen.extent.j))
        for some in rows.split(step) if len(rows) else ():
            weights = _finite(seen.heads(range(group.start, group.stop)).rows(some)[0])
            keys = torch.arange(seen.extent.j).expand_as(weights)
            row_links = _Links(position, group, some, keys, weights)
            values = value(row_links)
            for at, place in enumerate(places):
                found[place] += _best(row_links, values, at, count)
    for place, links in enumerate(found):
        unique = {one[1:3]: one for one in sorted(links, key=lambda one: one[3])}
        found[place] = sorted(unique.values(), key=lambda one: -one[3])[:count]
    return found


def _best(
    links: _Links, values: Tensor, head: int, count: int
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


def _sinks(recording: Recording, layers: Sequence[Noted]) -> frozenset[int]:
    """Special tokens; the first token where it draws, over all layers and heads, more than four
    times what it would if each query spread its weight evenly over the keys it may see; and of a
    long text every token that draws more than six times the mean of all tokens, and than the median
    of those around it.
    """
    special = {j for j, token in enumerate(recording.tokens) if token.special}
    queries, keys = len(recording.queries), len(recording.tokens)
    if keys > 1 and queries > 1:
        share = float(torch.stack([noted.received[:, 0] for noted in layers]).mean()) / queries
        # A causal model's early queries see few keys: the first token's even share is larger.
        causal = _looks_back_only(layers)
        even = sum(1 / (i + 1) for i in range(queries)) / queries if causal else 1 / keys
        if share > min(4 * even, 0.5):
            special.add(0)
    if keys > 2 * AROUND:
        drawn = torch.stack([noted.received.double().sum(0) for noted in layers]).sum(0)
        near = torch.cat([drawn[:AROUND].flip(0), drawn, drawn[-AROUND:].flip(0)])
        usual = near.unfold(0, 2 * AROUND + 1, 1).median(-1).values
        special |= set((drawn > 6 * usual.clamp_min(drawn.mean())).nonzero()[:, 0].tolist())
    return frozenset(special)


def _worth(tokens: Sequence[Token]) -> Tensor:
    """1 for each token, less for a word that only holds others together: `n`."""
    return torch.tensor(
        [FUNCTION if word_at(tokens, k).casefold() in FUNCTION_WORDS
         or token.text.casefold() in FUNCTION_WORDS else 1.0 for k, token in enumerate(tokens)]
    )  # fmt: skip


def _seeing(recording: Recording, causal: bool) -> Tensor:
    """How many queries may see each key: all, those after it, or those of its windows: `j`."""
    queries, keys = len(recording.queries), len(recording.tokens)
    if causal:
        return torch.arange(queries, queries - keys, -1).float()
    source = recording.layers[0].source
    if not isinstance(source, Joined):
        return torch.full((keys,), float(queries))
    seeing = torch.zeros(keys)
    for part in source.segments:
        seeing[part.first_key : part.first_key + part.keys] += part.queries
    return seeing


def _looks_back_only(layers: Sequence[Noted]) -> bool:
    """Whether the first query looks at nothing but the first key, in the first layer."""
    return not bool((layers[0].keys[:, :1] > 0).any())


def _noted(seen: Seen) -> Noted:
    """What the lens noted, or what one sweep over the weights finds."""
    found = seen.statistics
    top, received, entropy, distance = found.top, found.received, found.entropy, found.distance
    if top is None or received is None or entropy is None or distance is None:
        if seen.source is None:
            raise UnavailableError(
                f"a recording that was made with {seen.lens!r} cannot be shown: without the "
                f"weights it takes {LENS!r}"
            )
        return _swept(seen)
    return Noted(
        _finite(top.weights[0]),
        top.indices[0].cpu(),
        _finite(received[0]),
        _finite(entropy[0]),
        _finite(distance[0]),
    )


def _swept(seen: Seen) -> Noted:
    """The same from the weights, some rows at a time."""
    _, h, i, j = seen.extent
    top: list[tuple[Tensor, Tensor]] = []
    received, entropy, distance = torch.zeros(h, j, dtype=torch.float64), [], []
    keys = torch.arange(j)
    for first, tile in seen.in_tiles():
        weights = _finite(tile[0])
        values, indices = weights.topk(min(LENS.top, j))
        top.append((values, indices.where(values > 0, -1)))
        received += weights.sum(1)
        entropy.append(torch.special.entr(weights).sum(-1))
        rows = torch.arange(first, first + weights.shape[1]) + j - i
        distance.append((weights * (rows[:, None] - keys).abs()).sum(-1))
    weights, indices = (torch.cat(parts, 1) for parts in zip(*top, strict=True))
    return Noted(weights, indices, received.float(), torch.cat(entropy, 1), torch.cat(distance, 1))


def _finite(numbers: Tensor) -> Tensor:
    """On the CPU, in float32, nothing where a model's numbers stopped being numbers."""
    numbers = numbers.float().cpu()
    # a copy only where it is needed: of a long text these are hundreds of megabytes
    return numbers if bool(numbers.isfinite().all()) else numbers.nan_to_num(0.0, 0.0, 0.0)
