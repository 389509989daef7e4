"""The tokens of a recording: the label of each, its span in the text, and its word."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple


class Token(NamedTuple):
    """One token, as it is shown to a reader."""

    text: str
    """what to show: the part of the text it stands for, or the name of a special token"""
    start: int
    end: int
    """its span in the text, `text[start:end]`; empty for a token that stands for no text"""
    word: int
    """the number of the word it belongs to, counted over the tokens from 0"""
    special: bool = False
    """True for tokens that a tokenizer adds, such as [CLS] and [SEP]"""

    @property
    def separates(self) -> bool:
        """True for punctuation, spaces and symbols: no letter and no digit in it."""
        return not any(character.isalnum() for character in self.text)


def place_tokens(
    text: str,
    spans: Sequence[tuple[int, int]],
    pieces: Sequence[str],
    special: Sequence[bool],
) -> tuple[Token, ...]:
    """Tokens from their spans; a token with an empty span shows its vocabulary piece.

    Spaces around a token belong to no token. Neighbouring tokens form a word where letters, digits
    and the apostrophes between them follow one another; in scripts without spaces between words
    each token is a word of its own.
    """
    tokens: list[Token] = []
    word = -1
    for (start, end), piece, is_special in zip(spans, pieces, special, strict=True):
        part = text[start:end]
        start, end = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
        if end <= start:
            # White space alone, or nothing.
            start = end = max(start, end) if part else 0
        joined = bool(tokens) and not is_special and not tokens[-1].special
        if not (joined and end > start and _continues_word(text, tokens[-1], start)):
            word += 1
        # white space is shown as it is, not as the tokenizer writes it
        shown = text[start:end] or ("" if is_special else part) or piece
        tokens.append(Token(shown, start, end, word, is_special))
    return tuple(tokens)


def plain_tokens(words: Sequence[str]) -> tuple[str, tuple[Token, ...]]:
    """A text of these words with spaces between, and a token for each."""
    tokens: list[Token] = []
    start = 0
    for number, word in enumerate(words):
        tokens.append(Token(word, start, start + len(word), number))
        start += len(word) + 1
    return " ".join(words), tuple(tokens)


def words(tokens: Sequence[Token]) -> list[list[int]]:
    """The tokens of each word, by their indices.

    >>> words(place_tokens("a pin", [(0, 1), (2, 4), (4, 5)], ["?"] * 3, [False] * 3))
    [[0], [1, 2]]
    """
    by_word: dict[int, list[int]] = {}
    for index, token in enumerate(tokens):
        by_word.setdefault(token.word, []).append(index)
    return list(by_word.values())


def word_indices(tokens: Sequence[Token]) -> list[int]:
    """The word of each token, as its index in `words`.

    >>> word_indices(place_tokens("a pin", [(0, 1), (2, 4), (4, 5)], ["?"] * 3, [False] * 3))
    [0, 1, 1]
    """
    indices: dict[int, int] = {}
    return [indices.setdefault(token.word, len(indices)) for token in tokens]


def word_at(tokens: Sequence[Token], index: int) -> str:
    """The whole word that a token belongs to.

    >>> word_at(place_tokens("a pin", [(0, 1), (2, 4), (4, 5)], ["?"] * 3, [False] * 3), 2)
    'pin'
    """
    first = last = index
    while first > 0 and tokens[first - 1].word == tokens[index].word:
        first -= 1
    while last + 1 < len(tokens) and tokens[last + 1].word == tokens[index].word:
        last += 1
    return "".join(token.text for token in tokens[first : last + 1])


def _continues_word(text: str, before: Token, start: int) -> bool:
    """True if the token at `start` continues the word of the token before it."""
    if before.end != start or before.start == before.end:
        # Several tokens may share one character (its bytes): they belong together.
        return before.start < before.end and before.start <= start < before.end
    left, right = text[start - 1], text[start]
    if _is_apostrophe(right):
        return left.isalpha() and start + 1 < len(text) and text[start + 1].isalpha()
    if _is_apostrophe(left):
        return right.isalpha() and start > 1 and text[start - 2].isalpha()
    if unicodedata.combining(right) or right == "\N{ZERO WIDTH JOINER}":
        return True
    return left.isalnum() and right.isalnum() and not (_is_unspaced(left) and _is_unspaced(right))


def _is_apostrophe(character: str) -> bool:
    return character in "'\N{RIGHT SINGLE QUOTATION MARK}"


def _is_unspaced(character: str) -> bool:
    """True for scripts that do not put spaces between words."""
    name = unicodedata.name(character, "")
    return name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"))
