"""One small call: is the way into the kernel as short as PyTorch's own?"""

from __future__ import annotations

from functools import partial

import limelight as ll
from benchmarks import peers
from benchmarks.harness import Bench, Case, Target, at_least, tensors

TITLE = "one small call"
TARGET = "(1, 1, 8, 64) no slower than SDPA's own call"


def ask(bench: Bench) -> list[Target]:
    rows = []
    for b, h, n, d in bench.pick(
        ((1, 1, 8, 64), (1, 4, 16, 32), (1, 12, 32, 64)), quick=((1, 1, 8, 64),)
    ):
        q, k, v = tensors(*[(b, h, n, d)] * 3)
        rows.append(
            bench.compare(
                Case(
                    f"b{b} h{h} n{n} d{d}",
                    ours=lambda q=q, k=k, v=v: ll.attend(q, k, v),
                    peers={"SDPA": partial(peers.sdpa, q, k, v)},
                    beside={
                        "ONNX Runtime": partial(peers.onnxruntime, q, k, v),
                        "OpenVINO": partial(peers.openvino, q, k, v),
                    },
                )
            )
        )
    return [at_least("(1, 1, 8, 64) against SDPA", bench.worst(rows[:1]), 1.0)]
