"""W_q = W_k against separate matrices: symmetry, and which token a token matches best."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.rng import generator_for

SIZES = (8, 16, 32, 64)
TOKENS, DRAWS = 32, 20


def run(seed: int = 0) -> Study:
    """Random tokens and matrices: 20 draws of 32 tokens at each size of a head."""
    shared = [_measure(size, seed, shared=True) for size in SIZES]
    separate = [_measure(size, seed, shared=False) for size in SIZES]
    return Study(
        name="roles",
        claim="with one matrix for both roles scores are symmetric and a token looks for itself; "
        "separate W_q and W_k free it.",
        source="slides 'Why 3 Matrices?'",
        measured="asymmetry ‖S − Sᵀ‖/‖S‖ and the share of tokens whose best match is themselves, "
        f"random tokens and matrices, d from {SIZES[0]} to {SIZES[-1]}",
        checks=(
            at_most("asymmetry with one matrix", max(row[0] for row in shared), 1e-9),
            at_least("asymmetry with separate ones", min(row[0] for row in separate), 0.5),
            at_least("share that looks at itself, one matrix", min(row[1] for row in shared), 0.5),
            at_most(
                "share that looks at itself, separate (chance 1/32)",
                max(row[1] for row in separate),
                0.15,
            ),
        ),
        panels=(
            Panel(
                "asymmetry of scores",
                "d",
                "‖S − Sᵀ‖ / ‖S‖",
                [
                    Curve("one matrix", SIZES, [row[0] for row in shared]),
                    Curve("separate", SIZES, [row[0] for row in separate]),
                ],
                True,
            ),
            Panel(
                "tokens that match themselves best",
                "d",
                "share",
                [
                    Curve("one matrix", SIZES, [row[1] for row in shared]),
                    Curve("separate", SIZES, [row[1] for row in separate]),
                ],
                True,
            ),
        ),
        seed=seed,
    )


def _measure(size: int, seed: int, *, shared: bool) -> tuple[float, float]:
    rng = generator_for(seed, size)
    x = torch.randn(DRAWS, TOKENS, 64, generator=rng, dtype=torch.float64)
    w_query = torch.randn(DRAWS, 64, size, generator=rng, dtype=torch.float64)
    w_key = w_query if shared else torch.randn(DRAWS, 64, size, generator=rng, dtype=torch.float64)
    scores: Tensor = (x @ w_query) @ (x @ w_key).mT
    asymmetry = (scores - scores.mT).norm(dim=(1, 2)) / scores.norm(dim=(1, 2))
    own = scores.argmax(-1) == torch.arange(TOKENS)
    return float(asymmetry.mean()), float(own.double().mean())
