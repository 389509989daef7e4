"""How well a model does on what it has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.models.generate import generate
from limelight.models.transformer import Transformer
from limelight.shapes import OptionError, UnavailableError
from limelight.training.data import IGNORED, Batch, Task
from limelight.training.distributed import Group
from limelight.training.settings import Precision
from limelight.training.sources import Pair


class HeldOut(NamedTuple):
    """The mean over every token held out."""

    loss: float
    """−log p of the token that came, in nats"""

    @property
    def perplexity(self) -> float:
        """exp(loss): the choices between which the model is as uncertain."""
        return math.exp(min(self.loss, 700.0))


class Bleu(NamedTuple):
    """BLEU of translations, and of the sources left as they are."""

    score: float
    copying: float


def in_precision(precision: Precision) -> AbstractContextManager[Any]:
    """Within it, matrix products run in this precision."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")


def token_loss(logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Σ −log p(target) over the rows at hand, divided by the targets of the whole batch.

    So the losses of a batch's shares add up to the mean over the batch, however it is shared.
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
    """The loss on everything held out; the processes share the rows."""
    model.eval()
    total, predicted = torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad(), in_precision(precision):
        for batch in task.held_out(rows):
            share = batch.share(group.rank, group.size)
            total += token_loss(model(**share.inputs), share).double() * batch.predicted
            predicted += batch.predicted
    model.train()
    if not predicted:
        raise OptionError("data.held_out left nothing to evaluate on")
    return HeldOut(group.add_up(total).item() / predicted)


def translate(
    model: Transformer, texts: Sequence[str], *, max_tokens: int | None = None, rows: int = 64
) -> Iterator[str]:
    """The most likely next word at each step (greedy), for each text in its order.

    Texts are written together, as many as `rows` of about the same length.

    Args:
        model: a trained encoder–decoder with its tokenizer.
        texts: the sources.
        max_tokens: how long a translation may become; the model's context unless given.
        rows: texts that are written together.
    """
    if not isinstance(model, Transformer):
        raise OptionError(
            f"model must be an encoder–decoder, found a {type(model).__name__.lower()}"
        )
    most = model.config.context - 1 if max_tokens is None else max_tokens
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    done: dict[int, str] = {}
    for at in range(0, len(order), rows):
        places = order[at : at + rows]
        answers = generate(model, [texts[place] for place in places], max_tokens=most)
        done.update(zip(places, (answer.text for answer in answers), strict=True))
    yield from (done[place] for place in range(len(texts)))


def bleu(model: Transformer, pairs: Sequence[Pair], *, max_tokens: int) -> Bleu:
    """BLEU of greedy translations against the targets (sacrebleu, its own tokenisation)."""
    try:
        import sacrebleu
    except ModuleNotFoundError:
        raise UnavailableError("BLEU needs sacrebleu: pip install limelight[training]") from None
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    written = list(translate(model, sources, max_tokens=max_tokens))
    return Bleu(
        sacrebleu.corpus_bleu(written, [targets]).score,
        sacrebleu.corpus_bleu(sources, [targets]).score,
    )
