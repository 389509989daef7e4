"""Tokens of a Hugging Face tokenizer, with their places in the text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from limelight.seeing.recording.tokens import Token, place_tokens, plain_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]


def tokens_of_ids(
    tokenizer: PreTrainedTokenizerBase | None,
    ids: Sequence[int] | None,
    size: int,
    text: str | None,
) -> tuple[str, tuple[Token, ...]]:
    """The text and its tokens: from the ids, and from the text itself where it is known.

    Without ids (images, sounds) the tokens are called by their numbers, without a tokenizer by
    their ids.
    """
    if ids is None or tokenizer is None:
        return plain_tokens([str(token) for token in (range(size) if ids is None else ids)])
    added = set(tokenizer.all_special_ids)
    special = [token in added for token in ids]
    pieces = cast("list[str]", tokenizer.convert_ids_to_tokens(list(ids)))
    plain = [token for token in ids if token not in added]
    decoded, spans = _placed(tokenizer, plain, text)
    plain_spans = iter(spans)
    all_spans = [(0, 0) if is_special else next(plain_spans) for is_special in special]
    return decoded, place_tokens(decoded, all_spans, pieces, special)


def _placed(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str | None
) -> tuple[str, list[Span]]:
    """A text that these ids stand for, and where each of them stands in it.

    The text itself, if they are its tokens or the first of them; else what the tokenizer makes of
    them. The tokenizer says where they stand: by its offsets, or by what it decodes.
    """
    if getattr(tokenizer, "is_fast", False):
        decoded = (
            cast("str", tokenizer.decode(ids, clean_up_tokenization_spaces=tidy))
            for tidy in (True, False)
        )
        for candidate in itertools.chain([] if text is None else [text], decoded):
            spans = _offsets(tokenizer, candidate, ids)
            if spans is not None:
                return candidate, spans
    return _decoded(tokenizer, ids)


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[Span] | None:
    """Where the ids stand in a text, if they are its tokens or the first of them."""
    encoded: Any = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    if list(encoded["input_ids"])[: len(ids)] != ids:
        return None
    return [(int(start), int(end)) for start, end in encoded["offset_mapping"][: len(ids)]]


_CONTEXT = 4
"""Tokens before one that decide what the tokenizer writes between them, or finish a character."""


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> tuple[str, list[Span]]:
    """Each token is what it adds when it is decoded after those before it."""

    def decode(run: list[int]) -> str:
        return cast("str", tokenizer.decode(run, clean_up_tokenization_spaces=False))

    text, spans = "", list[Span]()
    for index in range(len(ids)):
        first = max(0, index - _CONTEXT)
        before, after = decode(ids[first:index]), decode(ids[first : index + 1])
        shared = _common_prefix(before, after)
        start = len(text) - (len(before) - shared)
        text = text[:start] + after[shared:]
        # Bytes that become a character together stand at the same place.
        spans = [
            (min(first, start), len(text)) if last > start else (first, last)
            for first, last in spans
        ]
        spans.append((start, len(text)))
    return text, spans


def _common_prefix(a: str, b: str) -> int:
    """The length of the longest common prefix."""
    pairs = zip(a, b, strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
