"""Ablation: the loss without some heads, whose output is set to zero through the seam."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.insight.head_measures import repeated_rows
from limelight.insight.heads import HeadRoles, find_role, random_vocabulary
from limelight.insight.progress import tracked
from limelight.insight.result import Result
from limelight.insight.runner import eval_mode, layer_of, through_the_seam
from limelight.insight.table import Table
from limelight.models.decoder import Decoder
from limelight.ops.calls import AttentionCall, intercept
from limelight.rng import generator_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Head = tuple[int, int]
"""layer and head"""


@contextmanager
def ablating(model: nn.Module, heads: Iterable[Head]) -> Generator[None]:
    """Within the block, these heads add nothing: their output is zero."""
    ablated: dict[int, list[int]] = {}
    for layer, head in heads:
        ablated.setdefault(layer, []).append(head)

    def zero(call: AttentionCall) -> Tensor:
        output, zeroed = call.attend(), ablated.get(layer_of(call))
        if not zeroed:
            return output
        if max(zeroed) >= output.shape[1]:
            raise OptionError(f"head must be below {output.shape[1]}, found {max(zeroed)}")
        output = output.clone()
        output[:, zeroed] = 0.0
        return output

    with through_the_seam(model), intercept(zero, model):
        yield


@dataclass(frozen=True)
class Ablation(Result):
    """The loss on tokens that repeat, in nats per token."""

    model: str
    role: str
    heads: tuple[Head, ...]
    """those taken out, highest score for the role first"""
    baseline: float
    """with all heads"""
    without: float
    """without the heads of the role"""
    random: tuple[float, ...]
    """without as many random others, for each draw"""
    drawn: tuple[tuple[Head, ...], ...]
    """the random heads of each draw"""
    roles: HeadRoles
    """the scores that the heads were chosen by"""

    @property
    def costlier_than(self) -> int:
        """How many of the random draws cost less."""
        return sum(self.without > loss for loss in self.random)

    def table(self) -> Table:
        """The loss with all heads, without those of the role, and without random ones."""
        names = ", ".join(f"{layer}·{head}" for layer, head in self.heads)
        ordered = sorted(self.random)
        rows: list[tuple[str, float]] = [
            ("all heads", self.baseline),
            (f"without {names} ({self.role})", self.without),
        ]
        if ordered:
            rows += [
                ("without as many at random, mean", sum(ordered) / len(ordered)),
                ("without as many at random, median", median(ordered)),
                ("without as many at random, highest", ordered[-1]),
            ]
        title = (
            f"{self.model}: loss on repeated tokens, nats per token; taking out the heads of the "
            f"role costs more than {self.costlier_than} of {len(self.random)} random draws"
        )
        return Table(("model", "loss"), rows, title, decimals=2)

    def figure(self) -> Figure:
        """The loss without the heads of the role beside that of every random draw."""
        from limelight.colours import LIGHT
        from limelight.plotting import new_figure

        figure = new_figure(6.0, 2.4)
        axes = figure.add_subplot()
        axes.scatter(self.random, [0] * len(self.random), color=LIGHT.muted, s=22, alpha=0.7,
                     label=f"without {len(self.heads)} at random")  # fmt: skip
        axes.scatter([self.without], [0], color=LIGHT.query, s=60, marker="D",
                     label=f"without the top {len(self.heads)} ({self.role})")  # fmt: skip
        axes.axvline(self.baseline, color=LIGHT.key, linestyle="--", label="all heads")
        axes.set_yticks([])
        axes.set_xlabel("loss on repeated tokens, nats per token", fontsize=9)
        axes.set_title(f"{self.model}: heads taken out", fontsize=10, parse_math=False)
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.3),
                    ncols=3)  # fmt: skip
        axes.spines[["top", "right", "left"]].set_visible(False)
        return figure

    def values(self) -> dict[str, Any]:
        """All fields, with the roles of every head."""
        return {**vars(self), "roles": self.roles.values()}


def check_ablatable(model: nn.Module) -> Decoder:
    """The model, if its loss on repeated tokens can be measured."""
    if not isinstance(model, Decoder):
        raise UnavailableError(
            f"heads are taken out of a decoder, which predicts tokens, found {type(model).__name__}"
        )
    return model


def ablate_role(
    model: nn.Module,
    roles: HeadRoles,
    role: str = "induction",
    *,
    count: int = 5,
    draws: int = 20,
    seed: int = 0,
    progress: bool | None = None,
) -> Ablation:
    """Take out the top heads of a role, or as many others at random: the loss on repeated tokens.

    It shows whether these heads matter more for copying than others do. Zeroing a head removes
    everything that it does, and other heads may compensate.

    The text is the opening token and S random tokens twice, drawn apart from those that the role
    was measured on; the loss is over the second S.
    """
    model = check_ablatable(model)
    role = find_role(role, roles.scores)
    chosen = tuple((layer, head) for layer, head, _ in roles.top(role, count))
    others = [
        (layer, head)
        for layer in range(roles.layers)
        for head in range(roles.heads)
        if (layer, head) not in chosen
    ]
    generator = generator_for(seed, 5)
    random_sets = [
        tuple(
            others[index]
            for index in torch.randperm(len(others), generator=generator)[:count].tolist()
        )
        for _ in range(draws)
    ]
    sets = [(), chosen, *random_sets]
    baseline, without, *random = [
        repeat_loss(model, heads, seed=seed)
        for heads in tracked(sets, "ablating", len(sets), progress=progress)
    ]
    return Ablation(
        roles.model, role, chosen, baseline, without, tuple(random), tuple(random_sets), roles
    )


def repeat_loss(model: Decoder, without: Iterable[Head] = (), *, seed: int = 0) -> float:
    """The loss on tokens that repeat, in nats per token, with some heads taken out."""
    vocabulary, begin = random_vocabulary(model, None)
    rows, size = repeated_rows(vocabulary, begin, seed + 1000)
    with eval_mode(model), ablating(model, without):
        return _loss(model, rows, size)


@torch.no_grad()
def _loss(model: Decoder, rows: Tensor, size: int) -> float:
    """The mean loss on the repetition, but for its first token, which cannot be predicted."""
    hidden = model.hidden(rows[:, :-1])[:, -(size - 1) :]
    logits = model.logits(hidden)
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1 - size :].flatten()))
