"""One head against several, at equal parameters, on a task that needs two relations at once."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.insight.studies.training import SmallModel, accuracy, parameters, seeded, train
from limelight.layers.attention import Attention

WIDTH, WORDS, TOKENS = 32, 12, 10
HEADS = (1, 2, 4)
STEPS = 500


def run(seed: int = 0) -> Study:
    """The last token must give the first word and the word before it, and not mix them up."""
    layers = {heads: Attention(WIDTH, heads=heads) for heads in HEADS}
    accuracies = [_trained_accuracy(layers[heads], seed) for heads in HEADS]
    sizes = {parameters(layer) for layer in layers.values()}
    return Study(
        name="heads",
        claim="several heads capture several relations at once, where one head must mix them.",
        source="Self-Attention Layer §11; slides Key Takeaways; The Architecture of Focus 'Next'",
        measured=f"accuracy of naming two of {WORDS} words by two relations (the first, the one "
        f"before) with 1, 2 and 4 heads of equal parameters after {STEPS} steps",
        checks=(
            at_most("distinct parameter counts", float(len(sizes)), 1.0),
            at_least("accuracy with 4 heads", accuracies[-1], 0.9),
            at_least("accuracy gained over one head", accuracies[-1] - accuracies[0], 0.2),
        ),
        panels=(
            Panel(
                "two relations at once",
                "heads",
                "accuracy",
                [Curve("accuracy", [str(h) for h in HEADS], accuracies)],
            ),
        ),
        seed=seed,
    )


def _trained_accuracy(attention: Attention, seed: int) -> float:
    seeded(seed, 10)
    for parameter in attention.parameters():
        if parameter.ndim > 1:
            torch.nn.init.xavier_uniform_(parameter)
        else:
            torch.nn.init.zeros_(parameter)
    model = SmallModel(WORDS, (WORDS, WORDS), attention)
    train(model, _batch, steps=STEPS, seed=seed, rate=5e-3)
    return accuracy(model, _batch, seed=seed)


def _batch(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(WORDS, (size, TOKENS), generator=rng)
    return tokens, tokens[:, [0, -2]]
