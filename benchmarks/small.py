"""One small call: is the overhead per call as low as that of the peers?"""

from __future__ import annotations

from functools import partial

import limelight as ll
from benchmarks import peers
from benchmarks.harness import Bench, Case, Target, at_least, tensors

TITLE = "one small call"
TARGET = "(1, 1, 8, 64) no slower than the best peer's call"


def measure(bench: Bench) -> list[Target]:
    rows = []
    points = (
        (1, 1, 8, 64, False),
        (1, 1, 8, 64, True),
        (1, 4, 16, 32, False),
        (1, 12, 32, 64, False),
    )
    for b, h, n, d, causal in bench.pick(points, quick=points[:1]):
        q, k, v = tensors(*[(b, h, n, d)] * 3)
        mask = ll.causal() if causal else None
        rows.append(
            bench.compare(
                Case(
                    f"b{b} h{h} n{n} d{d}" + (" causal" if causal else ""),
                    ours=lambda q=q, k=k, v=v, mask=mask: ll.attend(q, k, v, mask=mask),
                    peers={
                        "SDPA": partial(peers.sdpa, q, k, v, causal=causal),
                        "ONNX Runtime": partial(peers.onnxruntime, q, k, v, causal=causal),
                        "OpenVINO": partial(peers.openvino, q, k, v, causal=causal),
                    },
                )
            )
        )
    return [at_least("(1, 1, 8, 64)", bench.worst(rows[:1]), 1.0)]
