"""One vector for each text: what its tokens say together."""

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

PASS = 1024
"""Tokens a pass: enough to keep the cores busy, few enough that activations stay in cache."""

LONG = 50 * PASS
"""Tokens that take long enough to be worth a progress bar."""


def embed(encoder: Encoder, texts: str | Sequence[str], *, progress: bool | None = None) -> Tensor:
    """Vectors for texts; what `Encoder.embed` does.

    Texts are sorted by length and packed without padding; the result is in their own order.
    """
    if encoder.tokens is None:
        raise UnavailableError("this encoder came without a tokenizer, which embed needs")
    if isinstance(texts, str):
        return embed(encoder, [texts], progress=progress)[0]
    limit = encoder.pooling.limit
    if encoder.config.positions == "learned":
        limit = min(limit or encoder.config.context, encoder.config.context)
    ids = encoder.tokens.ids_of(texts, limit=limit)
    for place, row in enumerate(ids):
        if not row:
            raise OptionError(f"texts[{place}] has no tokens")
    table = encoder.embedding.tokens.weight
    result = torch.empty(len(ids), encoder.config.width, device=table.device, dtype=table.dtype)
    # The longest first: the bar then ends sooner than it promised, not later.
    order = sorted(range(len(ids)), key=lambda place: -len(ids[place]))
    total = sum(map(len, ids))
    shown = total > LONG and sys.stderr.isatty()
    if progress is not None:
        shown = check_flag("progress", progress)
    with _bar(total, shown=shown) as advance:
        for places in _passes(order, ids):
            result[places] = _vectors(encoder, [ids[place] for place in places])
            advance(sum(len(ids[place]) for place in places))
    if not bool(result.isfinite().all()):
        raise OptionError("encoder gives vectors that are not numbers: it overflows or holds NaN")
    return result


@torch.no_grad()
def _vectors(encoder: Encoder, ids: list[list[int]]) -> Tensor:
    """One vector a text, `b m`."""
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
    """Places of texts in runs of at most PASS tokens (a longer text alone)."""
    run: list[int] = []
    size = 0
    for place in order:
        if run and size + len(ids[place]) > PASS:
            yield run
            run, size = [], 0
        run.append(place)
        size += len(ids[place])
    if run:
        yield run


@contextmanager
def _bar(total: int, *, shown: bool) -> Generator[Callable[[int], None]]:
    """Gives what to call with the number of tokens done."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("embedding", total=total)
        yield lambda amount: bar.advance(task, amount)
