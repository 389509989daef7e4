"""Held-out loss and BLEU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.errors import UnavailableError
from limelight.models.transformer import Transformer
from limelight.training.data import IGNORED, Batch, Task
from limelight.training.distributed import Group
from limelight.training.settings import Precision
from limelight.training.sources import Pair
from limelight.training.translate import translate


class HeldOut(NamedTuple):
    """The mean over all held-out tokens."""

    loss: float
    """−log p(target), in nats"""

    @property
    def perplexity(self) -> float:
        """exp(loss)"""
        return math.exp(min(self.loss, 700.0))


class Bleu(NamedTuple):
    """BLEU of translations, and of the untranslated sources as a baseline."""

    score: float
    copying: float


def in_precision(precision: Precision) -> AbstractContextManager[Any]:
    """A context in which matrix products run in this precision."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")


def token_loss(logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Σ −log p(target) over the rows of a shard, divided by the targets of its whole batch.

    The losses of all shards therefore sum to the mean over the batch, however it is sharded.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total / batch.predicted


def evaluate(
    model: nn.Module, task: Task, group: Group, *, rows: int, precision: Precision
) -> HeldOut:
    """The loss on all held-out data; the rows are sharded over the processes."""
    model.eval()
    total, predicted = torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad(), in_precision(precision):
        for batch in task.held_out(rows):
            shard = batch.shard(group.rank, group.size)
            total += token_loss(model(**shard.inputs), shard).double() * batch.predicted
            predicted += batch.predicted
    model.train()
    return HeldOut(group.all_reduce(total).item() / predicted)


def bleu(model: Transformer, pairs: Sequence[Pair], *, max_tokens: int) -> Bleu:
    """BLEU of greedy translations against the targets (sacrebleu with its default tokeniser)."""
    try:
        import sacrebleu
    except ModuleNotFoundError:
        raise UnavailableError("BLEU needs sacrebleu: pip install limelight[training]") from None
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    translations = translate(model, sources, max_tokens=max_tokens)
    return Bleu(
        sacrebleu.corpus_bleu(translations, [targets]).score,
        sacrebleu.corpus_bleu(sources, [targets]).score,
    )
