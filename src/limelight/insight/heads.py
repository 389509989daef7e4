"""What heads do: roles that a head has on the texts it was chosen by and on held-out ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.fields import checked
from limelight.insight import head_measures as measures
from limelight.insight.head_measures import EncodedSentence, Excerpt, Sums
from limelight.insight.probes import RELATIONS, filler_texts, needles, sentences
from limelight.insight.progress import tracked
from limelight.insight.result import Result
from limelight.insight.runner import Runner, eval_mode, runner_for, through_the_seam
from limelight.insight.table import Table
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

WEIGHT_MARGIN = 0.2
"""By how much a mean weight must beat even weights."""
HIT_MARGIN = 0.1
"""By how much a rate must beat its baseline, and a correlation 0."""
BROAD = 0.9
"""A broad head's entropy is at least this share of that of even weights."""
SINK = 0.3
"""A head whose mean weight on the first token is above this uses it as a sink."""
PIECE = 700
"""Characters of running text that are read at once."""

POSITIONS = ("previous", "next", "self", "first", "separator", "local")
COMMON = ("local", "first", "broad")
"""Roles that many heads have besides another one."""
COPYING = ("induction", "duplicate token", "same token", "retrieval")
ROLES = (*POSITIONS, *COPYING, "broad", *RELATIONS, "semantics")
"""All roles; the direction of a relation is measured and added to its name."""


def find_role(role: str, known: Iterable[str] = ROLES) -> str:
    """The known role that is meant: a relation may be named with a hyphen and without its arrow.

    >>> find_role("determiner-noun", ["induction", "determiner–noun ←"])
    'determiner–noun ←'
    """
    known = tuple(known)
    for name in known:
        if _hyphenated(role) in (_hyphenated(name), _hyphenated(name.rstrip(" →←"))):
            return name
    raise OptionError(f"role must be one of {', '.join(known)}, found {role!r}")


def _hyphenated(role: str) -> str:
    """With hyphens, as on a keyboard, in place of en dashes."""
    return role.replace("–", "-")


class Score(NamedTuple):
    """One measure of all heads, on both halves of the data."""

    chosen: Tensor
    """l h: on the half that heads are chosen by"""
    held_out: Tensor
    """l h: on the held-out half"""
    chance: float
    """the chance level, or that of the best fixed offset, on the held-out half"""
    margin: float
    """how far above chance a head must be, on both halves"""
    value_weighted: Tensor | None = None
    """l h: the held-out half by ‖weight · value‖, as shares (Kobayashi et al. 2020)"""

    @property
    def assigned(self) -> Tensor:
        """Which heads beat chance by the margin on both halves: l h."""
        needed = self.chance + self.margin
        return (self.chosen > needed) & (self.held_out > needed)


@dataclass(frozen=True, eq=False)
class HeadRoles(Result):
    """What every head of a model does; l layers, h heads."""

    model: str
    texts: int
    """how many pieces of running text were read"""
    scores: dict[str, Score]
    """by role"""
    entropy: Tensor
    """l h: nats, on the held-out half"""
    reach: Tensor
    """l h: mean distance, tokens"""

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return self.entropy.shape[0]

    @property
    def heads(self) -> int:
        """How many heads a layer has."""
        return self.entropy.shape[1]

    @property
    def sink_share(self) -> float:
        """The share of heads that give the first token more than 0.3 on average."""
        return float((self.scores["first"].held_out > SINK).double().mean())

    def roles(self, layer: int, head: int) -> list[str]:
        """The roles of a head, the clearest first; those that many heads have come last."""
        lifts = {
            name: float((score.held_out[layer, head] - score.chance) / max(1e-9, 1 - score.chance))
            for name, score in self.scores.items()
            if bool(score.assigned[layer, head])
        }
        return sorted(lifts, key=lambda name: (name in COMMON, -lifts[name]))

    def labels(self) -> dict[str, list[str]]:
        """The roles of every head that has one: `{"layer.head": [role, ...]}`, as `roles` orders.

        >>> import limelight as ll
        >>> ll.head_labels("minilm")["0.2"][0]
        'previous'
        """
        return {
            f"{layer}.{head}": roles
            for layer in range(self.layers)
            for head in range(self.heads)
            if (roles := self.roles(layer, head))
        }

    def top(self, role: str, n: int = 5) -> list[tuple[int, int, float]]:
        """The n heads with the highest held-out score of a role: layer, head, score."""
        best = (
            self.scores[find_role(role, self.scores)]
            .held_out.flatten()
            .topk(min(n, self.layers * self.heads))
        )
        return [
            (index // self.heads, index % self.heads, value)
            for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def table(self) -> Table:
        """Every role: its chance level, how many heads have it, and the best of them."""
        rows: list[Sequence[str | float | int | None]] = []
        for name, score in self.scores.items():
            layer, head, value = self.top(name, 1)[0]
            weighted = score.value_weighted
            rows.append((
                name, score.chance, score.chance + score.margin, int(score.assigned.sum()),
                f"{layer}·{head}", float(score.chosen[layer, head]), value,
                None if weighted is None else float(weighted[layer, head]),
            ))  # fmt: skip
        columns = (
            "role", "chance", "needed", "heads", "best", "chosen", "held out", "by value"
        )  # fmt: skip
        title = (
            f"{self.model}: {self.layers} layers of {self.heads} heads; "
            f"{self.sink_share:.0%} of heads give the first token more than {SINK}"
        )
        return Table(columns, rows, title)

    def head_table(self) -> Table:
        """Every head: its roles, entropy and reach."""
        rows = [
            (
                layer, head, ", ".join(self.roles(layer, head)) or "none",
                float(self.entropy[layer, head]), float(self.reach[layer, head]),
            )
            for layer in range(self.layers)
            for head in range(self.heads)
        ]  # fmt: skip
        return Table(("layer", "head", "roles", "entropy", "reach"), rows, decimals=2)

    def figure(self) -> Figure:
        """Layers down, heads across, coloured by each head's clearest role."""
        from matplotlib.patches import Patch

        from limelight.colours import LIGHT
        from limelight.plotting import new_figure

        first = [
            [(self.roles(x, y) or [""])[0] for y in range(self.heads)] for x in range(self.layers)
        ]
        named = [name for name in self.scores if any(name in row for row in first)]
        colours = dict(zip(named, itertools.cycle(_COLOURS), strict=False))
        figure = new_figure(0.55 * self.heads + 3.4, max(2.6, 0.3 * self.layers + 1.0))
        axes = figure.add_subplot()
        for layer, row in enumerate(first):
            for head, name in enumerate(row):
                strength = 0.0 if not name else float(self.scores[name].held_out[layer, head])
                axes.add_patch(_cell(head, layer, colours.get(name, LIGHT.line), strength))
                if name:
                    label = f"{strength:.2f}".removeprefix("0")
                    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6}
                    axes.text(head, layer, label, color=LIGHT.ink, **style)
        axes.set_xlim(-0.5, self.heads - 0.5)
        axes.set_ylim(self.layers - 0.5, -0.5)
        axes.set_xticks(range(self.heads))
        axes.set_yticks(range(self.layers))
        axes.tick_params(length=0, labelsize=7)
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.spines[:].set_visible(False)
        axes.set_title(f"{self.model}: what heads do", fontsize=10, parse_math=False)
        patches = [Patch(color=colours[name], label=name) for name in named]
        patches.append(Patch(color=LIGHT.line, label="no role above its margin"))
        figure.legend(handles=patches, loc="outside right upper", fontsize=7, frameon=False)
        return figure

    def values(self) -> dict[str, Any]:
        roles = [[self.roles(x, y) for y in range(self.heads)] for x in range(self.layers)]
        return {
            "model": self.model, "texts": self.texts, "sink_share": self.sink_share,
            "roles": roles, "entropy": self.entropy, "reach": self.reach, "scores": self.scores,
        }  # fmt: skip


_COLOURS = (
    "#4e9f50", "#0b6b66", "#b4500a", "#3a6ea5", "#c9a227", "#8e5ea2", "#d1495b", "#6b8e23",
    "#00798c", "#a0522d", "#5d666f", "#e07a5f", "#7a9e9f", "#f2a541",
)  # fmt: skip


def _cell(x: int, y: int, colour: str, strength: float) -> Any:
    from matplotlib.patches import Rectangle

    shade = 0.35 + 0.65 * min(1.0, max(0.0, strength))
    return Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, facecolor=colour, alpha=shade, linewidth=0)


@checked
def heads(
    model: str | Path | nn.Module,
    texts: Iterable[str] | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> HeadRoles:
    """Find what every head of a model does, from texts and from probes with known answers.

    Position (previous, next, self, first, separator, local, broad), copying (induction, duplicate
    token, same token, retrieval), syntax and coreference against the best fixed offset, and the
    correlation of weights with the cosine of static embeddings. A head has a role where it beats
    the chance level by a margin, on the half that it is chosen by and on the held-out half.
    A view labels heads by `labels()`, or at once by `head_labels("minilm")`: "layer.head" → roles.

    Args:
        model: a name or path for `load`, one of our models, a Hugging Face model, or any module
            that takes `b n` token ids and gives `b n c`.
        texts: running text, streamed: a corpus of any size; plain sentences unless given.
        tokenizer: of a model that has none of its own, in transformers' form.
        seed: of the probes.
        progress: whether to show a progress bar; by default only in a terminal.
    """
    if isinstance(model, str | Path):
        model = load(model)
    pieces = _pieces(filler_texts(8, seed) if texts is None else texts)
    probe = runner_for(model, "The cat sat .", tokenizer=tokenizer)
    halves = Sums(), Sums()
    with eval_mode(probe.model), through_the_seam(probe.model), torch.no_grad():
        count = 0
        for text in tracked(pieces, "reading text", None, progress=progress):
            count += _read_text(halves[count % 2], model, text, tokenizer)
        if count < 2:
            raise OptionError("texts must hold two pieces of text at least, one for each half")
        for half, sums in enumerate(halves):
            _repeat(sums, probe, model, tokenizer, 2 * seed + half)
            _sentences(sums, model, tokenizer, half, seed, progress)
            if probe.predicts:
                prompts = tracked(needles(half, seed=seed), "needles", 8, progress=progress)
                measures.retrieval(sums, probe, _encoder(model, tokenizer), prompts)
    return _result(probe.name, count, *halves)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Texts cut at spaces into pieces that are read at once."""
    for text in [texts] if isinstance(texts, str) else texts:
        line = ""
        for word in text.split():
            if len(line) + len(word) > PIECE:
                yield line
                line = ""
            line += " " * bool(line) + word
        if line:
            yield line


def _read_text(
    sums: Sums, model: nn.Module, text: str, tokenizer: PreTrainedTokenizerBase | None
) -> int:
    """Add the measures of a piece of text. Returns 0 where it is too short to count, else 1."""
    runner = runner_for(model, text, tokenizer=tokenizer)
    if len(runner.inputs) < 8:
        return 0
    layers, _ = measures.watch_rows(runner, runner.rows(1))
    marks = torch.tensor([token.special or token.separates for token in runner.tokens])
    ids = runner.inputs.cpu()
    vectors = measures.static_embeddings(runner.embedding, runner.inputs).cpu()
    measures.in_text(sums, layers, Excerpt(ids, marks), vectors)
    return 1


def _repeat(
    sums: Sums,
    probe: Runner,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    seed: int,
) -> None:
    vocabulary, begin = random_vocabulary(model, tokenizer)
    measures.repeats(sums, probe, vocabulary, begin, seed)


def random_vocabulary(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Tensor, int | None]:
    """Token ids to draw from, special ones left out, and the id that opens a text."""
    if isinstance(model, Encoder | Decoder):
        known = model.tokens
        if known is None:
            raise UnavailableError("this model came without a tokenizer: heads needs one")
        first = known.encode("a").ids[0]
        begin = first if first in known.special else known.begin
        return _without(model.config.vocabulary, known.special), begin
    foreign: Any = tokenizer
    if foreign is None:
        raise OptionError("a model without a tokenizer of its own needs tokenizer= to read texts")
    first = foreign("a")["input_ids"][0]
    special = set(foreign.all_special_ids)
    begin = first if first in special else foreign.bos_token_id
    return _without(len(foreign), special), begin


def _without(size: int, special: Iterable[int]) -> Tensor:
    kept = torch.ones(size, dtype=torch.bool)
    kept[[token for token in special if token < size]] = False
    return kept.nonzero()[:, 0]


def _encoder(model: nn.Module, tokenizer: Any) -> Callable[[str], list[int]]:
    """Text → ids without special tokens."""

    def encode(text: str) -> list[int]:
        if not isinstance(model, Encoder | Decoder):
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        assert model.tokens is not None
        return model.tokens.tokenizer.encode(text, add_special_tokens=False).ids

    return encode


def _sentences(
    sums: Sums,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    half: int,
    seed: int,
    progress: bool | None,
) -> None:
    """The measures of a half's probe sentences; those of one length are run together."""
    groups: dict[int, list[EncodedSentence]] = {}
    for sentence in sentences(half, seed=seed):
        runner = runner_for(model, sentence.text, tokenizer=tokenizer)
        if runner.text != sentence.text:
            raise OptionError(
                "tokenizer must report the offsets of its tokens, as fast ones do, found "
                f"{type(tokenizer).__name__}, which reads {sentence.text!r} as {runner.text!r}"
            )
        places = {
            role: [
                place for place, token in enumerate(runner.tokens)
                if token.start < stop and token.end > start
            ]
            for role, (start, stop) in sentence.spans.items()
        }  # fmt: skip
        special = {place for place, token in enumerate(runner.tokens) if token.special}
        groups.setdefault(len(runner.inputs), []).append(
            EncodedSentence(sentence, runner.inputs, places, frozenset({0} | special))
        )
    for group in tracked(groups.values(), "sentences", len(groups), progress=progress):
        runner = runner_for(model, group[0].sentence.text, tokenizer=tokenizer)
        layers, _ = measures.watch_rows(runner, torch.stack([encoded.ids for encoded in group]))
        measures.syntax(sums, layers, group)


def _result(name: str, texts: int, chosen: Sums, held_out: Sums) -> HeadRoles:
    scores: dict[str, Score] = {}
    for role in (*POSITIONS, *COPYING):
        if role not in held_out.sums or role not in chosen.sums:
            continue
        margin = HIT_MARGIN if role == "retrieval" else WEIGHT_MARGIN
        weighted = held_out.mean(f"value {role}") if f"value {role}" in held_out.sums else None
        chance = float(held_out.mean(f"chance {role}"))
        scores[role] = Score(chosen.mean(role), held_out.mean(role), chance, margin, weighted)
    broad = [half.mean("entropy") / half.mean("even entropy") for half in (chosen, held_out)]
    scores["broad"] = Score(broad[0], broad[1], BROAD, 0.0)
    for relation in RELATIONS:
        # the direction in which the best head scores higher on the chosen half
        directions = [f"{relation} {arrow}" for arrow in "→←"]
        best = max(directions, key=lambda direction: float(chosen.mean(direction).max()))
        scores[best] = Score(
            chosen.mean(best), held_out.mean(best), measures.best_offset(chosen, held_out, best),
            HIT_MARGIN, held_out.mean(f"value {best}"),
        )  # fmt: skip
    correlation = [measures.semantics(half) for half in (chosen, held_out)]
    weighted = measures.semantics(held_out, "value ")
    scores["semantics"] = Score(correlation[0], correlation[1], 0.0, HIT_MARGIN, weighted)
    return HeadRoles(name, texts, scores, held_out.mean("entropy"), held_out.mean("reach"))
