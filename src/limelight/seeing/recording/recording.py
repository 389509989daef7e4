"""A recording: a text's tokens, and what every layer and head of a model saw of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_whole, shape_text
from limelight.errors import OptionError, ShapeError
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.picks import Pick, find_tokens, single_picks
from limelight.seeing.recording.tokens import Token, plain_tokens

if TYPE_CHECKING:
    from limelight.seeing.steps.flow import Flow
    from limelight.seeing.steps.steps import Steps


class Link(NamedTuple):
    """A query looks at a key, in one head, with a weight."""

    layer: int
    head: int
    query: int
    key: int
    weight: float = float("nan")
    """not known unless it was seen"""


class Strongest(NamedTuple):
    """The links most worth showing, and those that say little, set apart."""

    links: list[Link]
    apart: list[Link]
    """links from or to sinks and separators, and between neighbouring words"""


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """What a model attended to: tokens, and a `Seen` for each recorded layer.

    Layers and heads are named by their numbers in the model, counted from 0, whether or not all of
    them were recorded. A recording never changes; views and files are made from it.

    >>> import torch
    >>> weights = torch.tensor([[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.1, 0.7, 0.2]]])
    >>> rec = Recording.of_weights([weights], ["cats", "chase", "mice"])
    >>> rec.top(layer=0, head=0, token="mice")[0][0]
    'chase'
    >>> rec
    Recording of 3 tokens, 1 layer x 1 head: 'cats chase mice'
    """

    text: str
    """the text that is looked at (its tokens are the keys)"""
    tokens: tuple[Token, ...]
    """the keys: columns of the weights"""
    layers: tuple[Seen, ...]
    """one for each recorded layer: `1 h i j`, h the recorded heads"""
    model: str = ""
    """the model's name"""
    made: Mapping[str, str] = field(default_factory=dict[str, str])
    """how the recording was made, in words: the lens, the versions, what was left out"""
    layer_numbers: tuple[int, ...] = ()
    """the number in the model of each recorded layer; all from 0 unless given"""
    head_numbers: tuple[int, ...] = ()
    """the number of each recorded head, the same in every layer; all from 0 unless given"""
    queries: tuple[Token, ...] = ()
    """the rows of the weights; the same as `tokens` in self-attention, which is the default"""
    query_text: str = ""
    """the text that looks; the same as `text` unless given"""
    flows: tuple[Flow, ...] = ()
    """what each layer took in and gave out, where it was kept: what `steps` is told from"""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not self.layers:
            raise OptionError("a recording needs at least one layer, found none")
        heads = self.layers[0].extent.h
        set_(self, "layer_numbers", self.layer_numbers or tuple(range(len(self.layers))))
        set_(self, "head_numbers", self.head_numbers or tuple(range(heads)))
        if not self.queries:
            set_(self, "queries", self.tokens)
            set_(self, "query_text", self.query_text or self.text)
        _check_numbers("layer_numbers", self.layer_numbers, len(self.layers))
        _check_numbers("head_numbers", self.head_numbers, heads)
        expected = (1, heads, len(self.queries), len(self.tokens))
        for number, seen in zip(self.layer_numbers, self.layers, strict=True):
            if tuple(seen.extent) != expected:
                raise ShapeError(
                    f"layer {number} was seen as (b, h, i, j) = {tuple(seen.extent)}, expected "
                    f"{expected}: 1, heads, {len(self.queries)} queries, {len(self.tokens)} tokens"
                )

    @classmethod
    def of_weights(
        cls,
        weights: Sequence[Tensor],
        words: Sequence[str],
        *,
        lens: Lens | None = None,
        model: str = "",
    ) -> Recording:
        """A recording of dense weights from elsewhere: `h n n` for each layer, and the words."""
        layers: list[Seen] = []
        for layer, one in enumerate(weights):
            if one.ndim != 3 or one.shape[1:] != (len(words), len(words)):
                raise ShapeError(
                    f"weights of layer {layer} have shape {shape_text(one)}, "
                    f"expected (h, n, n) with n = {len(words)} words"
                )
            layers.append(Seen.of_weights(one[None], lens))
        text, tokens = plain_tokens(words)
        return cls(text, tokens, tuple(layers), model)

    def seen(self, layer: int) -> Seen:
        """What was seen of a layer: `1 h i j`."""
        return self.layers[_position("layer", layer, self.layer_numbers)]

    def head_position(self, head: int) -> int:
        """Where a head's statistics stand on the head axis of each `Seen`."""
        return _position("head", head, self.head_numbers)

    def weights(self, layer: int, head: int) -> Tensor:
        """All weights of a head, exact: `i j`."""
        return self.seen(layer).heads([self.head_position(head)]).dense()[0, 0]

    def find(self, token: Pick, among: tuple[Token, ...] | None = None) -> list[int]:
        """The indices of a token, of a word made of several tokens, or of several of these.

        A text must be that of one token or one word only; where it occurs more often the message
        names the places, one of which can be given instead.
        """
        return find_tokens(token, self.tokens if among is None else among)

    def row(self, layer: int, head: int, token: Pick) -> Tensor:
        """What a token looks at: `j`. The mean over a word's tokens, the sum over several picks."""
        seen, position = self.seen(layer), self.head_position(head)
        total = torch.zeros(seen.extent.j, dtype=seen.dtype)
        for pick in single_picks(token):
            total += seen.rows(self.find(pick, self.queries))[0, position].mean(0).cpu()
        return total

    def top(self, layer: int, head: int, token: Pick, n: int = 8) -> list[tuple[str, float]]:
        """The n tokens that a token looks at most, strongest first, with their weights.

        A word made of several tokens asks with their mean; several tokens ask with their sum. Where
        the lens kept no weights, the links that it noted of one token answer, as many as there are.
        """
        check_whole("n", n, 0)
        seen, queries = self.seen(layer), self.find(token, self.queries)
        if seen.source is None and seen.statistics.top is not None and len(queries) == 1:
            weights, indices = (
                found[0, self.head_position(head), queries[0], :n] for found in seen.top
            )
        else:
            row = self.row(layer, head, token)
            weights, indices = row.topk(min(n, len(row)))
        pairs = zip(indices.tolist(), weights.tolist(), strict=True)
        return [(self.tokens[index].text, weight) for index, weight in pairs if weight > 0]

    def received(self, token: Pick | None = None) -> Tensor:
        """How much attention tokens get from all queries: `layers heads j`.

        With a token: `layers heads`, summed over the tokens of a word or over several picks.
        """
        received = torch.stack([_received(seen) for seen in self.layers])
        return received if token is None else received[..., self.find(token)].sum(-1)

    @cached_property
    def sinks(self) -> frozenset[int]:
        """Keys that are looked at for want of anything better.

        Special tokens; and the first token where it draws, over all layers and heads, more than
        four times what it would if each query spread its weight evenly over the keys it may see.
        """
        special = {j for j, token in enumerate(self.tokens) if token.special}
        queries, keys = len(self.queries), len(self.tokens)
        if keys > 1 and queries > 1:
            share = float(self.received()[..., 0].mean()) / queries
            # A causal model's early queries see few keys: the first token's even share is larger.
            causal = float(self.layers[0].rows([0])[..., 1:].sum()) < 1e-6
            even = sum(1 / (i + 1) for i in range(queries)) / queries if causal else 1 / keys
            if share > min(4 * even, 0.5):
                special.add(0)
        return frozenset(special)

    def strongest(self, n: int = 10) -> Strongest:
        """The n links of greatest weight over all recorded layers and heads.

        Links that crowd out everything else and say little are set apart: those from or to sinks
        and separators, and those between tokens of one word or of neighbouring words. A token's
        look at itself is no link.
        """
        check_whole("n", n, 0)
        chosen: tuple[list[Link], list[Link]] = ([], [])
        for number, seen in zip(self.layer_numbers, self.layers, strict=True):
            for first, tile in seen.in_tiles():
                weights, rows = tile[0].cpu(), slice(first, first + tile.shape[2])
                telling = self.tells(rows)
                apart = self._links(rows) & ~telling
                for wanted, found in zip((telling, apart), chosen, strict=True):
                    found += self._best(number, first, weights * wanted, n)
        best = [sorted(links, key=lambda one: -one.weight)[:n] for links in chosen]
        return Strongest(*best)

    @cached_property
    def set_apart(self) -> frozenset[int]:
        """Keys that would drown the others and say little: sinks, special tokens, punctuation."""
        return self.sinks | {j for j, token in enumerate(self.tokens) if token.separates}

    def tells(self, rows: slice) -> Tensor:
        """Which links of some queries are worth showing: `r j`.

        Those between plain tokens; within one text not between neighbouring words.
        """
        asks, answers, words = self._plain
        tells = asks[rows, None] & answers
        if self.queries is self.tokens:
            tells &= (words[rows, None] - words).abs() > 1
        return tells

    @cached_property
    def _plain(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which queries and which keys are plain tokens, and the word of each key: `i`, `j`, `j`.

        Kept, since a long recording is looked through in thousands of tiles.
        """
        asks = [not (token.special or token.separates) for token in self.queries]
        answers = [j not in self.set_apart for j in range(len(self.tokens))]
        words = [token.word for token in self.tokens]
        return torch.tensor(asks), torch.tensor(answers), torch.tensor(words)

    def _links(self, rows: slice) -> Tensor:
        """Which weights of some queries are links at all, and no token's look at itself: `r j`."""
        queries, keys = torch.arange(len(self.queries)), torch.arange(len(self.tokens))
        return (queries[rows, None] != keys) | (self.queries is not self.tokens)

    def _best(self, layer: int, first: int, weights: Tensor, n: int) -> list[Link]:
        """The n greatest of `h r j`."""
        links: list[Link] = []
        best, places = weights.flatten().topk(min(n, weights.numel()))
        for weight, place in zip(best.tolist(), places.tolist(), strict=True):
            head, rest = divmod(place, weights.shape[1] * weights.shape[2])
            query, key = divmod(rest, weights.shape[2])
            if weight > 0:
                links.append(Link(layer, self.head_numbers[head], query + first, key, weight))
        return links

    def by_words(self) -> Recording:
        """The same by words: weights to a word's tokens are added, weights from them averaged."""
        from limelight.seeing.recording.words import merge_words

        return merge_words(self)

    def steps(self, layer: int, head: int) -> Steps:
        """Every step of a head in numbers, from its input to the layer's output."""
        from limelight.seeing.steps.steps import steps_of_recording

        return steps_of_recording(self, layer, head)

    def save(self, path: str | Path) -> None:
        """Write the recording: `.safetensors` keeps all of it, other endings are views of it."""
        path = Path(path)
        if path.suffix.lower() == ".safetensors":
            from limelight.seeing.recording.stored import write

            write(self, path)
        else:
            # Views are built on recordings; only this one door leads the other way, when asked.
            importlib.import_module("limelight.views").save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording that `save` wrote as `.safetensors`."""
        from limelight.seeing.recording.stored import read

        return read(Path(path))

    def _repr_html_(self) -> str:
        if any(seen.source is None for seen in self.layers):
            why = "The page needs the weights, which a lens with keep=False does not keep."
            return f"<p>{escape(repr(self))}</p><p>{why}</p>"
        return importlib.import_module("limelight.views").notebook(self)

    def __repr__(self) -> str:
        layers, heads = len(self.layers), len(self.head_numbers)
        size = f"{layers} layer{'s' * (layers != 1)} x {heads} head{'s' * (heads != 1)}"
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Recording of {len(self.tokens)} tokens, {size}: {text!r}"


def _received(seen: Seen) -> Tensor:
    """`h j`: noted by the lens, or added up from the rows."""
    if seen.statistics.received is not None:
        return seen.statistics.received[0]
    total = torch.zeros(seen.extent.h, seen.extent.j, dtype=seen.dtype, device=seen.device)
    for _, tile in seen.in_tiles():
        total += tile[0].sum(1)
    return total


def _position(name: str, number: int, numbers: tuple[int, ...]) -> int:
    if number not in numbers:
        known = (
            f"0 to {len(numbers) - 1}" if numbers == tuple(range(len(numbers))) else str(numbers)
        )
        raise OptionError(f"{name} must be one of those recorded ({known}), found {number}")
    return numbers.index(number)


def _check_numbers(name: str, numbers: tuple[int, ...], size: int) -> None:
    if len(numbers) != size or len(set(numbers)) != size:
        raise OptionError(f"{name} must be {size} different numbers, found {numbers}")
