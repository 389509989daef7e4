"""Beam search: several continuations are followed at once, the best whole one is kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_number, check_whole
from limelight.fields import check_fields
from limelight.models.generation.reader import Reader

MOST = 1024
"""Continuations at once: each has a cache of its own."""


@dataclass(frozen=True)
class Beam:
    """Follow the `width` best continuations at once.

        score = Σ log p(token_t) / length^length_penalty

    Args:
        width: how many to follow.
        length_penalty: above 0 favours long continuations, below 0 short ones.
    """

    width: int = 4
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "beam ")
        check_whole("beam width", self.width, most=MOST)
        check_number("length_penalty", self.length_penalty, "finite")

    def score(self, total: float, length: int) -> float:
        """The score of a candidate of `length` tokens whose log-probabilities sum to `total`."""
        return total / length**self.length_penalty


def search(reader: Reader, beam: Beam, most: int, end: Collection[int]) -> list[int]:
    """The tokens of the best continuation of one prompt, its end token included."""
    logits = reader.begin()
    totals, written = [0.0], [list[int]()]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        beams: list[_Candidate] = []
        for place, candidate in enumerate(_best(logits, totals, 2 * beam.width)):
            if candidate.token not in end:
                beams.append(candidate)
            # Only among the best `width` may an end count: a beam is no wider than that.
            elif place < beam.width:
                row = [*written[candidate.row], candidate.token]
                finished.append((beam.score(candidate.total, length), row))
        beams = beams[: beam.width]
        written = [[*written[candidate.row], candidate.token] for candidate in beams]
        totals = [candidate.total for candidate in beams]
        finished = sorted(finished, key=lambda item: -item[0])[: beam.width]
        full = len(finished) == beam.width
        if (
            length == most
            or not beams
            or (full and finished[-1][0] >= beam.score(totals[0], length))
        ):
            break
        reader.keep([candidate.row for candidate in beams])
        logits = reader.step([candidate.token for candidate in beams])
    whole = [(beam.score(total, len(row)), row) for total, row in zip(totals, written, strict=True)]
    return max([*finished, *whole], key=lambda item: item[0])[1]


class _Candidate(NamedTuple):
    """One candidate: from which row, with which token, to which sum of log-probabilities."""

    row: int
    token: int
    total: float


def _best(logits: Tensor, totals: list[float], count: int) -> list[_Candidate]:
    """The best `count` candidates, best first."""
    scores = logits.float().log_softmax(dim=-1)
    scores = scores + torch.tensor(totals, device=logits.device)[:, None]
    best = scores.flatten().topk(min(count, scores.numel()))
    width = scores.shape[1]
    return [
        _Candidate(place // width, place % width, total)
        for place, total in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
