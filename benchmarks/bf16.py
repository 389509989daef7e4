"""bfloat16 storage: is attention as fast as in float32, with half the memory traffic?"""

from __future__ import annotations

import torch

import limelight as ll
from benchmarks import peers
from benchmarks.dense import SHAPES
from benchmarks.harness import Bench, Case, Target, at_least, tensors

TITLE = "bfloat16, full and causal"
TARGET = "≥ 1.25x at each point"


def measure(bench: Bench) -> list[Target]:
    for causal in (False, True):
        mask = ll.causal() if causal else None
        for n in bench.pick(SHAPES, quick=(512, 2048)):
            b, h = SHAPES[n]
            q, k, v = tensors(*[(b, h, n, 64)] * 3, dtype=torch.bfloat16)
            pairs = n * (n + 1) / 2 if causal else n * n
            bench.compare(
                Case(
                    f"b{b} h{h} n{n} d64{' causal' if causal else ''}",
                    ours=lambda q=q, k=k, v=v, mask=mask: ll.attend(q, k, v, mask=mask),
                    peers=peers.all_peers(q, k, v, causal=causal),
                    flops=4 * b * h * pairs * 64,
                    tolerance=2e-2,
                )
            )
    return [at_least("each point", bench.worst(), 1.25)]
