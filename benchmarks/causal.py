"""Causal float32 attention: does the half that the mask rules out cost nothing?"""

from __future__ import annotations

import limelight as ll
from benchmarks import peers
from benchmarks.dense import SHAPES
from benchmarks.harness import Bench, Case, Target, at_least, tensors

TITLE = "causal float32"
TARGET = "≥ 1.2x at each point, mean ≥ 1.6x"


def measure(bench: Bench) -> list[Target]:
    mask = ll.causal()
    for d in bench.pick((32, 64, 128), quick=(64,)):
        for n in bench.pick(SHAPES, quick=(128, 512, 2048)):
            b, h = SHAPES[n]
            q, k, v = tensors(*[(b, h, n, d)] * 3)
            bench.compare(
                Case(
                    f"b{b} h{h} n{n} d{d}",
                    ours=lambda q=q, k=k, v=v: ll.attend(q, k, v, mask=mask),
                    peers=peers.all_peers(q, k, v, causal=True, compile_flex=(n, d) == (2048, 64)),
                    flops=2 * b * h * n * (n + 1) * d,
                )
            )
    return [
        at_least("each point", bench.worst(), 1.2),
        at_least("geometric mean", bench.mean(), 1.6),
    ]
