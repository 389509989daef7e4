"""Var(q·k) against d, and what softmax makes of scores with and without 1/√d."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most, exponent
from limelight.rng import generator_for

SIZES = (4, 16, 64, 256, 1024)
KEYS = 64


def run(seed: int = 0) -> Study:
    """Random queries and keys of unit variance, 512 queries against 64 keys at each size."""
    numbers = {size: _measure(size, seed) for size in SIZES}
    variances = [numbers[size]["variance"] for size in SIZES]
    last = numbers[SIZES[-1]]
    return Study(
        name="scaling",
        claim="Var(q·k) = d, so without 1/√d softmax saturates and its gradient dies; "
        "with it the variance stays near 1.",
        source="Self-Attention Layer §4, §13; slides 'Scaling Deep Dive'; notes; "
        "The Architecture of Focus §3",
        measured="variance of q·k, entropy of the weights and size of the softmax's gradient for "
        f"d from {SIZES[0]} to {SIZES[-1]}, {KEYS} keys",
        checks=(
            at_least("exponent of Var(q·k) in d", exponent(SIZES, variances), 0.95),
            at_most("exponent of Var(q·k) in d", exponent(SIZES, variances), 1.05),
            at_most(
                "distance of the scaled variance from 1, d 1024",
                abs(last["variance"] / SIZES[-1] - 1),
                0.1,
            ),
            at_most("entropy without scaling, d 1024, of log 64", last["entropy, plain"], 0.1),
            at_least("entropy with scaling, d 1024, of log 64", last["entropy, scaled"], 0.8),
            at_most(
                "median gradient without scaling / with, d 1024",
                last["gradient, plain"] / last["gradient, scaled"],
                0.1,
            ),
        ),
        panels=_panels(numbers),
        seed=seed,
        details={"numbers": numbers},
    )


def _panels(numbers: dict[int, dict[str, float]]) -> tuple[Panel, ...]:
    """Variance, entropy and gradient by the size of a head."""

    def curve(name: str, key: str) -> Curve:
        return Curve(name, SIZES, [numbers[size][key] for size in SIZES])

    return (
        Panel(
            "variance of q·k",
            "d",
            "variance",
            [Curve("d", SIZES, SIZES, reference=True), curve("q·k", "variance")],
            True,
            True,
        ),
        Panel(
            "entropy of the weights",
            "d",
            "share of log 64",
            [curve("with 1/√d", "entropy, scaled"), curve("without", "entropy, plain")],
            True,
        ),
        Panel(
            "gradient of softmax",
            "d",
            "median ‖∂A/∂S‖",
            [curve("with 1/√d", "gradient, scaled"), curve("without", "gradient, plain")],
            True,
            True,
        ),
    )


def _measure(size: int, seed: int) -> dict[str, float]:
    """The numbers of one size: the variance of q·k, and softmax with and without scaling."""
    rng = generator_for(seed, size)
    query = torch.randn(512, size, generator=rng, dtype=torch.float64)
    key = torch.randn(KEYS, size, generator=rng, dtype=torch.float64)
    fresh = torch.randn(2, 8000, size, generator=rng)
    plain = query @ key.T
    scaled = plain / math.sqrt(size)
    return {
        "variance": float((fresh[0] * fresh[1]).sum(-1).var()),
        "entropy, plain": _entropy(plain),
        "entropy, scaled": _entropy(scaled),
        "gradient, plain": _gradient(plain),
        "gradient, scaled": _gradient(scaled),
    }


def _entropy(scores: Tensor) -> float:
    """The mean entropy of the weights, as a share of its maximum."""
    logs = torch.log_softmax(scores, -1)
    return float(-(logs.exp() * logs).sum(-1).mean() / math.log(scores.shape[-1]))


def _gradient(scores: Tensor) -> float:
    """The median Frobenius norm of ∂weights/∂scores = diag(a) − a aᵀ."""
    weights = torch.softmax(scores, -1)
    squares = weights.square()
    total = squares.sum(-1)
    # Σ_ij (a_i δ_ij − a_i a_j)² = Σ a_i² − 2 Σ a_i³ + (Σ a_i²)²
    norm = (total - 2 * (squares * weights).sum(-1) + total.square()).clamp_min(1e-300).sqrt()
    return float(norm.median())
