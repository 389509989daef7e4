"""Tokens of a Hugging Face tokenizer, with their spans in the text."""

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

    Without ids (images, audio) the tokens are named by index, without a tokenizer by id.
    """
    if ids is None or tokenizer is None:
        return plain_tokens([str(token) for token in (range(size) if ids is None else ids)])
    special_ids = set(tokenizer.all_special_ids)
    special = [token in special_ids for token in ids]
    pieces = cast("list[str]", tokenizer.convert_ids_to_tokens(list(ids)))
    plain = [token for token in ids if token not in special_ids]
    decoded, spans = _text_and_spans(tokenizer, plain, text)
    plain_spans = iter(spans)
    all_spans = [(0, 0) if is_special else next(plain_spans) for is_special in special]
    return decoded, place_tokens(decoded, all_spans, pieces, special)


def _text_and_spans(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str | None
) -> tuple[str, list[Span]]:
    """The text of these ids, and the span of each in it.

    The given text, if they are its tokens or the first of them; else what the tokenizer decodes
    them to. The spans are its offsets or, for a slow tokenizer, follow from what it decodes.
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
    return _decode(tokenizer, ids)


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[Span] | None:
    """The spans of the ids in a text, if they are its tokens or the first of them."""
    encoded: Any = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    if list(encoded["input_ids"])[: len(ids)] != ids:
        return None
    return [(int(start), int(end)) for start, end in encoded["offset_mapping"][: len(ids)]]


_CONTEXT = 4
"""Tokens decoded before each one: they decide on a space between, or share a character."""


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> tuple[str, list[Span]]:
    """The span of each token is the text that it adds when decoded after those before it."""

    def decode(run: list[int]) -> str:
        return cast("str", tokenizer.decode(run, clean_up_tokenization_spaces=False))

    text, spans = "", list[Span]()
    for index in range(len(ids)):
        first = max(0, index - _CONTEXT)
        before, after = decode(ids[first:index]), decode(ids[first : index + 1])
        shared = _common_prefix(before, after)
        start = len(text) - (len(before) - shared)
        text = text[:start] + after[shared:]
        # The bytes of one character share its span.
        spans = [
            (min(begin, start), len(text)) if end > start else (begin, end) for begin, end in spans
        ]
        spans.append((start, len(text)))
    return text, spans


def _common_prefix(a: str, b: str) -> int:
    """The length of the longest common prefix."""
    pairs = zip(a, b, strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
