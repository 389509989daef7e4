"""How meaning shifts: a word's vector on its way through the layers, sentence by sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError
from limelight.fields import check_value, checked
from limelight.insight.hidden_states import attention_blocks, hidden_states
from limelight.insight.result import Result
from limelight.insight.runner import Runner, runner_for
from limelight.insight.table import Table
from limelight.insight.value_norms import value_norms
from limelight.models.loading.pretrained import load
from limelight.ops.lens.seen import Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

TEMPLATE = "I bought a {}."
"""The sentence that every member of a group is put into."""


@dataclass(frozen=True, eq=False)
class Shift(Result):
    """A word in several sentences; s sentences, g groups, stages 0 (before attention) to l."""

    word: str
    model: str
    sentences: tuple[str, ...]
    groups: dict[str, tuple[str, ...]]
    template: str
    similarity: Tensor
    """s l+1 g: cosine of the word's vector and the mean vector of the group, at each stage"""
    took: tuple[Tensor, ...]
    """for each sentence l n: ‖weight · value‖ from each token to the word, summed over heads"""
    tokens: tuple[tuple[str, ...], ...]
    """of each sentence"""
    places: tuple[tuple[int, ...], ...]
    """which of them are the word"""
    paths: Tensor
    """s l+1 2: the direction of the word's vector at each stage, relative to the mean of the groups
    at that stage, in the plane in which words and groups are furthest apart at the end"""
    group_ends: Tensor
    """g 2: where the groups end, in the same plane"""

    def nearest(self, sentence: int) -> str:
        """The group that the word ends nearest to."""
        return list(self.groups)[int(self.similarity[sentence, -1].argmax())]

    def table(self) -> Table:
        """How near the word is to each group, before attention and at the end."""
        rows = [
            (
                text,
                *(float(value) for ends in zip(self.similarity[s, 0], self.similarity[s, -1],
                                               strict=True) for value in ends),
                self.nearest(s),
                ", ".join(self.sources(s, 2)),
            )
            for s, text in enumerate(self.sentences)
        ]  # fmt: skip
        columns = [f"{name} {when}" for name in self.groups for when in ("before", "after")]
        title = f'{self.model}: "{self.word}" before attention and after all layers (cosine)'
        return Table(("sentence", *columns, "nearest", "took most from"), rows, title, decimals=2)

    def sources(self, sentence: int, n: int = 3) -> list[str]:
        """The other tokens of a sentence that the word took most from, over all layers."""
        totals, names = self.took[sentence].sum(0), self.tokens[sentence]
        order = totals.argsort(descending=True).tolist()
        return [names[j] for j in order if j not in self.places[sentence]][:n]

    def source_table(self, n: int = 3) -> Table:
        """What the word took in each layer: the tokens it took most from, with ‖weight · value‖."""
        rows: list[tuple[str, int, str]] = []
        for text, took, names in zip(self.sentences, self.took, self.tokens, strict=True):
            for layer, sizes in enumerate(took):
                most = sizes.topk(min(n, len(sizes)))
                parts = zip(most.indices.tolist(), most.values.tolist(), strict=True)
                sources = ", ".join(f"{names[j]} {size:.2f}" for j, size in parts)
                rows.append((text if layer == 0 else "", layer, sources))
        title = f'What "{self.word}" took, layer by layer (‖weight · value‖, all heads)'
        return Table(("sentence", "layer", "most from"), rows, title)

    def figure(self) -> Figure:
        """The paths in a plane, the cosine to each group by layer, and what the word took."""
        from limelight.insight.shift_figure import draw

        return draw(self)

    def values(self) -> dict[str, Any]:
        ends = [self.nearest(s) for s in range(len(self.sentences))]
        names = (
            "word", "model", "sentences", "groups", "template", "similarity", "took", "tokens",
            "places", "paths", "group_ends",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"nearest": ends}


@checked
def shift(
    word: str,
    sentences: Sequence[str],
    toward: Mapping[str, Sequence[str]],
    *,
    model: str | Path | nn.Module = "minilm",
    template: str = TEMPLATE,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Shift:
    """How a word's vector moves through the layers, in each sentence, toward groups of words.

    At every stage the word's vector (the mean over its tokens) is compared with the mean vector of
    each group at the same stage, whose members are put into the same template. The template
    moves these cosines by some hundredths (MiniLM, "apple" in "I love apple phones." toward fruit:
    0.23 with "{}", 0.25 with the default, 0.27 with "I love a {}."), so compare groups, not digits.

    Args:
        word: it must occur once in every sentence.
        sentences: one or more.
        toward: groups by name, each of some words.
        model: a name or path for `load`, an encoder or decoder of ours, a Hugging Face model, or
            any module that takes `b n` token ids and whose attention goes through limelight.
        template: the sentence of the groups' members, each in place of `{}`.
        tokenizer: of a model that has none of its own, in transformers' form.

    >>> import limelight as ll
    >>> groups = {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]}
    >>> shift = ll.shift("apple", ["I love apple phones.", "I love apple pie."], groups)
    >>> shift.nearest(0), shift.nearest(1)
    ('tech', 'fruit')
    """
    _check_arguments(sentences, toward, template)
    if isinstance(model, str | Path):
        model = load(model)
    runners = [runner_for(model, sentence, tokenizer=tokenizer) for sentence in sentences]
    blocks = attention_blocks(runners[0])
    paths: list[Tensor] = []
    took: list[Tensor] = []
    places: list[list[int]] = []
    for runner in runners:
        word_places = _places(runner, word)
        stages, layers = hidden_states(runner, blocks)
        paths.append(stages[:, word_places].mean(1))
        took.append(_value_weighted(layers, word_places))
        places.append(word_places)

    def group_path(members: Sequence[str]) -> Tensor:
        """The mean vector of a group at every stage: l+1 m."""
        vectors: list[Tensor] = []
        for member in members:
            sentence = template.replace("{}", member)
            runner = runner_for(model, sentence, tokenizer=tokenizer)
            stages, _ = hidden_states(runner, blocks)
            vectors.append(stages[:, _places(runner, member)].mean(1))
        return torch.stack(vectors).mean(0)

    groups = torch.stack([group_path(members) for members in toward.values()])
    stacked = torch.stack(paths)
    similarity = torch.cosine_similarity(stacked[:, :, None], groups.transpose(0, 1)[None], dim=-1)
    plane_paths, group_ends = _in_plane(stacked, groups)
    return Shift(
        word=word,
        model=runners[0].name,
        sentences=tuple(sentences),
        groups={name: tuple(members) for name, members in toward.items()},
        template=template,
        similarity=similarity,
        took=tuple(took),
        tokens=tuple(tuple(token.text for token in runner.tokens) for runner in runners),
        places=tuple(map(tuple, places)),
        paths=plane_paths,
        group_ends=group_ends,
    )


def _check_arguments(
    sentences: Sequence[str], toward: Mapping[str, Sequence[str]], template: str
) -> None:
    if not sentences or isinstance(sentences, str):
        raise OptionError(f"sentences must be one or more sentences, found {sentences!r}")
    for words in toward.values():
        check_value("toward", words, Sequence[str])
    if not toward or not all(toward.values()):
        raise OptionError(f"toward must be groups of words by name, found {dict(toward)!r}")
    if "{}" not in template:
        raise OptionError(f"template must have {{}} in place of a word, found {template!r}")


def _places(runner: Runner, word: str) -> list[int]:
    """The tokens of a word, which must occur once in the sentence, as a whole word."""
    if not isinstance(word, str) or not word.strip():
        raise OptionError(f"word must be a word, found {word!r}")
    spans = [
        match.span()
        for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", runner.text, re.IGNORECASE)
    ]
    if len(spans) != 1:
        raise OptionError(f"{word!r} must occur once in {runner.text!r}, found {len(spans)} times")
    start, stop = spans[0]
    return [
        place
        for place, token in enumerate(runner.tokens)
        if token.start < stop and token.end > start
    ]


def _value_weighted(layers: Sequence[Seen], places: list[int]) -> Tensor:
    """Σ over heads of ‖weight · value‖, from each token to the word: l n."""
    flows: list[Tensor] = []
    for seen in layers:
        rows = seen.rows(places)[0].mean(1)
        flows.append((rows * value_norms(seen)[0]).sum(0).double().cpu())
    return torch.stack(flows)


def _in_plane(paths: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Paths `s l+1 m` and the groups' ends in a plane: `s l+1 2` and `g 2`.

    Vectors are compared by direction, as the cosine does. At each stage the mean of the groups is
    the origin, which removes what a layer does to all words alike. The axes are the first two
    principal components of words and groups at the end.
    """
    paths, groups = (nn.functional.normalize(vectors, dim=-1) for vectors in (paths, groups))
    origin = groups.mean(0)  # l+1 m
    paths, groups = paths - origin, groups - origin
    ends = torch.cat([paths[:, -1], groups[:, -1]])
    _, _, axes = torch.linalg.svd(ends - ends.mean(0), full_matrices=False)
    axes = nn.functional.pad(axes[:2], (0, 0, 0, 2 - len(axes[:2])))
    # the sign of an axis is arbitrary: its largest entry is made positive
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    return paths @ axes.T, groups[:, -1] @ axes.T
