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
        temperature: 0 takes the likeliest token; 1 samples the model's own distribution; higher
            is more random.
        top_k: draw among the k likeliest tokens only.
        top_p: draw among the fewest tokens whose probabilities sum to at least p
            (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751).
        repetition_penalty: the logit of a token that has occurred is divided by this (multiplied
            where it is negative; Keskar et al. 2019, https://arxiv.org/abs/1909.05858).

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
        """The distribution that tokens are drawn from: `b v`, rows sum to one."""
        logits = self.penalised(logits, before).float()
        if self.temperature == 0:
            return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
        # Relative to the largest, so that a small temperature sends the others to −∞ and none to
        # +∞; one too small for float32 is replaced by the smallest that fits.
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits = logits / max(self.temperature, torch.finfo(logits.dtype).tiny)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            threshold = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < threshold, -math.inf)
        if self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            weights = ordered.softmax(dim=-1)
            # A token is dropped if those before it already reach p; the first always stays, even
            # where p underflows to 0 in float32.
            dropped = weights.cumsum(dim=-1) - weights >= self.top_p
            dropped[:, 0] = False
            ordered = ordered.masked_fill(dropped, -math.inf)
            logits = torch.empty_like(logits).scatter_(-1, order, ordered)
        return logits.softmax(dim=-1)

    def penalised(self, logits: Tensor, before: Sequence[Sequence[int]]) -> Tensor:
        """Logits with `repetition_penalty` applied to the tokens in `before`."""
        if self.repetition_penalty == 1:
            return logits
        logits = logits.clone()
        for row, ids in zip(logits, before, strict=True):
            tokens = torch.tensor(sorted(set(ids)), dtype=torch.int64, device=logits.device)
            old = row[tokens]
            changed = torch.where(
                old < 0, old * self.repetition_penalty, old / self.repetition_penalty
            )
            # An infinite logit would exclude every other token, and two of them would give NaN.
            limits = torch.finfo(row.dtype)
            row[tokens] = torch.where(old.isfinite(), changed.clamp(limits.min, limits.max), old)
        return logits


def generators(seed: int | None, prompts: Sequence[Sequence[int]]) -> list[torch.Generator]:
    """A random generator for each prompt, from the seed, its tokens, and its earlier occurrences.

    So the samples of a prompt do not depend on the rest of the batch, and equal prompts get
    different samples.
    """
    base = int(torch.randint(1 << 62, ()).item()) if seed is None else seed
    earlier: Counter[tuple[int, ...]] = Counter()
    generators: list[torch.Generator] = []
    for prompt in map(tuple, prompts):
        generators.append(generator_for(base, earlier[prompt], *prompt))
        earlier[prompt] += 1
    return generators
