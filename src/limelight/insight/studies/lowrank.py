"""Quality and parameters against the rank of the value map, V = X · V_down · V_up."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.insight.studies.training import SmallModel, accuracy, seeded, train
from limelight.layers.attention import Attention

WIDTH, WORDS, TOKENS = 48, 16, 8
RANKS = (1, 2, 4, 8, 16, None)
STEPS = 300


def run(seed: int = 0) -> Study:
    """The last token must give the word before it; its value map has rank 1 up to full."""
    accuracies = [_trained_accuracy(rank, seed) for rank in RANKS]
    full = WIDTH * WIDTH
    counts = [full if rank is None else 2 * WIDTH * rank for rank in RANKS]
    least = accuracies[-1] - 0.02
    smallest = next(index for index, value in enumerate(accuracies) if value >= least)
    ranks = [WIDTH if rank is None else rank for rank in RANKS]
    return Study(
        name="lowrank",
        claim="values can be mapped down to a smaller space and up again: fewer parameters for the "
        "same result.",
        source="Transformer notes 'V = X V_down V_up'",
        measured=f"accuracy of naming the word before, 1 of {WORDS}, width {WIDTH}, by the rank of "
        f"the value map after {STEPS} steps",
        checks=(
            at_least("accuracy with the full value map", accuracies[-1], 0.9),
            at_most(
                "parameters of the smallest map within 0.02 of it / of the full one",
                counts[smallest] / full,
                0.5,
            ),
        ),
        panels=(
            Panel("quality", "rank", "accuracy", [Curve("accuracy", ranks, accuracies)], True),
            Panel(
                "parameters of the value map",
                "rank",
                "numbers",
                [
                    Curve("V_down and V_up", ranks, counts),
                    Curve("full", ranks, [full] * len(ranks), reference=True),
                ],
                True,
            ),
        ),
        seed=seed,
    )


def _trained_accuracy(rank: int | None, seed: int) -> float:
    seeded(seed, 11)
    attention = Attention(WIDTH, heads=1, value_rank=rank, bias="none")
    model = SmallModel(WORDS, (WORDS,), attention)
    train(model, _batch, steps=STEPS, seed=seed, rate=5e-3)
    return accuracy(model, _batch, seed=seed)


def _batch(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(WORDS, (size, TOKENS), generator=rng)
    return tokens, tokens[:, -2]
