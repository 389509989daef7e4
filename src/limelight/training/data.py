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
    """What a run trains on: batches for training, and batches of held-out data."""

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
        """Tokenize both parts; raises if there are too few tokens to train or to evaluate on."""
        train_ids, held_out_ids = _ids(tokens, train), _ids(tokens, held_out)
        if len(train_ids) <= context:
            raise OptionError(
                f"data: {len(train_ids)} tokens are left to train on, "
                f"expected more than model.context = {context}"
            )
        if len(held_out_ids) < 2:
            total = len(train_ids) + len(held_out_ids)
            raise OptionError(
                f"data.held_out leaves {len(held_out_ids)} of {total} tokens to evaluate "
                "on, expected at least 2: one, and the next to predict"
            )
        return cls(tokens, train_ids, held_out_ids, context)

    @property
    def size(self) -> int:
        return len(self.train_ids)

    def batch(self, seed: int, step: int, rows: int) -> Batch:
        count = len(self.train_ids) - self.context
        starts = torch.randint(count, (rows,), generator=generator_for(seed, step))
        # A view of every possible row, so that the batch is a single gather.
        ids = self.train_ids.unfold(0, self.context + 1, 1)[starts].long()
        return Batch({"tokens": ids[:, :-1]}, ids[:, 1:], rows * self.context)

    def held_out(self, rows: int) -> Iterator[Batch]:
        ids, n = self.held_out_ids.long(), self.context
        inputs, targets = ids[:-1], ids[1:]
        padding = -len(targets) % n
        inputs = torch.cat([inputs, inputs.new_zeros(padding)]).view(-1, n)
        targets = torch.cat([targets, targets.new_full((padding,), IGNORED)]).view(-1, n)
        for batch_in, batch_out in zip(inputs.split(rows), targets.split(rows), strict=True):
            yield Batch({"tokens": batch_in}, batch_out, int((batch_out != IGNORED).sum()))


def _ids(tokens: Tokens, text: str) -> Tensor:
    # In chunks of lines, which the tokenizer encodes in parallel.
    lines = text.splitlines(keepends=True)
    chunks = ["".join(lines[at : at + 256]) for at in range(0, len(lines), 256)]
    ids = [torch.tensor(chunk, dtype=torch.int32) for chunk in tokens.ids_of(chunks)]
    return torch.cat(ids) if ids else torch.empty(0, dtype=torch.int32)
