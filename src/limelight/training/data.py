"""Batches: which tokens each step sees, as a function of the seed and the step alone.

No state is kept between steps, so a run resumed at step s sees exactly the batches it would have
seen, and every process of a group knows the batches of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.models.tokens import Tokens
from limelight.rng import generator_for

IGNORED = -100
"""The target where nothing is to be predicted: padding."""


class Batch(NamedTuple):
    """What a model is called with, and what it should predict."""

    inputs: dict[str, Tensor]
    """the model's arguments by name; rows are their first axis"""
    targets: Tensor
    """b n; IGNORED at padding"""
    predicted: int
    """targets of the whole batch that are not padding, also in a shard of it"""

    def shard(self, index: int, count: int) -> Batch:
        """Every `count`-th row from `index` on; where there is none, one row of padding."""
        if count == 1:
            return self
        rows = slice(index, None, count)
        if index >= self.targets.shape[0]:
            empty = torch.full_like(self.targets[:1], IGNORED)
            return Batch({name: t[:1] for name, t in self.inputs.items()}, empty, self.predicted)
        return Batch(
            {name: t[rows] for name, t in self.inputs.items()}, self.targets[rows], self.predicted
        )


@runtime_checkable
class Task(Protocol):
    """Something to learn: batches for training, and what was held out."""

    @property
    def tokens(self) -> Tokens:
        """The tokenizer."""
        ...

    @property
    def size(self) -> int:
        """How many tokens there are to train on."""
        ...

    def batch(self, seed: int, step: int, rows: int) -> Batch:
        """The batch of a step, counted from 0."""
        ...

    def held_out(self, rows: int) -> Iterator[Batch]:
        """Everything held out, once, in batches of at most `rows` rows."""
        ...


@dataclass(frozen=True, eq=False)
class LanguageModelTask:
    """Predict each next token of running text: rows of `context` tokens from anywhere in it."""

    tokens: Tokens
    train_ids: Tensor
    held_out_ids: Tensor
    context: int

    @classmethod
    def split(cls, text: str, held_out: float) -> tuple[str, str]:
        """The text to train on, and its end, which is held out."""
        at = round(len(text) * (1 - held_out))
        return text[:at], text[at:]

    @classmethod
    def from_text(
        cls, tokens: Tokens, train: str, held_out: str, context: int
    ) -> LanguageModelTask:
        """The two parts as tokens; the first must hold more than one row, the other something."""
        ids, rest = _ids(tokens, train), _ids(tokens, held_out)
        if len(ids) <= context:
            raise OptionError(
                f"data: {len(ids)} tokens are left to train on, "
                f"expected more than model.context = {context}"
            )
        if len(rest) < 2:
            raise OptionError(
                f"data.held_out leaves {len(rest)} of {len(ids) + len(rest)} tokens to evaluate "
                "on, expected at least 2: one, and the next to predict"
            )
        return cls(tokens, ids, rest, context)

    @property
    def size(self) -> int:
        return len(self.train_ids)

    def batch(self, seed: int, step: int, rows: int) -> Batch:
        last = len(self.train_ids) - self.context
        starts = torch.randint(last, (rows,), generator=generator_for(seed, step))
        # All rows as a view: the batch is a single gather.
        window = self.train_ids.unfold(0, self.context + 1, 1)[starts].long()
        return Batch({"tokens": window[:, :-1]}, window[:, 1:], rows * self.context)

    def held_out(self, rows: int) -> Iterator[Batch]:
        ids, n = self.held_out_ids.long(), self.context
        inputs, targets = ids[:-1], ids[1:]
        count = len(targets)
        windows = -(-count // n)
        padding = windows * n - count
        inputs = torch.cat([inputs, inputs.new_zeros(padding)]).view(windows, n)
        targets = torch.cat([targets, targets.new_full((padding,), IGNORED)]).view(windows, n)
        for part_in, part_out in zip(inputs.split(rows), targets.split(rows), strict=True):
            yield Batch({"tokens": part_in}, part_out, int((part_out != IGNORED).sum()))


def _ids(tokens: Tokens, text: str) -> Tensor:
    # In pieces of some lines, which the tokenizer takes on all cores.
    lines = text.splitlines(keepends=True)
    pieces = ["".join(lines[at : at + 256]) for at in range(0, len(lines), 256)]
    ids = [torch.tensor(piece, dtype=torch.int32) for piece in tokens.ids_of(pieces)]
    return torch.cat(ids) if ids else torch.empty(0, dtype=torch.int32)
