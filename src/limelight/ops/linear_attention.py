"""Linear attention: an approximation whose time and memory grow with n, not n².

Softmax attention weighs key j for query i by exp(scale · q_i·k_j). If that is replaced by
φ(q_i)·φ(k_j), the sum over the keys can be taken first and shared by all queries:

    output_i = φ(q_i)ᵀ (Σ_j φ(k_j) v_jᵀ) / φ(q_i)ᵀ Σ_j φ(k_j)

It is a different operation from `attend`, hence the name of its own.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from limelight.checks import check_flag, check_whole
from limelight.errors import OptionError
from limelight.ops.problem import check_problem

Features = Literal["elu", "favor"]
MOST_FEATURES = 1 << 20
CHUNK = 128
"""Causal sums are taken a chunk of queries at a time, so that no state is kept for every query."""


def attend_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    features: Features = "elu",
    causal: bool = False,
    scale: float | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Attention by feature maps, in time linear in the sequence. Approximate.

    Args:
        query: `b h i d`.
        key: `b g j d`, g divides h.
        value: `b g j e`.
        features: "elu" is φ(x) = elu(x) + 1, a similarity of its own (Katharopoulos et al. 2020,
            https://arxiv.org/abs/2006.16236). "favor" estimates softmax attention without bias by
            positive random features (Choromanski et al. 2020, https://arxiv.org/abs/2009.14794);
            its error falls with the square root of `rank`, and grows fast with the scores.
        causal: query i sees the keys up to its own position; needs as many queries as keys.
        scale: of the softmax that "favor" estimates; 1/√d unless given.
        rank: the number of random features, 4·d unless given.
        seed: draws the random features; the same seed gives the same output.

    >>> import torch, limelight as ll
    >>> q, k, v = torch.randn(3, 1, 2, 64, 16, generator=torch.Generator().manual_seed(0))
    >>> q, k = q / 2, k / 2
    >>> exact = ll.attend(q, k, v)
    >>> close = ll.attend_linear(q, k, v, features="favor", rank=4096)
    >>> bool((close - exact).abs().mean() < 0.02)
    True
    """
    problem = check_problem(query, key, value, scale=scale)
    causal = check_flag("causal", causal)
    if causal and query.shape[2] != key.shape[2]:
        raise OptionError(
            f"causal=True needs as many queries as keys, found i = {query.shape[2]}, "
            f"j = {key.shape[2]}"
        )
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[1] // max(key.shape[1], 1)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    if features == "elu":
        q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    elif features == "favor":
        count = 4 * query.shape[3] if rank is None else check_whole("rank", rank, 1, MOST_FEATURES)
        seed = check_whole("seed", seed, 0, (1 << 63) - 1)
        directions = _directions(count, query.shape[3], seed).to(q)
        root = math.sqrt(abs(problem.scale))
        q, k = (
            _favor(q * math.copysign(root, problem.scale), directions),
            _favor(k * root, directions),
        )
    else:
        raise OptionError(f"features must be 'elu' or 'favor', found {features!r}")
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    mixed = _causal_sums(q, k, v) if causal else _sums(q, k, v)
    return mixed.to(query.dtype)


def _favor(x: Tensor, directions: Tensor) -> Tensor:
    """exp(w·x − ‖x‖²/2) for each direction w, each head scaled so that nothing overflows.

    The factor is the same for every position of a head, so it cancels in the quotient.
    """
    exponent = x @ directions.T - x.square().sum(-1, keepdim=True) / 2
    highest = exponent.amax(dim=(-2, -1), keepdim=True) if exponent.numel() else 0.0
    return torch.exp(exponent - highest) + 1e-9


def _directions(count: int, d: int, seed: int) -> Tensor:
    """Gaussian directions, orthogonal in blocks of d: the same estimate with less variance."""
    rng = torch.Generator().manual_seed(seed)
    blocks: list[Tensor] = []
    for _ in range(-(-count // d)):
        gaussian = torch.randn(d, d, generator=rng, dtype=torch.float64)
        orthogonal, _ = torch.linalg.qr(gaussian)
        blocks.append(
            orthogonal.T
            * torch.randn(d, d, generator=rng, dtype=torch.float64).norm(dim=1)[:, None]
        )
    return torch.cat(blocks)[:count]


def _sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    state = k.mT @ v
    total = k.sum(dim=-2)
    return (q @ state) / (q @ total[..., None])


def _causal_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys of a query's own chunk by a small matrix, earlier ones by the running state."""
    state = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
    total = k.new_zeros(*k.shape[:2], k.shape[3], 1)
    parts: list[Tensor] = []
    for qs, ks, vs in zip(q.split(CHUNK, 2), k.split(CHUNK, 2), v.split(CHUNK, 2), strict=True):
        own = (qs @ ks.mT).tril()
        numerator = own @ vs + qs @ state
        denominator = own.sum(-1, keepdim=True) + qs @ total
        parts.append(numerator / denominator)
        state = state + ks.mT @ vs
        total = total + ks.sum(2)[..., None]
    return torch.cat(parts, 2) if parts else v
