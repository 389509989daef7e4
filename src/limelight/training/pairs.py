"""The translation task: batches of pairs of about the same length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from limelight.errors import OptionError
from limelight.models.tokens import Tokens
from limelight.rng import generator_for
from limelight.training.data import IGNORED, Batch
from limelight.training.sources import Pair

Ids = tuple[list[int], list[int]]
"""A source and its target as tokens, each ending with the end token."""

POOL = 64
"""How many batches are sorted by length together: more means less padding and less randomness."""


class TranslationTask:
    """Predict the target of a source, token by token.

    An epoch shuffles the pairs, sorts each pool by length, splits it into batches and shuffles
    those. The few pairs that do not fill a batch wait for another epoch.
    """

    def __init__(
        self, tokens: Tokens, train: Sequence[Pair], held_out: Sequence[Pair], max_tokens: int
    ) -> None:
        self.tokens = tokens
        self._train = [ids for _, ids in _within(tokens, train, max_tokens)]
        evaluated = _within(tokens, held_out, max_tokens)
        self.held_out_pairs = [pair for pair, _ in evaluated]
        """the held-out pairs, as text"""
        self._held_out = [ids for _, ids in evaluated]
        self._epoch: tuple[tuple[int, int, int], list[list[int]]] | None = None
        if not self._train:
            raise OptionError(
                f"data: none of {len(train)} pairs is within data.max_tokens = {max_tokens} tokens"
            )
        if not self._held_out:
            raise OptionError(
                f"data.held_out leaves {len(held_out)} pairs, none within data.max_tokens = "
                f"{max_tokens} tokens, expected at least 1 to evaluate on"
            )

    @staticmethod
    def split(pairs: Sequence[Pair], held_out: float, seed: int) -> tuple[list[Pair], list[Pair]]:
        """The pairs to train on, and those held out, drawn at random."""
        order: list[int] = torch.randperm(len(pairs), generator=generator_for(seed)).tolist()
        at = round(len(pairs) * (1 - held_out))
        return [pairs[i] for i in order[:at]], [pairs[i] for i in order[at:]]

    @property
    def size(self) -> int:
        return sum(len(target) for _, target in self._train)

    def batch(self, seed: int, step: int, rows: int) -> Batch:
        batches = len(self._train) // rows
        if not batches:
            raise OptionError(
                f"batch is {rows}, expected at most {len(self._train)}, the pairs to train on"
            )
        epoch, index = divmod(step, batches)
        return self._batch([self._train[i] for i in self._batches(seed, epoch, rows)[index]])

    def held_out(self, rows: int) -> Iterator[Batch]:
        by_length = sorted(self._held_out, key=lambda ids: len(ids[0]))
        for at in range(0, len(by_length), rows):
            yield self._batch(by_length[at : at + rows])

    def _batches(self, seed: int, epoch: int, rows: int) -> list[list[int]]:
        key = (seed, epoch, rows)
        if self._epoch is None or self._epoch[0] != key:
            generator = generator_for(seed, epoch)
            order: list[int] = torch.randperm(len(self._train), generator=generator).tolist()
            batches: list[list[int]] = []
            for start in range(0, len(order), rows * POOL):
                pool = sorted(order[start : start + rows * POOL], key=self._length)
                batches += [pool[at : at + rows] for at in range(0, len(pool) - rows + 1, rows)]
            order: list[int] = torch.randperm(len(batches), generator=generator).tolist()
            self._epoch = key, [batches[index] for index in order]
        return self._epoch[1]

    def _length(self, index: int) -> int:
        return len(self._train[index][0])

    def _batch(self, rows: Sequence[Ids]) -> Batch:
        begin = self.tokens.begin
        assert begin is not None  # set by with_ends
        lengths = [len(source) for source, _ in rows]
        longest = max(len(target) for _, target in rows)
        source = [ids + [0] * (max(lengths) - len(ids)) for ids, _ in rows]
        shifted = [[begin, *ids[:-1]] + [0] * (longest - len(ids)) for _, ids in rows]
        targets = [ids + [IGNORED] * (longest - len(ids)) for _, ids in rows]
        inputs = {
            "source": torch.tensor(source),
            "target": torch.tensor(shifted),
            "source_lengths": torch.tensor(lengths),
        }
        return Batch(inputs, torch.tensor(targets), sum(len(ids) for _, ids in rows))


def _within(tokens: Tokens, pairs: Sequence[Pair], max_tokens: int) -> list[tuple[Pair, Ids]]:
    """The pairs that have at most `max_tokens` tokens on either side, with their tokens."""
    sources = tokens.ids_of([source for source, _ in pairs])
    targets = tokens.ids_of([target for _, target in pairs])
    return [
        (pair, (source, target))
        for pair, source, target in zip(pairs, sources, targets, strict=True)
        if max(len(source), len(target)) <= max_tokens
    ]
