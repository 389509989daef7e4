"""The score against the angle between query and key, and against their lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least
from limelight.ops.lens.sources import Recomputed
from limelight.rng import generator_for
from limelight.seeing.look import look

TEXT = "The animal didn't cross the street because it was too tired."


def run(seed: int = 0) -> Study:
    """Random vectors of one length, and every head of MiniLM on one sentence."""
    rng = generator_for(seed, 1)
    query, key = torch.nn.functional.normalize(
        torch.randn(2, 200, 32, generator=rng, dtype=torch.float64), dim=-1
    )
    equal = _rank_correlation(query @ key.T, _cosines(query, key))
    recording = look(TEXT)
    by_layer: list[float] = []
    heads: list[tuple[float, float, float]] = []
    for seen in recording.layers:
        assert isinstance(seen.source, Recomputed)
        problem = seen.source.problem
        rows = [
            _head(problem.query[0, h], problem.key[0, h]) for h in range(problem.query.shape[1])
        ]
        heads += rows
        by_layer.append(sum(row[0] for row in rows) / len(rows))
    correlations = torch.tensor([row[0] for row in heads])
    best = torch.tensor([row[1] for row in heads]).mean()
    lengths = torch.tensor([row[2] for row in heads]).mean()
    layers = list(range(len(by_layer)))
    ordered = correlations.sort().values.tolist()
    return Study(
        name="geometry",
        claim="the score is literally a measurement of how parallel query and key are.",
        source="slides 'Why Dot Product?'; Self-Attention Layer §8",
        measured="rank correlation of score and cosine within each query's row: vectors of one "
        f"length, and all {len(heads)} heads of MiniLM on one sentence",
        checks=(
            at_least("rank correlation where all lengths are equal", equal, 0.999),
            at_least(
                "median rank correlation over MiniLM's heads", float(correlations.median()), 0.9
            ),
            at_least(
                "share of MiniLM's queries whose best key is the most parallel", float(best), 0.9
            ),
        ),
        panels=(
            Panel(
                "heads of MiniLM",
                "head, in order",
                "rank correlation, score and cosine",
                [Curve("heads", list(range(len(ordered))), ordered)],
            ),
            Panel("by layer", "layer", "mean rank correlation", [Curve("layer", layers, by_layer)]),
        ),
        seed=seed,
        notes="A score is cosine × both lengths: a long key is found by many queries whatever its "
        f"angle. Over MiniLM's heads keys differ in length by {float(lengths):.0%} on average "
        "(standard deviation / mean).",
    )


def _head(query: Tensor, key: Tensor) -> tuple[float, float, float]:
    query, key = query.double(), key.double()
    scores, cosines = query @ key.T, _cosines(query, key)
    agreed = (scores.argmax(-1) == cosines.argmax(-1)).double().mean()
    lengths = key.norm(dim=-1)
    return _rank_correlation(scores, cosines), float(agreed), float(lengths.std() / lengths.mean())


def _cosines(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.T) / (query.norm(dim=-1)[:, None] * key.norm(dim=-1))


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's ρ within rows, averaged over them."""
    ranks = [x.argsort(-1).argsort(-1).double() for x in (a, b)]
    centred = [rank - rank.mean(-1, keepdim=True) for rank in ranks]
    products = (centred[0] * centred[1]).sum(-1)
    return float((products / (centred[0].norm(dim=-1) * centred[1].norm(dim=-1))).mean())
