"""Dense float32 attention: is it ahead of every peer at every length and head size?"""

from __future__ import annotations

import limelight as ll
from benchmarks import peers
from benchmarks.harness import Bench, Case, Target, at_least, tensors

TITLE = "dense float32"
TARGET = "≥ 1.15x at each point, mean ≥ 1.3x; ≥ 75% of FMA peak at n ≥ 2048, d ≥ 64"

SHAPES = {128: (32, 12), 512: (8, 12), 2048: (1, 12), 8192: (1, 4)}
"""n → b, h: shorter sequences come in larger batches, for about the same work."""


def measure(bench: Bench) -> list[Target]:
    long = []
    for d in bench.pick((32, 64, 128), quick=(64,)):
        for n in bench.pick(SHAPES, quick=(128, 512, 2048)):
            b, h = SHAPES[n]
            q, k, v = tensors(*[(b, h, n, d)] * 3)
            row = bench.compare(
                Case(
                    f"b{b} h{h} n{n} d{d}",
                    ours=lambda q=q, k=k, v=v: ll.attend(q, k, v),
                    peers=peers.all_peers(q, k, v, compile_flex=(n, d) == (2048, 64)),
                    flops=4 * b * h * n * n * d,
                )
            )
            if n >= 2048 and d >= 64:
                long.append(row.peak_share)
    return [
        at_least("each point", bench.worst(), 1.15),
        at_least("geometric mean", bench.mean(), 1.3),
        at_least("share of FMA peak at n ≥ 2048, d ≥ 64", min(long), 0.75, "%"),
    ]
