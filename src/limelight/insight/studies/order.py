"""Without positions attention does not know order; each way to encode them breaks the symmetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.insight.studies.training import SmallModel, accuracy, seeded, train
from limelight.layers.attention import Attention
from limelight.layers.positions import RelativeBias, sinusoidal
from limelight.layers.rotary import Rotary
from limelight.ops.bias import alibi
from limelight.ops.masks.band import causal
from limelight.rng import generator_for

WIDTH, HEADS, TOKENS, WORDS = 32, 4, 12, 8
STEPS = 250


def run(seed: int = 0) -> Study:
    """Permuted tokens through one layer, and a task: which of two words comes first?"""
    ways = _ways()
    moved = {
        name: _moved(options, seed, added=name == "sinusoidal") for name, options in ways.items()
    }
    accuracies = {name: _trained_accuracy(name, options, seed) for name, options in ways.items()}
    with_positions = [name for name in ways if name != "none"]
    with_direction = ("sinusoidal", "rotary", "relative bias", "causal mask")
    return Study(
        name="order",
        claim="attention treats tokens as an unordered set: positional encoding is needed.",
        source="slides 'Limitation With Self-Attention'; notes follow-up questions",
        measured="how far outputs move beyond the permutation when tokens are permuted, and the "
        f"accuracy of telling which of two words comes first after {STEPS} steps, for "
        + ", ".join(ways),
        checks=(
            at_most("without positions: movement beyond the permutation", moved["none"], 1e-9),
            at_least(
                "with positions: least movement", min(moved[name] for name in with_positions), 1e-3
            ),
            at_most("without positions: accuracy (chance 0.5)", accuracies["none"], 0.6),
            at_least(
                "with positions that know direction: least accuracy",
                min(accuracies[name] for name in with_direction),
                0.9,
            ),
        ),
        panels=(
            Panel(
                "change of outputs beyond the permutation",
                "positions",
                "relative change",
                [Curve("change", list(ways), [max(moved[name], 1e-17) for name in ways])],
                log_y=True,
            ),
            Panel(
                "which word comes first?",
                "positions",
                "accuracy",
                [Curve("accuracy", list(ways), list(accuracies.values()))],
            ),
        ),
        seed=seed,
        notes="ALiBi without a causal mask encodes distance but not direction: a reversed text has "
        f"the same scores, so accuracy stays near chance ({accuracies['ALiBi']:.2f}).",
        details={"moved": moved, "accuracy": accuracies},
    )


Options = Callable[[int], dict[str, Any]]
"""Arguments of the layer's call, given the number of tokens."""


def _ways() -> dict[str, Options]:
    rotary = Rotary(WIDTH // HEADS)
    # a fixed random table of biases, one for each distance and direction
    relative = RelativeBias(heads=HEADS)
    for parameter in relative.parameters():
        torch.nn.init.normal_(parameter, generator=generator_for(5), std=2.0)
    return {
        "none": lambda _: {},
        "sinusoidal": lambda _: {},
        "rotary": lambda n: {"rotation": rotary(torch.arange(n))},
        "ALiBi": lambda _: {"bias": alibi(HEADS)},
        "relative bias": lambda n: {"bias": relative(n, n)},
        "causal mask": lambda _: {"mask": causal()},
    }


@torch.no_grad()
def _moved(options: Options, seed: int, *, added: bool) -> float:
    """How far permuted tokens move outputs beyond the permutation, relative to their norm."""
    seeded(seed, 3)
    layer = Attention(WIDTH, heads=HEADS).double().eval()
    x = torch.randn(1, TOKENS, WIDTH, generator=generator_for(seed, 4), dtype=torch.float64)
    order = torch.randperm(TOKENS, generator=generator_for(seed, 5))
    positions = sinusoidal(torch.arange(TOKENS), WIDTH).double() if added else 0.0
    arguments = {
        name: value.double() if isinstance(value, Tensor) else value
        for name, value in options(TOKENS).items()
    }
    plain = layer(x + positions, **arguments)
    permuted = layer(x[:, order] + positions, **arguments)
    return float((permuted - plain[:, order]).norm() / plain.norm())


def _trained_accuracy(name: str, options: Options, seed: int) -> float:
    seeded(seed, 6)
    attention = Attention(WIDTH, heads=HEADS)

    def detached(n: int) -> dict[str, Any]:
        return {
            key: value.detach() if isinstance(value, Tensor) else value
            for key, value in options(n).items()
        }

    model = SmallModel(
        WORDS + 2, (2,), attention, positions=name == "sinusoidal", pool=True, options=detached
    )
    train(model, _batch, steps=STEPS, seed=seed, rate=1e-2)
    return accuracy(model, _batch, seed=seed)


def _batch(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Words, among them one A and one B; the target says whether A comes before B."""
    tokens = torch.randint(WORDS, (size, TOKENS), generator=rng)
    places = torch.rand(size, TOKENS, generator=rng).argsort(-1)[:, :2]
    tokens.scatter_(1, places, torch.tensor([WORDS, WORDS + 1]).expand(size, 2))
    return tokens, (places[:, 0] < places[:, 1]).long()
