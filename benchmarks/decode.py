"""One new token against a long cache: is memory bandwidth the limit?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import limelight as ll
from benchmarks import peers
from benchmarks.harness import Bench, Call, Case, Row, Target, at_least, tensors

TITLE = "decode, b 1, one query"
TARGET = "≥ 80% of read bandwidth; ≥ 1.6x (MHA) and ≥ 4x (GQA 32/8)"

D = 128


def measure(bench: Bench) -> list[Target]:
    rows: dict[int, list[Row]] = {32: [], 8: []}
    for g in rows:
        for j in bench.pick((8192, 16384, 32768, 65536), quick=(8192, 32768)):
            q, k, v = tensors((1, 32, 1, D), (1, g, j, D), (1, g, j, D))
            rows[g].append(bench.compare(_case(f"h32 g{g} {j} keys d{D}", q, k, v)))
    for dtype in bench.pick((torch.bfloat16, torch.float16), quick=(torch.bfloat16,)):
        q, k, v = tensors((1, 32, 1, D), (1, 8, 32768, D), (1, 8, 32768, D), dtype=dtype)
        kind = str(dtype).removeprefix("torch.")
        bench.compare(_case(f"h32 g8 32768 keys d{D} {kind}", q, k, v, tolerance=2e-2))
    share = min(row.bandwidth_share for row in rows[32] + rows[8])
    return [
        at_least("share of read bandwidth, float32", share, 0.8, "%"),
        at_least("MHA, each point", bench.worst(rows[32]), 1.6),
        at_least("GQA 32/8, each point", bench.worst(rows[8]), 4.0),
    ]


def _case(name: str, q: Tensor, k: Tensor, v: Tensor, tolerance: float = 2e-4) -> Case:
    contenders: dict[str, Callable[[], Call]] = {
        "SDPA": partial(peers.sdpa, q, k, v),
        "OpenVINO": partial(peers.openvino, q, k, v),
    }
    beside: dict[str, Callable[[], Call]] = {}
    if k.shape[1] == q.shape[1]:
        contenders["ONNX Runtime"] = partial(peers.onnxruntime, q, k, v)
    else:
        contenders["ONNX Runtime GQA"] = partial(peers.onnxruntime_grouped, q, k, v)
        beside["SDPA, stacked by hand"] = lambda: _stacked(q, k, v)
    return Case(
        name,
        ours=lambda: ll.attend(q, k, v),
        peers=contenders,
        beside=beside,
        reads=(k, v),
        tolerance=tolerance,
    )


def _stacked(q: Tensor, k: Tensor, v: Tensor) -> Call:
    """SDPA with a group's queries as rows of one head: possible by hand for a single token."""
    b, h, _, d = q.shape
    rows = q.view(b, k.shape[1], h // k.shape[1], d)
    return lambda: F.scaled_dot_product_attention(rows, k, v).view(b, h, 1, d)
