"""How meaning shifts: a word's vector on its way through the layers, sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.insight.head_measures import watch_rows
from limelight.insight.result import Result
from limelight.insight.runner import (
    Runner,
    eval_mode,
    is_hugging_face,
    runner_for,
    through_the_seam,
)
from limelight.insight.table import Table
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import load
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

TEMPLATE = "I bought a {}."
"""What the members of a group are embedded in: the same sentence for all of them."""


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
    """s l+1 2: the word's way, in the plane of the two greatest spreads"""
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

    def figure(self) -> Figure:
        """Left: the ways in a plane. Right: the groups' nearness, layer by layer."""
        from limelight.colours import LIGHT
        from limelight.plotting import fonts_for, new_figure

        figure = new_figure(10.5, 4.6)
        plane, layers = figure.subplots(1, 2)
        families = fonts_for([*self.sentences, *self.groups])
        style: dict[str, Any] = {"fontsize": 8, "fontfamily": families, "parse_math": False}
        stages = range(self.similarity.shape[1])
        for s, text in enumerate(self.sentences):
            colour = _COLOURS[s % len(_COLOURS)]
            x, y = self.paths[s].T.tolist()
            plane.plot(x, y, color=colour, linewidth=1.4, marker="o", markersize=3)
            plane.annotate(text, (x[-1], y[-1]), xytext=(4, 4), textcoords="offset points",
                           color=colour, **style)  # fmt: skip
            for g, name in enumerate(self.groups):
                line = ("-", "--", ":", "-.")[g % 4]
                values = self.similarity[s, :, g].tolist()
                layers.plot(stages, values, line, color=colour, linewidth=1.4)
                layers.annotate(name, (stages[-1], values[-1]), xytext=(4, -2), color=colour,
                                textcoords="offset points", **style)  # fmt: skip
        for name, (x, y) in zip(self.groups, self.group_ends.tolist(), strict=True):
            plane.plot(x, y, marker="*", markersize=10, color=LIGHT.ink)
            plane.annotate(name, (x, y), xytext=(6, -3), textcoords="offset points", **style)
        plane.set_title(f'the way of "{self.word}" (principal plane)', **(style | {"fontsize": 9}))
        layers.set_title("cosine to each group", fontsize=9)
        layers.set_xlabel("layers passed")
        layers.set_xlim(0, stages[-1] * 1.14)
        for axes in (plane, layers):
            axes.spines[["top", "right"]].set_visible(False)
        plane.margins(0.18)
        return figure

    def values(self) -> dict[str, Any]:
        ends = [self.nearest(s) for s in range(len(self.sentences))]
        names = (
            "word", "model", "sentences", "groups", "template", "similarity", "took", "tokens",
            "places", "paths", "group_ends",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"nearest": ends}


_COLOURS = ("#b4500a", "#0b6b66", "#3a6ea5", "#8e5ea2", "#c9a227", "#d1495b")


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
    each group at the same stage, whose members stand in the same template sentence.

    Args:
        word: it must occur in every sentence.
        sentences: one or more.
        toward: groups by name, each of some words.
        model: a name or path for `load`, an encoder or decoder of ours, or a Hugging Face model.
        template: where the members of the groups stand; `{}` is replaced.
        tokenizer: of the Hugging Face model.

    >>> import limelight as ll
    >>> groups = {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]}
    >>> found = ll.shift("apple", ["I love apple phones.", "I love apple pie."], groups)
    >>> found.nearest(0), found.nearest(1)
    ('tech', 'fruit')
    """
    if not sentences or isinstance(sentences, str):
        raise OptionError(f"sentences must be one or more sentences, found {sentences!r}")
    if not toward or not all(toward.values()):
        raise OptionError(f"toward must be groups of words by name, found {dict(toward)!r}")
    if "{}" not in template:
        raise OptionError(f"template must have {{}} where a word stands, found {template!r}")
    if isinstance(model, str | Path):
        model = load(model)
    ways: list[Tensor] = []
    took: list[Tensor] = []
    names: list[tuple[str, ...]] = []
    own: list[tuple[int, ...]] = []
    for sentence in sentences:
        runner = runner_for(model, sentence, tokenizer=tokenizer)
        places = _places(runner, sentence, word)
        ways.append(_stages(runner)[:, places].mean(1))
        took.append(_taken(runner, places))
        names.append(tuple(token.text for token in runner.tokens))
        own.append(tuple(places))
    groups = torch.stack(
        [_group(model, tokenizer, template, list(toward[name])) for name in toward]
    )
    paths = torch.stack(ways)
    similarity = torch.cosine_similarity(paths[:, :, None], groups.transpose(0, 1)[None], dim=-1)
    plane, ends = _plane(paths, groups[:, -1])
    return Shift(
        word=word,
        model=runner_for(model, sentences[0], tokenizer=tokenizer).name,
        sentences=tuple(sentences),
        groups={name: tuple(members) for name, members in toward.items()},
        template=template,
        similarity=similarity,
        took=tuple(took),
        tokens=tuple(names),
        places=tuple(own),
        paths=plane,
        group_ends=ends,
    )


def _group(model: nn.Module, tokenizer: Any, template: str, members: list[str]) -> Tensor:
    """The mean vector of some words at every stage: l+1 m."""
    vectors: list[Tensor] = []
    for member in members:
        sentence = template.replace("{}", member)
        runner = runner_for(model, sentence, tokenizer=tokenizer)
        vectors.append(_stages(runner)[:, _places(runner, sentence, member)].mean(1))
    return torch.stack(vectors).mean(0)


def _places(runner: Runner, sentence: str, word: str) -> list[int]:
    """The tokens of a word, which must stand in the sentence once as a word of its own."""
    import re

    if not isinstance(word, str) or not word.strip():
        raise OptionError(f"word must be a word, found {word!r}")
    spans = [
        match.span()
        for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", sentence, re.IGNORECASE)
    ]
    if len(spans) != 1:
        raise OptionError(f"{word!r} must stand once in {sentence!r}, found {len(spans)} times")
    start, stop = spans[0]
    return [
        at for at, token in enumerate(runner.tokens) if token.start < stop and token.end > start
    ]


def _stages(runner: Runner) -> Tensor:
    """Every token's vector before attention and after each layer: l+1 n m."""
    model = runner.model
    with eval_mode(model), torch.no_grad():
        if is_hugging_face(model):
            outputs: Any = model(input_ids=runner.rows(1), output_hidden_states=True)
            return torch.cat(list(outputs.hidden_states)).double().cpu()
        if not isinstance(model, Encoder | Decoder):
            raise UnavailableError(
                f"the layers of a {type(model).__name__} are not known: shift takes our encoders "
                "and decoders, and Hugging Face models"
            )
        kept: list[Tensor] = []
        blocks = list(model.stack.blocks)

        def enter(_block: nn.Module, args: Any) -> None:
            kept.append(args[0])

        def leave(_block: nn.Module, _args: Any, output: Any) -> None:
            kept.append(output)

        hooks = [blocks[0].register_forward_pre_hook(enter)]
        hooks += [block.register_forward_hook(leave) for block in blocks]
        try:
            runner.run(runner.rows(1), -1)
        finally:
            for hook in hooks:
                hook.remove()
    return torch.cat(kept).double().cpu()


def _taken(runner: Runner, places: list[int]) -> Tensor:
    """Σ over heads of ‖weight · value‖, from each token to the word: l n."""
    with eval_mode(runner.model), through_the_seam(runner.model):
        layers, _ = watch_rows(runner, runner.rows(1), Lens())
    flows: list[Tensor] = []
    for seen in layers:
        assert isinstance(seen.source, Recomputed)
        size = seen.source.problem.value[0].norm(dim=-1)
        size = size.repeat_interleave(seen.extent.h // len(size), dim=0)
        flows.append((seen.rows(places)[0].mean(1) * size).sum(0).double().cpu())
    return torch.stack(flows)


def _plane(paths: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Paths and ends in the plane of their two greatest spreads."""
    points = torch.cat([paths.flatten(0, 1), ends])
    centre = points.mean(0)
    _, _, axes = torch.linalg.svd(points - centre, full_matrices=False)
    axes = axes[:2]
    # the sign of an axis is arbitrary: its greatest entry is made positive, so that pictures repeat
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    flat = (points - centre) @ axes.T
    count = len(points) - len(ends)
    return flat[:count].view(*paths.shape[:2], 2), flat[count:]
