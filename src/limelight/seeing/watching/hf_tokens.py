"""Tokens of a Hugging Face tokenizer, with their places in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from limelight.seeing.recording.tokens import Token, place_tokens, plain_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        return plain_tokens([str(one) for one in (range(size) if ids is None else ids)])
    special = [one in set(tokenizer.all_special_ids) for one in ids]
    pieces = cast("list[str]", tokenizer.convert_ids_to_tokens(list(ids)))
    if text is not None and getattr(tokenizer, "is_fast", False):
        encoded: Any = tokenizer(text, return_offsets_mapping=True)
        if list(encoded["input_ids"]) == list(ids):
            spans = [(int(start), int(end)) for start, end in encoded["offset_mapping"]]
            return text, place_tokens(text, spans, pieces, special)
    return _spelled(tokenizer, ids, pieces, special)


def _spelled(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], pieces: list[str], special: list[bool]
) -> tuple[str, tuple[Token, ...]]:
    """A text put together from its tokens, which is what the ids say, if not how it was written."""
    wordpiece = any(piece.startswith("##") for piece in pieces)
    text = ""
    spans: list[tuple[int, int]] = []
    for one, piece, apart in zip(ids, pieces, special, strict=True):
        if apart:
            spans.append((0, 0))
            continue
        part = cast("str", tokenizer.decode([one], clean_up_tokenization_spaces=False))
        if piece.startswith("##"):
            part = piece.removeprefix("##")
        elif piece.startswith(("▁", "Ġ")):
            part = " " + part.lstrip(" ")
        elif wordpiece and text:
            part = " " + part
        spans.append((len(text), len(text) + len(part)))
        text += part
    return text, place_tokens(text, spans, pieces, special)
