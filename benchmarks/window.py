"""A sliding window: is time linear in the sequence, and ahead of compiled FlexAttention?"""

from __future__ import annotations

from functools import partial

import limelight as ll
from benchmarks import peers
from benchmarks.harness import Bench, Case, Target, at_least, at_most, tensors

TITLE = "window(256) & causal float32"
TARGET = "≥ 3x compiled FlexAttention, time linear in n"

LEFT = 256


def measure(bench: Bench) -> list[Target]:
    mask = ll.causal() & ll.window(LEFT)
    lengths = bench.pick((4096, 16384, 65536), quick=(4096, 16384))
    rows = []
    for n in lengths:
        q, k, v = tensors(*[(1, 8, n, 64)] * 3)
        pairs = (LEFT + 1) * n - LEFT * (LEFT + 1) / 2
        rows.append(
            bench.compare(
                Case(
                    f"b1 h8 n{n} d64",
                    ours=lambda q=q, k=k, v=v: ll.attend(q, k, v, mask=mask),
                    peers={"FlexAttention": partial(peers.flex, q, k, v, left=LEFT)},
                    flops=4 * 8 * pairs * 64,
                )
            )
        )
    growth = rows[-1].ours.median / rows[0].ours.median / (lengths[-1] / lengths[0])
    return [
        at_least("each point", bench.worst(), 3.0),
        at_most(f"time a token, n {lengths[-1]} against n {lengths[0]}", growth, 1.15),
    ]
