"""Documents of different lengths packed without padding, against a padded batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import limelight as ll
from benchmarks import peers
from benchmarks.harness import Bench, Call, Case, Target, at_least, tensors

TITLE = "64 packed documents of 16–512 tokens"
TARGET = "≥ 2x SDPA on the padded batch"


def measure(bench: Bench) -> list[Target]:
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(16, 513, (64,), generator=generator).tolist()
    for causal in (False, True):
        for h, d in bench.pick(((12, 64), (12, 32)), quick=((12, 64),)):
            q, k, v = tensors(*[(sum(lengths), h, d)] * 3)
            inside = ll.causal() if causal else None
            pairs = sum(n * (n + 1) / 2 if causal else n * n for n in lengths)
            bench.compare(
                Case(
                    f"{sum(lengths)} tokens h{h} d{d}{' causal' if causal else ''}",
                    ours=lambda q=q, k=k, v=v, inside=inside: ll.attend_packed(
                        q, k, v, lengths, mask=inside
                    ),
                    peers={
                        "SDPA, padded": lambda q=q, k=k, v=v, causal=causal: _padded(
                            q, k, v, lengths, causal
                        )
                    },
                    beside={
                        "SDPA, a call a document": lambda q=q, k=k, v=v, causal=causal: _one_by_one(
                            q, k, v, lengths, causal
                        )
                    },
                    unpack={"SDPA, padded": lambda padded: padded.transpose(1, 2)[_real(lengths)]},
                    flops=4 * h * pairs * d,
                )
            )
    return [at_least("each point", bench.worst(), 2.0)]


def _padded(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool) -> Call:
    """SDPA on `b h n d`; padding before and unpadding after the call are not timed.

    In the causal case the plain causal mask is enough: padding comes after every real token.
    """
    real = _real(lengths)
    batch = [torch.zeros(*real.shape, *flat.shape[1:]) for flat in (q, k, v)]
    for flat, padded in zip((q, k, v), batch, strict=True):
        padded[real] = flat
    heads = [padded.transpose(1, 2).contiguous() for padded in batch]
    if causal:
        return peers.sdpa(*heads, causal=True)
    return peers.sdpa_masked(*heads, mask=real[:, None, None, :])


def _real(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool) -> Call:
    parts = [[part.transpose(0, 1)[None] for part in t.split(lengths)] for t in (q, k, v)]

    def call() -> Tensor:
        outputs = [
            F.scaled_dot_product_attention(a, b, c, is_causal=causal)[0].transpose(0, 1)
            for a, b, c in zip(*parts, strict=True)
        ]
        return torch.cat(outputs)

    return call
