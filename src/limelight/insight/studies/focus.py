"""Weight on irrelevant tokens as the context grows, and what limits it."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.ops.attend import attend
from limelight.ops.masks.band import window
from limelight.ops.masks.mask import Mask
from limelight.rng import generator_for

SIZE, QUERIES, WINDOW = 64, 64, 16
LENGTHS = (32, 128, 512, 2048, 8192)
MARGIN = 6.0
"""How much higher the right key scores than others do on average, after scaling."""


def run(seed: int = 0) -> Study:
    """The last tokens each have one key that matters, nearby; all others are noise."""
    ways: dict[str, tuple[Mask | None, float, float | None]] = {
        "full": (None, 1.0, None),
        f"window {WINDOW}": (window(WINDOW), 1.0, None),
        "scale x 2": (None, 2.0, None),
        "softcap 4": (None, 1.0, 4.0),
    }
    wasted = {name: [_irrelevant(n, seed, *way) for n in LENGTHS] for name, way in ways.items()}
    full, near = wasted["full"], wasted[f"window {WINDOW}"]
    return Study(
        name="focus",
        claim="attention can be too global: the more tokens there are, the more weight goes to "
        "irrelevant ones.",
        source="slides 'Limitation With Self-Attention'",
        measured=f"share of weight on all but the one key that matters (its score {MARGIN:g} above "
        f"the mean of standard normal ones), n from {LENGTHS[0]} to {LENGTHS[-1]:,}",
        checks=(
            at_most(f"full attention, n {LENGTHS[0]}", full[0], 0.25),
            at_least(f"full attention, n {LENGTHS[-1]:,}", full[-1], 0.75),
            at_most(f"a window, n {LENGTHS[-1]:,}", near[-1], 0.25),
        ),
        panels=(
            Panel(
                "weight on irrelevant tokens",
                "tokens",
                "share",
                [Curve(name, LENGTHS, values) for name, values in wasted.items()],
                True,
            ),
        ),
        seed=seed,
        notes=f"At n {LENGTHS[-1]:,}, twice the scale leaves {wasted['scale x 2'][-1]:.2f} on "
        f"irrelevant tokens, and a softcap of 4 leaves {wasted['softcap 4'][-1]:.2f}, because it "
        "compresses the differences between scores. A window helps only because the right key is "
        "near. A trained model learns its margins.",
        details={"wasted": wasted},
    )


def _irrelevant(n: int, seed: int, mask: Mask | None, sharper: float, cap: float | None) -> float:
    """The mean share of weight that does not go to the one key that matters."""
    rng = generator_for(seed, n)
    key = torch.randn(n, SIZE, generator=rng, dtype=torch.float64)
    first = n - min(QUERIES, n - WINDOW)
    rows = torch.arange(first, n)
    right = rows - torch.randint(1, WINDOW // 2, (len(rows),), generator=rng)
    query = torch.randn(len(rows), SIZE, generator=rng, dtype=torch.float64)
    chosen = key[right]
    # the part of the query along its key is set so that the scaled score is the margin
    unit = chosen / chosen.norm(dim=-1, keepdim=True)
    along = (query * unit).sum(-1, keepdim=True)
    query += (MARGIN * SIZE**0.5 / chosen.norm(dim=-1, keepdim=True) - along) * unit
    marks: Tensor = torch.zeros(n, len(rows), dtype=torch.float64)
    marks[right, torch.arange(len(rows))] = 1.0
    shares = attend(
        query[None, None],
        key[None, None],
        marks[None, None],
        mask=mask,
        scale=sharper * SIZE**-0.5,
        softcap=cap,
        impl="reference",
    )[0, 0]
    return float(1 - shares.diagonal().mean())
