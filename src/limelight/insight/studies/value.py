"""What a separate W_v is for: a token is found by one property and contributes another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from limelight.insight.studies.study import Curve, Panel, Study, at_least
from limelight.insight.studies.training import SmallModel, accuracy, seeded, train
from limelight.layers.attention import Attention

KEYS, PAYLOADS, PAIRS, WIDTH = 16, 16, 8, 48
SIZES = (2, 4, 8, 16)
STEPS = 300


class _Tied(Attention):
    """One head whose values are its keys: W_v = W_k."""

    def __init__(self, size: int) -> None:
        super().__init__(WIDTH, heads=1, head_size=size, bias="none")

    def project(self, *args: object, **options: object) -> tuple[Tensor, Tensor, Tensor]:
        query, key, _ = super().project(*args, **options)  # pyright: ignore[reportArgumentType]
        return query, key, key


def run(seed: int = 0) -> Study:
    """Pairs of a name and a payload; given a name, the model must return its payload."""
    separate = [
        _trained_accuracy(Attention(WIDTH, heads=1, head_size=size, bias="none"), size, seed)
        for size in SIZES
    ]
    tied = [_trained_accuracy(_Tied(size), size, seed) for size in SIZES]
    small = SIZES.index(4)
    return Study(
        name="value",
        claim="a separate W_v decouples what a token is found by from what it gives.",
        source="slides 'Why 3 Matrices?'; The Architecture of Focus §2",
        measured=f"accuracy of looking up 1 of {PAYLOADS} payloads by its name among {PAIRS} pairs "
        f"after {STEPS} steps, one head of d {SIZES[0]} to {SIZES[-1]}, W_v its own or W_v = W_k",
        checks=(
            at_least("accuracy with its own W_v, d 8", separate[SIZES.index(8)], 0.9),
            at_least(
                "accuracy gained by a W_v of its own, d 4", separate[small] - tied[small], 0.1
            ),
            at_least(
                "accuracy gained, mean over sizes", (sum(separate) - sum(tied)) / len(SIZES), 0.05
            ),
        ),
        panels=(
            Panel(
                "looking up a payload",
                "d",
                "accuracy",
                [Curve("own W_v", SIZES, separate), Curve("W_v = W_k", SIZES, tied)],
                True,
            ),
        ),
        seed=seed,
        notes="A large head can keep names and payloads in different channels of one matrix: the "
        "gain shrinks as the head grows.",
    )


def _trained_accuracy(attention: Attention, size: int, seed: int) -> float:
    seeded(seed, size)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=WIDTH**-0.5)
    model = SmallModel(KEYS * PAYLOADS + KEYS, (PAYLOADS,), attention, positions=False)
    names = torch.randn(KEYS, WIDTH // 2)
    payloads = torch.randn(PAYLOADS, WIDTH // 2)
    # a token of a pair holds its name and its payload; the query token holds a name alone
    pairs = torch.cat([names.repeat_interleave(PAYLOADS, 0), payloads.repeat(KEYS, 1)], 1)
    queries = torch.cat([names, torch.zeros_like(names)], 1)
    model.embedding.weight.data = torch.cat([pairs, queries])
    model.embedding.weight.requires_grad_(False)
    train(model, _batch, steps=STEPS, seed=seed)
    return accuracy(model, _batch, seed=seed)


def _batch(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    names = torch.rand(size, KEYS, generator=rng).argsort(-1)[:, :PAIRS]
    payloads = torch.randint(PAYLOADS, (size, PAIRS), generator=rng)
    chosen = torch.randint(PAIRS, (size, 1), generator=rng)
    tokens = torch.cat([names * PAYLOADS + payloads, KEYS * PAYLOADS + names.gather(1, chosen)], 1)
    return tokens, payloads.gather(1, chosen)[:, 0]
