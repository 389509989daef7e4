"""What is lost without some heads: their output is set to zero, through the seam."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.errors import OptionError
from limelight.insight.head_measures import repeated_rows
from limelight.insight.heads import HeadRoles, random_vocabulary
from limelight.insight.progress import tracked
from limelight.insight.runner import eval_mode, layer_of, through_the_seam
from limelight.models.decoder import Decoder
from limelight.ops.calls import AttentionCall, intercept
from limelight.rng import generator_for

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
            raise OptionError(f"head {max(zeroed)} is none of the {output.shape[1]} heads")
        output = output.clone()
        output[:, zeroed] = 0.0
        return output

    with through_the_seam(model), intercept(zero, model):
        yield


class Ablation(NamedTuple):
    """The loss on tokens that repeat, in nats a token."""

    heads: tuple[Head, ...]
    """those taken out, by their score for the role"""
    whole: float
    """with all heads"""
    without: float
    """without these"""
    random: tuple[float, ...]
    """without as many others, for each draw"""
    drawn: tuple[tuple[Head, ...], ...]
    """those others"""


def ablate_role(
    model: Decoder,
    roles: HeadRoles,
    role: str = "induction",
    *,
    count: int = 5,
    draws: int = 20,
    seed: int = 0,
    progress: bool | None = None,
) -> Ablation:
    """Take out the top heads of a role, and as many others at random, and read repeated tokens.

    The text is the opening token and S random tokens twice, other ones than those that the role
    was measured on; the loss is that of the second S.
    """
    chosen = tuple((layer, head) for layer, head, _ in roles.top(role, count))
    others = [
        (layer, head)
        for layer in range(roles.layers)
        for head in range(roles.heads)
        if (layer, head) not in chosen
    ]
    generator = generator_for(seed, 5)
    sets = [
        tuple(
            others[at] for at in torch.randperm(len(others), generator=generator)[:count].tolist()
        )
        for _ in range(draws)
    ]
    sets = [(), chosen, *sets]
    losses = [
        repeat_loss(model, heads, seed=seed)
        for heads in tracked(sets, "ablating", draws + 2, progress=progress)
    ]
    return Ablation(chosen, losses[0], losses[1], tuple(losses[2:]), tuple(sets[2:]))


def repeat_loss(model: Decoder, without: Iterable[Head] = (), *, seed: int = 0) -> float:
    """The loss on tokens that repeat, in nats a token, with some heads taken out."""
    vocabulary, begin = random_vocabulary(model, None)
    rows, size = repeated_rows(vocabulary, begin, seed + 1000)
    with eval_mode(model), ablating(model, without):
        return _loss(model, rows, size)


@torch.no_grad()
def _loss(model: Decoder, rows: Tensor, size: int) -> float:
    """The mean loss on the second run of the tokens but its first, which cannot be predicted."""
    hidden = model.hidden(rows[:, :-1])[:, -(size - 1) :]
    logits = model.logits(hidden)
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1 - size :].flatten()))
