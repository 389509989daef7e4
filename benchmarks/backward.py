"""Training: forward and backward together, full and causal."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

import limelight as ll
from benchmarks.harness import Bench, Call, Case, Target, UnableError, at_least, tensors
from limelight.ops.masks.mask import Mask

TITLE = "forward + backward float32"
TARGET = "≥ 1.25x at each point"

SHAPES = {512: (4, 8), 1024: (2, 8), 2048: (1, 8), 4096: (1, 4)}


def measure(bench: Bench) -> list[Target]:
    for causal in (False, True):
        mask = ll.causal() if causal else None
        for n in bench.pick(SHAPES, quick=(512, 2048)):
            b, h = SHAPES[n]
            q, k, v, grad = tensors(*[(b, h, n, 64)] * 4)
            leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
            pairs = n * (n + 1) / 2 if causal else n * n

            def ours(leaves: list[Tensor] = leaves, mask: Mask | None = mask) -> Tensor:
                return ll.attend(*leaves, mask=mask)

            def theirs(leaves: list[Tensor] = leaves, causal: bool = causal) -> Tensor:
                return F.scaled_dot_product_attention(*leaves, is_causal=causal)

            bench.compare(
                Case(
                    f"b{b} h{h} n{n} d64{' causal' if causal else ''}",
                    ours=_trained(ours, leaves, grad),
                    peers={
                        "SDPA": lambda theirs=theirs, leaves=leaves, grad=grad: _trained(
                            theirs, leaves, grad
                        ),
                        "FlexAttention": lambda: _unable("cannot train on a CPU"),
                        "ONNX Runtime": lambda: _unable("its MultiHeadAttention does not train"),
                        "OpenVINO": lambda: _unable("does not train"),
                    },
                    flops=14 * b * h * pairs * 64,
                )
            )
    return [at_least("each point", bench.worst(), 1.25)]


def _trained(forward: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> Call:
    def call() -> list[Tensor]:
        for leaf in leaves:
            leaf.grad = None
        output = forward()
        output.backward(grad)
        return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    return call


def _unable(reason: str) -> Call:
    raise UnableError(reason)
