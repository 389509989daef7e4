"""Sentence embeddings: one vector for each text, pooled from its tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.checks import check_flag
from limelight.errors import OptionError, UnavailableError
from limelight.models.encoder import Encoder
from limelight.models.heads import mean_pool

PASS_TOKENS = 1024
"""Tokens per pass: enough to keep the cores busy, few enough that activations stay in cache."""

PROGRESS_TOKENS = 50 * PASS_TOKENS
"""Beyond so many tokens a progress bar is shown."""


def embed(encoder: Encoder, texts: str | Sequence[str], *, progress: bool | None = None) -> Tensor:
    """The vectors of texts, as described for `Encoder.embed`."""
    if encoder.tokens is None:
        raise UnavailableError("this encoder came without a tokenizer, which embed needs")
    if isinstance(texts, str):
        return embed(encoder, [texts], progress=progress)[0]
    limit = encoder.pooling.limit
    if encoder.config.positions == "learned":
        limit = min(limit or encoder.config.context, encoder.config.context)
    ids = encoder.tokens.ids_of(texts, limit=limit)
    for index, row in enumerate(ids):
        if not row:
            raise OptionError(f"texts[{index}] has no tokens")
    table = encoder.embedding.tokens.weight
    result = torch.empty(len(ids), encoder.config.width, device=table.device, dtype=table.dtype)
    # Longest first: a long text takes more time per token, so the bar overestimates what is left.
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    total = sum(map(len, ids))
    shown = total > PROGRESS_TOKENS and sys.stderr.isatty()
    if progress is not None:
        shown = check_flag("progress", progress)
    with _progress_bar(total, shown=shown) as advance:
        for indices in _passes(order, ids):
            result[indices] = _vectors(encoder, [ids[index] for index in indices])
            advance(sum(len(ids[index]) for index in indices))
    if not bool(result.isfinite().all()):
        raise OptionError(
            "encoder gives vectors that are not finite: it overflows or its weights hold NaN"
        )
    return result


@torch.no_grad()
def _vectors(encoder: Encoder, ids: list[list[int]]) -> Tensor:
    """One vector per text, `b m`."""
    lengths = [len(row) for row in ids]
    device = encoder.embedding.tokens.weight.device
    tokens = torch.tensor([token for row in ids for token in row], device=device)
    hidden = encoder(tokens, lengths=lengths)
    if encoder.pooling.kind == "mean":
        vectors = mean_pool(hidden, lengths)
    else:
        counts = torch.tensor(lengths, device=device)
        vectors = hidden[counts.cumsum(0) - counts]
    return F.normalize(vectors, dim=-1) if encoder.pooling.normalise else vectors


def _passes(order: Iterable[int], ids: list[list[int]]) -> Iterator[list[int]]:
    """Indices of texts in groups of at most PASS_TOKENS tokens (a longer text alone)."""
    group: list[int] = []
    size = 0
    for index in order:
        if group and size + len(ids[index]) > PASS_TOKENS:
            yield group
            group, size = [], 0
        group.append(index)
        size += len(ids[index])
    if group:
        yield group


@contextmanager
def _progress_bar(total: int, *, shown: bool) -> Generator[Callable[[int], None]]:
    """A progress bar over `total` tokens, as a function that advances it by some."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("embedding", total=total)
        yield lambda amount: bar.advance(task, amount)
