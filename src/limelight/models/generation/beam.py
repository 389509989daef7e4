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
        check_whole("beam width", self.width)
        check_number("length_penalty", self.length_penalty, "finite")

    def score(self, total: float, length: int) -> float:
        """The score of a continuation of `length` tokens whose log-probabilities sum to `total`."""
        return total / length**self.length_penalty


def search(reader: Reader, beam: Beam, most: int, end: Collection[int]) -> list[int]:
    """The tokens of the best continuation of one prompt, its end token included."""
    logits = reader.begin()
    totals, written = [0.0], [list[int]()]
    done: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        going: list[_Way] = []
        for place, way in enumerate(_best(logits, totals, 2 * beam.width)):
            if way.token not in end:
                going.append(way)
            # Only among the best `width` may an end count: a beam is no wider than that.
            elif place < beam.width:
                row = [*written[way.row], way.token]
                done.append((beam.score(way.total, length), row))
        going = going[: beam.width]
        written = [[*written[way.row], way.token] for way in going]
        totals = [way.total for way in going]
        done = sorted(done, key=lambda item: -item[0])[: beam.width]
        full = len(done) == beam.width
        if length == most or not going or (full and done[-1][0] >= beam.score(totals[0], length)):
            break
        reader.keep([way.row for way in going])
        logits = reader.step([way.token for way in going])
    whole = [(beam.score(total, len(row)), row) for total, row in zip(totals, written, strict=True)]
    return max([*done, *whole], key=lambda item: item[0])[1]


class _Way(NamedTuple):
    """One way to go on: from which row, with which token, to which sum of log-probabilities."""

    row: int
    token: int
    total: float


def _best(logits: Tensor, totals: list[float], count: int) -> list[_Way]:
    """The best `count` ways to go on, best first."""
    scores = logits.float().log_softmax(dim=-1)
    scores = scores + torch.tensor(totals, device=logits.device)[:, None]
    best = scores.flatten().topk(min(count, scores.numel()))
    width = scores.shape[1]
    return [
        _Way(place // width, place % width, total)
        for place, total in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
