"""Inputs and checks for tests that watch models."""

from __future__ import annotations

import torch
from torch import Tensor

import limelight as ll

IDS = torch.randint(3, 99, (2, 11), generator=torch.Generator().manual_seed(4))


LENS = ll.Lens(top=3, entropy=True, distance=True, columns=(0,), band=2, received=True, map=(3, 3))


GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def check_statistics(seen: ll.Seen, weights: Tensor) -> None:
    """Check that all statistics equal those of eager's weights."""

    def close(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
        torch.testing.assert_close(actual, expected, atol=1e-5 * scale, rtol=1e-4)

    queries, keys = weights.shape[2:]
    close(seen.dense(), weights)
    close(seen.top.weights, weights.topk(3).values)
    real = seen.top.indices.clamp_min(0)
    close(torch.where(seen.top.indices < 0, 0.0, weights.gather(-1, real)), seen.top.weights)
    close(seen.received, weights.sum(2))
    logs = torch.where(weights > 0, weights.log(), 0.0)
    close(seen.entropy, -(weights * logs).sum(-1))
    distances = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()
    close(seen.distance, (weights * distances).sum(-1), scale=keys)
    close(seen.band, (weights * (distances <= 2)).sum(-1))
