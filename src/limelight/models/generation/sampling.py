"""How the next token is drawn from the logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.checks import check_number, check_positive, check_whole
from limelight.fields import check_fields
from limelight.rng import generator_for


@dataclass(frozen=True)
class Sampling:
    """How to draw a token. By default greedy: always the likeliest.

        probabilities = softmax(logits / temperature), over the tokens that top_k and top_p leave;
        all on the likeliest token where temperature is 0

    Args:
        temperature: 0 takes the likeliest token; 1 draws as the model says; more is bolder.
        top_k: draw among the k likeliest tokens only.
        top_p: draw among the fewest tokens whose probabilities reach p together
            (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751).
        repetition_penalty: tokens that occurred before have their logit divided (or, below zero,
            multiplied) by this (Keskar et al. 2019, https://arxiv.org/abs/1909.05858).

    >>> import torch
    >>> Sampling(temperature=1.0, top_k=2).probabilities(torch.tensor([[0.0, 1.0, 2.0]]), [[]])
    tensor([[0.0000, 0.2689, 0.7311]])
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_number("temperature", self.temperature, "at least 0 and finite", low=0.0)
        if self.top_k is not None:
            check_whole("top_k", self.top_k)
        check_number("top_p", self.top_p, "above 0 and at most 1", above=0.0, high=1.0)
        check_positive("repetition_penalty", self.repetition_penalty)

    def draw(
        self,
        logits: Tensor,
        before: Sequence[Sequence[int]],
        generators: Sequence[torch.Generator],
    ) -> list[int]:
        """One token for each row of logits `b v`; `before` holds the tokens of each row so far."""
        if self.temperature == 0:
            return self.penalised(logits, before).argmax(dim=-1).tolist()
        probabilities = self.probabilities(logits, before)
        return [
            int(torch.multinomial(row, 1, generator=generator))
            for row, generator in zip(probabilities, generators, strict=True)
        ]

    def probabilities(self, logits: Tensor, before: Sequence[Sequence[int]]) -> Tensor:
        """What tokens are drawn from: `b v`, rows sum to one."""
        logits = self.penalised(logits, before).float()
        if self.temperature == 0:
            return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
        # From the likeliest down, so that a small temperature sends the rest to −∞ and nothing to
        # +∞; one too small for float32 is as the smallest.
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits = logits / max(self.temperature, torch.finfo(logits.dtype).tiny)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        if self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            weights = ordered.softmax(dim=-1)
            # A token is dropped when those before it reach p already; the first always stays, also
            # where p is so small that float32 takes it for 0.
            dropped = weights.cumsum(dim=-1) - weights >= self.top_p
            dropped[:, 0] = False
            ordered = ordered.masked_fill(dropped, -math.inf)
            logits = torch.empty_like(logits).scatter_(-1, order, ordered)
        return logits.softmax(dim=-1)

    def penalised(self, logits: Tensor, before: Sequence[Sequence[int]]) -> Tensor:
        """Logits with the tokens that occurred before made less likely."""
        if self.repetition_penalty == 1:
            return logits
        logits = logits.clone()
        for row, seen in zip(logits, before, strict=True):
            tokens = torch.tensor(sorted(set(seen)), dtype=torch.int64, device=logits.device)
            old = row[tokens]
            changed = torch.where(
                old < 0, old * self.repetition_penalty, old / self.repetition_penalty
            )
            # An infinite logit would leave no other token a chance, and two of them no number.
            limits = torch.finfo(row.dtype)
            row[tokens] = torch.where(old.isfinite(), changed.clamp(limits.min, limits.max), old)
        return logits


def generators(seed: int | None, prompts: Sequence[Sequence[int]]) -> list[torch.Generator]:
    """A random generator for each prompt, from the seed, its tokens, and how often they came.

    So a prompt draws the same whatever stands beside it, and the same prompt twice draws twice.
    """
    start = int(torch.randint(1 << 62, ()).item()) if seed is None else seed
    came: Counter[tuple[int, ...]] = Counter()
    generators: list[torch.Generator] = []
    for prompt in map(tuple, prompts):
        generators.append(generator_for(start, came[prompt], *prompt))
        came[prompt] += 1
    return generators
