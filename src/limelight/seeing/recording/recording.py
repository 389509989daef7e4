"""A recording: a text's tokens, and what every layer and head of a model saw of them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_tensor, check_whole, shape_text
from limelight.errors import OptionError, ShapeError, UnavailableError
from limelight.fields import as_list, check_value
from limelight.files import check_path
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.picks import Pick, find_tokens, single_picks
from limelight.seeing.recording.picture import Picture
from limelight.seeing.recording.tokens import Token, plain_tokens

if TYPE_CHECKING:
    from limelight.seeing.steps.flow import Flow
    from limelight.seeing.steps.steps import Steps


class Link(NamedTuple):
    """A query looks at a key, in one head, with a weight.

    >>> Link(3, 1, 10, 2, 0.677, "it", "animal")
    it → animal 0.677 (layer 3 head 1, tokens 10 → 2)
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float = float("nan")
    """NaN where it is not known"""
    query_token: str = ""
    """the text of the query"""
    key_token: str = ""
    """the text of the key"""

    def __repr__(self) -> str:
        where = f"layer {self.layer} head {self.head}, tokens {self.query} → {self.key}"
        return f"{self.query_token} → {self.key_token} {self.weight:.3f} ({where})"


class Strongest(NamedTuple):
    """The links of largest weight; background links are listed separately."""

    links: list[Link]
    background: list[Link]
    """links from or to background tokens, and between neighbouring words"""


class Window(NamedTuple):
    """Queries of a long text that see one run of its keys."""

    queries: int
    """how many, after those of the windows before"""
    first_key: int
    keys: int


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
    """the input and output of each layer, where they were kept: `steps` is computed from them"""
    picture: Picture | None = None
    """the picture whose patches the tokens are, where it is one"""
    windows: tuple[Window, ...] = ()
    """of a text that was read in windows; otherwise all queries see what the mask leaves them"""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for name, hint in _FIELD_TYPES.items():
            check_value(name, getattr(self, name), hint)
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
        if self.picture is not None and self.picture.size != len(self.tokens):
            raise ShapeError(
                f"the picture is read as {self.picture.size} tokens, found {len(self.tokens)}"
            )
        if self.windows:
            _check_windows(self.windows, len(self.queries), len(self.tokens))
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
        weights, words = as_list("weights", weights), as_list("words", words)
        check_value("words", words, list[str])
        for layer, table in enumerate(weights):
            check_tensor(f"weights of layer {layer}", table)
            if table.ndim != 3 or table.shape[1:] != (len(words), len(words)):
                raise ShapeError(
                    f"weights of layer {layer} have shape {shape_text(table)}, "
                    f"expected (h, n, n) with n = {len(words)} words"
                )
            layers.append(Seen.of_weights(table[None], lens))
        text, tokens = plain_tokens(words)
        return cls(text, tokens, tuple(layers), model)

    def seen(self, layer: int) -> Seen:
        """What was seen of a layer: `1 h i j`."""
        return self.layers[_position("layer", layer, self.layer_numbers)]

    def head_position(self, head: int) -> int:
        """The index of a head on the head axis of each `Seen`."""
        return _position("head", head, self.head_numbers)

    def weights(self, layer: int, head: int) -> Tensor:
        """All weights of a head, exact: `i j`."""
        return self.seen(layer).heads([self.head_position(head)]).dense()[0, 0]

    def find(self, token: Pick, among: tuple[Token, ...] | None = None) -> list[int]:
        """The indices of a token, of a word made of several tokens, or of several of these.

        A text must match a single token or word; for one that occurs more often the error lists the
        indices to choose from.
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

        For a word of several tokens their mean counts, for several picks their sum. Where the lens
        kept no weights, the recorded links of a single token are all there is.
        """
        check_whole("n", n, 0)
        seen, queries = self.seen(layer), self.find(token, self.queries)
        if seen.source is None and seen.statistics.top is not None and len(queries) == 1:
            weights, indices = (
                table[0, self.head_position(head), queries[0], :n] for table in seen.top
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

    @property
    def entropy(self) -> Tensor:
        """How spread out each query's weights are, in nats: `layers heads i`."""
        return torch.stack([seen.entropy[0].cpu() for seen in self.layers])

    @property
    def distance(self) -> Tensor:
        """How far each query looks on average, in tokens: `layers heads i`."""
        return torch.stack([seen.distance[0].cpu() for seen in self.layers])

    @property
    def nonfinite(self) -> str:
        """Where the first non-finite numbers are, in words; empty where all numbers are finite.

        A model that overflows gives NaN from some layer on, and no weights there.
        """
        for number, seen in zip(self.layer_numbers, self.layers, strict=True):
            # the log-sum-exp of a row is NaN or +∞ as soon as one of its scores is
            wrong = (seen.lse[0].isnan() | (seen.lse[0] == torch.inf)).cpu()
            if bool(wrong.any()):
                head, query = wrong.nonzero()[0].tolist()
                rows = f"{int(wrong.sum()):,} of {wrong.numel():,} rows"
                where = f"layer {number} (first in head {self.head_numbers[head]}, token {query}"
                return (
                    f"Numbers are not finite from {where}, {self.queries[query].text!r}; "
                    f"{rows} of that layer): the model overflows or holds NaN."
                )
        return ""

    def link(self, layer: int, head: int, query: int, key: int, weight: float) -> Link:
        """A link with the texts of its tokens."""
        return Link(
            layer, head, query, key, weight, self.queries[query].text, self.tokens[key].text
        )

    def strongest(self, n: int = 10) -> Strongest:
        """The n links of largest weight, background listed separately: see `insight.salience`."""
        salience = importlib.import_module("limelight.insight.salience")
        return salience.strongest(self, n)

    def links(
        self,
        layer: int | None = None,
        head: int | None = None,
        *,
        least: float = 0.0,
        by: Literal["weight", "value"] = "weight",
    ) -> Any:
        """The recorded links as an Arrow table: `.to_pandas()`, `polars.from_arrow`.

        Columns: layer, head, query, key, weight, query_token, key_token. Needs pyarrow.

        Args:
            layer: of this layer only.
            head: of this head only.
            least: links of at least this weight.
            by: `"value"` for the links that carry most, by ‖weight · value‖, if the lens recorded
                `value_top`.
        """
        table = importlib.import_module("limelight.views.table")
        return table.as_table(self, layer, head, least=least, by=by)

    def to_json(self, links: int = 10) -> str:
        """The recording as JSON: tokens, strongest links, means; `views/table.py` has the schema.

        NaN and infinity do not occur in it; `nonfinite` says where they were.
        """
        table = importlib.import_module("limelight.views.table")
        return json.dumps(table.as_json(self, links), ensure_ascii=False, allow_nan=False)

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
        path = check_path(path)
        if path.suffix.lower() == ".safetensors":
            from limelight.seeing.recording.stored import write

            write(self, path)
        else:
            # Views import recordings; the import in the other direction is made at call time.
            importlib.import_module("limelight.views").save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording that `save` wrote as `.safetensors`."""
        from limelight.seeing.recording.stored import read

        return read(check_path(path))

    def _repr_html_(self) -> str:
        try:
            return importlib.import_module("limelight.views").notebook(self)
        except UnavailableError as error:
            return f"<p>{escape(repr(self))}</p><p>{escape(str(error))}</p>"

    def __repr__(self) -> str:
        layers, heads = len(self.layers), len(self.head_numbers)
        size = f"{layers} layer{'s' * (layers != 1)} x {heads} head{'s' * (heads != 1)}"
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Recording of {len(self.tokens)} tokens, {size}: {text!r}"


_FIELD_TYPES: dict[str, Any] = {
    "text": str, "tokens": tuple[Token, ...], "layers": tuple[Seen, ...], "model": str,
    "made": Mapping, "layer_numbers": tuple[int, ...], "head_numbers": tuple[int, ...],
    "queries": tuple[Token, ...], "query_text": str, "flows": tuple, "picture": Picture | None,
    "windows": tuple[Window, ...],
}  # fmt: skip
"""The type of each field of a recording."""

_LAST = (1 << 31) - 1
"""The highest number of a layer or a head: tables of links hold them in 32 bits."""


def _received(seen: Seen) -> Tensor:
    """`h j`: recorded by the lens, or added up from the rows."""
    if seen.statistics.received is not None:
        return seen.statistics.received[0]
    total = torch.zeros(seen.extent.h, seen.extent.j, dtype=seen.dtype, device=seen.device)
    for _, tile in seen.in_tiles():
        total += tile[0].sum(1)
    return total


def _position(name: str, number: int, numbers: tuple[int, ...]) -> int:
    if check_whole(name, number, 0) not in numbers:
        known = (
            f"0 to {len(numbers) - 1}" if numbers == tuple(range(len(numbers))) else str(numbers)
        )
        raise OptionError(f"{name} must be one of those recorded ({known}), found {number}")
    return numbers.index(number)


def _check_numbers(name: str, numbers: tuple[int, ...], size: int) -> None:
    if len(numbers) != size or len(set(numbers)) != size:
        raise OptionError(f"{name} must be {size} different numbers, found {numbers}")
    for number in numbers:
        check_whole(f"each of {name}", number, 0, most=_LAST)


def _check_windows(windows: tuple[Window, ...], queries: int, keys: int) -> None:
    total = 0
    for window in windows:
        total += window.queries
        if min(window) < 0 or window.first_key + window.keys > keys:
            raise ShapeError(f"{window} does not fit {keys} keys")
    if total != queries:
        raise ShapeError(f"windows hold {total} queries, expected {queries}")
