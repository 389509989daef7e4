"""What a recording says without its weights: background tokens, and the value of links.

It is derived from what the lens recorded of each query (its top links, entropy, distance) and of
each key (what it receives): one `Summary` per recording, in memory linear in the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from limelight.insight.layer_statistics import LayerStatistics, layer_statistics
from limelight.seeing.recording.recording import Link, Recording
from limelight.seeing.recording.tokens import Token, words

FAR = 64
"""Greater distances, in words, count as this one: reach must not outweigh weight in a long text."""

AROUND = 64
"""Tokens on either side that a key is compared with: about as many queries may see them."""

FUNCTION = 0.5
"""The factor on a link's value for each of its ends that is a function word."""

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

_PRIOR = 2.0
"""Pseudo-queries that ignore a key or an offset: a mean over one or two others says little."""


class HeadLinks(NamedTuple):
    """The strongest link of every head, background left out: `layers heads` each."""

    weight: Tensor
    query: Tensor
    """−1 where a head has no such link"""
    key: Tensor


class LayerLinks(NamedTuple):
    """Some links of one layer, as tensors of one shape."""

    layer: int
    """its position among the recorded"""
    heads: Tensor
    """their positions"""
    queries: Tensor
    keys: Tensor
    """−1 where there is none"""
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Summary:
    """What the lens recorded, and what is derived from it."""

    layers: tuple[LayerStatistics, ...]
    sinks: frozenset[int]
    """attention sinks: keys that draw weight whatever their content"""
    background: frozenset[int]
    """keys whose weight hides the others' and says little: sinks, special tokens, punctuation"""
    content_queries: Tensor
    """i: which queries are neither special nor punctuation"""
    content_keys: Tensor
    """j: which keys are not background"""
    query_worth: Tensor
    """i: 1, or less for function words"""
    key_worth: Tensor
    """j: the same for keys"""
    seeing: Tensor
    """j: how many queries may see each key"""
    words: Tensor | None
    """n: the word of each token; None between two texts, which have no distance"""
    salient: dict[tuple[int | None, int | None], list[Link]] = field(default_factory=dict)
    """cached: the most salient links, by layer and head searched"""
    best: HeadLinks | None = None
    """cached: the strongest link of every head"""

    @classmethod
    def of(cls, recording: Recording) -> Summary:
        """From what the lens recorded; where that is too little, from a sweep over the weights."""
        layers = tuple(layer_statistics(seen) for seen in recording.layers)
        sinks = _sinks(recording, layers)
        separators = {j for j, token in enumerate(recording.tokens) if token.separates}
        background = sinks | separators
        content_queries = [not (token.special or token.separates) for token in recording.queries]
        content_keys = [j not in background for j in range(len(recording.tokens))]
        same = recording.queries is recording.tokens
        words = torch.tensor([token.word for token in recording.tokens]) if same else None
        seeing = _seeing(recording, same and _looks_back_only(layers))
        query_worth, key_worth = _worth(recording.queries), _worth(recording.tokens)
        return cls(
            layers, sinks, background, torch.tensor(content_queries), torch.tensor(content_keys),
            query_worth, key_worth, seeing, words,
        )  # fmt: skip

    @cached_property
    def entropy(self) -> Tensor:
        """How spread out a head looks, mean over its queries, in bits: `layers heads`."""
        return torch.stack([layer.entropy.mean(-1) / math.log(2) for layer in self.layers])

    @cached_property
    def distance(self) -> Tensor:
        """How far a head looks, mean over its queries, in tokens: `layers heads`."""
        return torch.stack([layer.distance.mean(-1) for layer in self.layers])

    @cached_property
    def received(self) -> Tensor:
        """What keys receive per query, mean over all layers and heads: `j`."""
        total = torch.stack([layer.received.mean(0) for layer in self.layers]).mean(0)
        return total / max(1, len(self.content_queries))

    def links(self, layer: int, head: int) -> LayerLinks:
        """All links that were recorded of a head, both by position: `i k`."""
        keys, weights = self.layers[layer].keys[head], self.layers[layer].weights[head]
        queries = torch.arange(len(self.content_queries))[:, None].expand_as(keys)
        return LayerLinks(layer, torch.full_like(keys, head), queries, keys, weights)

    def plain(self, links: LayerLinks) -> Tensor:
        """Which links are worth showing: no background, and not between neighbouring words."""
        keys = links.keys.clamp_min(0)
        plain = (links.keys >= 0) & self.content_queries[links.queries] & self.content_keys[keys]
        if self.words is not None:
            plain &= (self.words[links.queries] - self.words[keys]).abs() > 1
        return plain

    def others(self, links: LayerLinks) -> Tensor:
        """Which links are not `plain`; a token's weight on itself is not a link."""
        others = (links.keys >= 0) & ~self.plain(links)
        return others if self.words is None else others & (links.keys != links.queries)

    def unexplained(self, links: LayerLinks) -> Tensor:
        """Salience: the part of a weight that others do not explain, times its reach."""
        keys, weights = links.keys.clamp_min(0), links.weights
        expected = self._key_share(links, keys)
        reach = torch.ones(())
        if self.words is not None:
            expected = torch.maximum(expected, self._offset_share(links, keys))
            distance = (self.words[links.queries] - self.words[keys]).abs()
            reach = distance.clamp(1, FAR).float().log2()
        reach = reach * self.query_worth[links.queries] * self.key_worth[keys]
        return ((weights - expected) * reach).where(self.plain(links), 0.0)

    def _key_share(self, links: LayerLinks, keys: Tensor) -> Tensor:
        """The mean weight that the other queries which may see a key give to it."""
        received = self.layers[links.layer].received[links.heads, keys]
        others = (received - links.weights).clamp_min(0.0)
        return others / (self.seeing[keys] - 1 + _PRIOR)

    def _offset_share(self, links: LayerLinks, keys: Tensor) -> Tensor:
        """The mean weight that other queries give at the same offset, or at one next to it."""
        size, heads = len(self.content_queries), links.heads
        total, offset = self._offsets[links.layer], links.queries - keys
        # offsets run from 1 − n to n − 1, with one column to spare at either end
        column = offset + size
        same = (total[heads, column] - links.weights).clamp_min(0.0)
        next_to = torch.maximum(total[heads, column - 1], total[heads, column + 1])
        return torch.maximum(same, next_to) / (size - offset.abs() - 1 + _PRIOR)

    @cached_property
    def _offsets(self) -> list[Tensor]:
        """The weight recorded at each offset, added up over all queries: `h 2n+1` of each layer."""
        totals: list[Tensor] = []
        size = len(self.content_queries)
        for layer in self.layers:
            offset = torch.arange(size)[:, None] - layer.keys.clamp_min(0) + size
            total = torch.zeros(layer.keys.shape[0], 2 * size + 1)
            totals.append(total.scatter_add_(1, offset.flatten(1), layer.weights.flatten(1)))
        return totals

    @cached_property
    def unrecorded_bound(self) -> list[Tensor]:
        """The most that an unrecorded link of each query can weigh: `h i` of each layer."""
        return [
            layer.weights[..., -1] if layer.keys.shape[-1] < len(self.content_keys)
            else torch.zeros(layer.keys.shape[:2])
            for layer in self.layers
        ]  # fmt: skip


_summaries: WeakKeyDictionary[Recording, Summary] = WeakKeyDictionary()


def summary(recording: Recording) -> Summary:
    """The summary of a recording, computed once for all views."""
    if recording not in _summaries:
        _summaries[recording] = Summary.of(recording)
    return _summaries[recording]


def background(recording: Recording) -> frozenset[int]:
    """Keys whose weight hides the others' and says little: sinks, special tokens, punctuation.

    >>> import limelight as ll
    >>> rec = ll.look("It rained, and they stayed.")
    >>> [rec.tokens[key].text for key in sorted(background(rec))]
    ['[CLS]', ',', '.', '[SEP]']
    """
    return summary(recording).background


def _sinks(recording: Recording, layers: Sequence[LayerStatistics]) -> frozenset[int]:
    """Special tokens, and tokens that draw weight from queries with nothing better to look at.

    The first token, if over all layers and heads it draws more than half of the weight, or more
    than four times what even weights over visible keys would give it. In a long text each function
    word that draws more than six times the mean of all tokens and six times the median of those
    around it; other words that draw so much are what a reader looks for.
    """
    sinks = {j for j, token in enumerate(recording.tokens) if token.special}
    queries, keys = len(recording.queries), len(recording.tokens)
    if keys > 1 and queries > 1:
        share = float(torch.stack([layer.received[:, 0] for layer in layers]).mean()) / queries
        # A causal model's early queries see few keys: the first token's even share is larger.
        causal = _looks_back_only(layers)
        even = sum(1 / (i + 1) for i in range(queries)) / queries if causal else 1 / keys
        if share > min(4 * even, 0.5):
            sinks.add(0)
    if keys > 2 * AROUND:
        drawn = torch.stack([layer.received.double().sum(0) for layer in layers]).sum(0)
        padded = torch.cat([drawn[:AROUND].flip(0), drawn, drawn[-AROUND:].flip(0)])
        usual = padded.unfold(0, 2 * AROUND + 1, 1).median(-1).values
        is_sink = drawn > 6 * usual.clamp_min(drawn.mean())
        sinks |= set((is_sink & (_worth(recording.tokens) < 1)).nonzero()[:, 0].tolist())
    return frozenset(sinks)


def _worth(tokens: Sequence[Token]) -> Tensor:
    """1 for each token, less for function words: `n`."""
    worth = torch.ones(len(tokens))
    for places in words(tokens):
        word = "".join(tokens[place].text for place in places).casefold()
        for place in places:
            if word in FUNCTION_WORDS or tokens[place].text.casefold() in FUNCTION_WORDS:
                worth[place] = FUNCTION
    return worth


def _seeing(recording: Recording, causal: bool) -> Tensor:
    """How many queries may see each key: all, those after it, or those of its windows: `j`."""
    queries, keys = len(recording.queries), len(recording.tokens)
    if causal:
        return torch.arange(queries, queries - keys, -1).float()
    if not recording.windows:
        return torch.full((keys,), float(queries))
    seeing = torch.zeros(keys)
    for window in recording.windows:
        seeing[window.first_key : window.first_key + window.keys] += window.queries
    return seeing


def _looks_back_only(layers: Sequence[LayerStatistics]) -> bool:
    """Whether the first query looks at nothing but the first key, in the first layer."""
    return not bool((layers[0].keys[:, :1] > 0).any())
