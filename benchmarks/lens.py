"""Seeing: what does the lens cost compared to plain attention?"""

from __future__ import annotations

import torch
from torch import Tensor

import limelight as ll
from benchmarks.harness import Bench, Call, Case, Target, at_least, at_most, tensors

TITLE = "the lens, h 8, d 64"
TARGET = (
    "full lens ≤ 1.8x plain attend and ≥ 3x faster than eager weights, same sweep ≤ 1.25x, n 4096"
)

SAME_SWEEP = ll.Lens(top=8, entropy=True)
EVERY_QUERY = ll.Lens(top=8, entropy=True, distance=True, columns=(0,), band=16)
FULL = ll.Lens(top=8, entropy=True, received=True, map=(128, 128))


def measure(bench: Bench) -> list[Target]:
    n = bench.pick((4096,), quick=(1024,))[0]
    q, k, v = tensors(*[(1, 8, n, 64)] * 3)

    def with_lens(lens: ll.Lens) -> Call:
        return lambda: ll.attend(q, k, v, lens=lens)[0]

    def eager() -> Tensor:
        weights = torch.softmax(q @ k.mT * 64**-0.5, dim=-1)
        return weights @ v

    row = bench.compare(
        Case(
            f"n{n} full lens",
            ours=with_lens(FULL),
            peers={"eager weights": lambda: eager},
            beside={
                "plain attend": lambda: lambda: ll.attend(q, k, v),
                "same sweep": lambda: with_lens(SAME_SWEEP),
                "every query": lambda: with_lens(EVERY_QUERY),
            },
        )
    )
    plain = row.beside["plain attend"].median
    return [
        at_most(f"full lens beside plain, n {n}", row.ours.median / plain, 1.8),
        at_least("full lens against eager weights", bench.worst(), 3.0),
        at_most("same sweep (top 8, entropy)", row.beside["same sweep"].median / plain, 1.25),
        at_most("every per-query statistic", row.beside["every query"].median / plain, 1.25),
    ]
