"""Beam search: the best continuations are extended side by side, the best of all is returned."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_number, check_whole
from limelight.fields import check_fields
from limelight.models.generation.batch import GenerationBatch

MAX_WIDTH = 1024
"""A limit, because every continuation has a cache of its own."""


@dataclass(frozen=True)
class Beam:
    """Keep the `width` best continuations at every step.

        score = Σ log p(token_t) / length^length_penalty

    Args:
        width: how many continuations to keep.
        length_penalty: above 0 favours long continuations, below 0 short ones.
    """

    width: int = 4
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "beam ")
        check_whole("beam width", self.width, most=MAX_WIDTH)
        check_number("length_penalty", self.length_penalty, "finite")

    def score(self, total: float, length: int) -> float:
        """The score of a candidate of `length` tokens whose log-probabilities sum to `total`."""
        return total / length**self.length_penalty


def search(batch: GenerationBatch, beam: Beam, max_tokens: int, end: Collection[int]) -> list[int]:
    """The tokens of the best continuation of the batch's one prompt, its end token included."""
    logits = batch.begin()
    totals, rows = [0.0], [list[int]()]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, max_tokens + 1):
        beams: list[_Candidate] = []
        for rank, candidate in enumerate(_best(logits, totals, 2 * beam.width)):
            if candidate.token not in end:
                beams.append(candidate)
            # An end token beyond the best `width` candidates is outside the beam.
            elif rank < beam.width:
                row = [*rows[candidate.row], candidate.token]
                finished.append((beam.score(candidate.total, length), row))
        beams = beams[: beam.width]
        rows = [[*rows[candidate.row], candidate.token] for candidate in beams]
        totals = [candidate.total for candidate in beams]
        finished = sorted(finished, key=lambda item: -item[0])[: beam.width]
        full = len(finished) == beam.width
        if (
            length == max_tokens
            or not beams
            or (full and finished[-1][0] >= beam.score(totals[0], length))
        ):
            break
        batch.keep([candidate.row for candidate in beams])
        logits = batch.step([candidate.token for candidate in beams])
    unfinished = [
        (beam.score(total, len(row)), row) for total, row in zip(totals, rows, strict=True)
    ]
    return max([*finished, *unfinished], key=lambda item: item[0])[1]


class _Candidate(NamedTuple):
    """A row extended by a token."""

    row: int
    token: int
    total: float
    """the sum of the log-probabilities, this token included"""


def _best(logits: Tensor, totals: list[float], count: int) -> list[_Candidate]:
    """The best `count` candidates, best first."""
    scores = logits.float().log_softmax(dim=-1)
    scores = scores + torch.tensor(totals, device=logits.device)[:, None]
    best = scores.flatten().topk(min(count, scores.numel()))
    vocabulary = scores.shape[1]
    return [
        _Candidate(index // vocabulary, index % vocabulary, total)
        for index, total in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
