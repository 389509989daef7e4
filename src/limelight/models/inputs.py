"""The tokens of a call: their rows, their positions, and what they may attend to.

Tokens come in two forms:

    padded   `b n`, with the real lengths of the rows, flush left
    packed   `total`, all texts one after the other, with their lengths: nothing is spent on padding

Both run through the same layers; packed is a batch of one under `documents(lengths)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_tensor, shape_text
from limelight.errors import DtypeError, OptionError, ShapeError
from limelight.layers.cache import Cache
from limelight.ops.masks.band import causal, window
from limelight.ops.masks.counts import counts as whole_numbers
from limelight.ops.masks.documents import documents
from limelight.ops.masks.mask import Mask
from limelight.ops.masks.padding import padding


class Inputs(NamedTuple):
    """The tokens of a call, ready for the layers."""

    tokens: Tensor
    """b n, whole numbers; b = 1 when packed"""
    positions: Tensor
    """b n, or 1 n when all rows share them"""
    last: int
    """the largest position"""
    mask: Mask | None
    packed: tuple[int, ...] | None
    """the lengths of packed texts"""
    local: Mask | None = None
    """the mask of layers with a window, in a model that also has layers without one"""


def prepare_inputs(
    tokens: Tensor,
    lengths: Sequence[int] | Tensor | None,
    *,
    reach: Mask | None,
    local: Mask | None = None,
    cache: Cache | None = None,
) -> Inputs:
    """Check the tokens of a call, and work out their positions and masks.

    `reach` is what a token of a text may see; `local` is the same for layers with a window, in a
    model where some layers have none.
    """
    inputs = _prepare(tokens, lengths, reach, cache)
    if local is None:
        return inputs
    # The cache holds what the layers without a window see, so that even one new token needs a mask.
    if cache is not None and tokens.ndim == 2:
        if cache.lengths is None:
            return inputs._replace(local=local)
        filled = padding([length + tokens.shape[1] for length in cache.lengths], side="left")
        return inputs._replace(local=local & filled)
    return inputs._replace(local=_prepare(tokens, lengths, local, None).mask)


def _prepare(
    tokens: Tensor,
    lengths: Sequence[int] | Tensor | None,
    reach: Mask | None,
    cache: Cache | None,
) -> Inputs:
    check_tensor("tokens", tokens)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise DtypeError(f"tokens is {tokens.dtype}, expected whole numbers (int64 or int32)")
    counts = None if lengths is None else whole_numbers("length", lengths)
    if tokens.ndim == 1:
        return _prepare_packed(tokens, counts, reach, cache)
    if tokens.ndim != 2:
        raise ShapeError(
            f"tokens has shape {shape_text(tokens)}, expected (b, n), or (total) with lengths"
        )
    b, n = tokens.shape
    if counts is not None:
        if cache is not None:
            raise OptionError("lengths with a cache need packed tokens: (total) instead of (b, n)")
        if len(counts) != b or (counts and max(counts) > n):
            raise ShapeError(f"lengths are {list(counts)}, expected {b} numbers of at most n = {n}")
    arange = torch.arange(n, device=tokens.device)[None]
    if cache is None:
        if counts is None or min(counts, default=n) == n:
            return Inputs(tokens, arange, n - 1, reach, None)
        filled = padding(counts)
        return Inputs(tokens, arange, n - 1, filled if reach is None else reach & filled, None)
    return _prepare_cached(tokens, arange, reach, cache)


def _prepare_cached(tokens: Tensor, arange: Tensor, reach: Mask | None, cache: Cache) -> Inputs:
    """Tokens that follow those of the cache."""
    b, n = tokens.shape
    # A single new token is given exactly the columns it may see.
    mask = None if n == 1 else reach
    if cache.lengths is None:
        return Inputs(tokens, arange + cache.length, cache.length + n - 1, mask, None)
    if len(cache.lengths) != b:
        raise ShapeError(
            f"tokens has b = {b} rows (shape {shape_text(tokens)}), "
            f"expected {len(cache.lengths)} as in the cache"
        )
    starts = torch.tensor(cache.lengths, device=tokens.device)
    columns = cache.visible(n)
    filled = padding([min(length + n, columns) for length in cache.lengths], side="left")
    return Inputs(
        tokens,
        starts[:, None] + arange,
        max(cache.lengths) + n - 1,
        filled if mask is None else mask & filled,
        None,
    )


def _prepare_packed(
    tokens: Tensor, counts: tuple[int, ...] | None, reach: Mask | None, cache: Cache | None
) -> Inputs:
    total = tokens.shape[0]
    if counts is None:
        raise ShapeError("packed tokens (one axis) need lengths=, the tokens of each text")
    if sum(counts) != total:
        raise ShapeError(f"lengths sum to {sum(counts)}, expected {total}, the number of tokens")
    if cache is not None:
        if cache.length:
            raise OptionError(
                f"packed prompts need an empty cache, found {cache.length} tokens in it"
            )
        if not counts or min(counts) < 1:
            raise ShapeError(f"lengths are {list(counts)}, expected at least 1 token per prompt")
        cache.begin_packed(counts, tokens.device)
    sizes = torch.tensor(counts, dtype=torch.int64, device=tokens.device)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    positions = torch.arange(total, device=tokens.device) - starts
    mask = reach if len(counts) == 1 else documents(counts, inside=reach)
    return Inputs(tokens[None], positions[None], max(counts, default=0) - 1, mask, counts)


def causal_reach(back: int | None) -> Mask:
    """What a token of a decoder may see: itself and those before it, at most `back` of them."""
    return causal() if back is None else window(back)


def full_reach(around: int | None) -> Mask | None:
    """What a token of an encoder may see: everything, or `around` tokens on either side."""
    return None if around is None else window(around, around)
