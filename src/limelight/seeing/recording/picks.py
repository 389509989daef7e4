"""How a caller names tokens: by index, by the text of a token or word, or several of these."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from limelight.errors import OptionError
from limelight.seeing.recording.tokens import Token, words

Pick = SupportsIndex | str | Sequence[SupportsIndex | str]
"""An index, a text, or several of these."""


def single_picks(token: Pick) -> list[int | str]:
    """The indices and texts of a pick, one by one."""
    if isinstance(token, str):
        return [token]
    try:
        return [_index(token)]
    except TypeError:
        pass
    try:
        several: Any = token
        picks = [item if isinstance(item, str) else _index(item) for item in several]
    except TypeError:
        picks = []
    if not picks:
        raise OptionError(f"token must be an index, a word, or several of these, found {token!r}")
    return picks


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def find_tokens(token: Pick, tokens: Sequence[Token]) -> list[int]:
    """The indices of a token, of a word made of several tokens, or of several of these.

    A text must match a single token or word; for one that occurs more often the error lists the
    indices to choose from.
    """
    return [index for pick in single_picks(token) for index in _find(pick, tokens)]


def _find(pick: int | str, tokens: Sequence[Token]) -> list[int]:
    if isinstance(pick, int):
        if not -len(tokens) <= pick < len(tokens):
            raise OptionError(f"token must be an index below {len(tokens)}, found {pick}")
        return [pick % len(tokens)]
    matches = _matches(pick, tokens)
    if len(matches) > 1:
        starts = ", ".join(str(match[0]) for match in matches)
        raise OptionError(f"token {pick!r} occurs {len(matches)} times: give one of {starts}")
    if not matches:
        raise OptionError(f"token {pick!r} is not among the {len(tokens)} tokens")
    return matches[0]


def _matches(text: str, tokens: Sequence[Token]) -> list[list[int]]:
    """The tokens or whole words that read as a text; case is ignored if none matches exactly."""
    for fold in (str, str.casefold):
        folded = fold(text.strip())
        matches = [[j] for j, token in enumerate(tokens) if fold(token.text) == folded]
        if not matches:
            matches = [
                word
                for word in words(tokens)
                if len(word) > 1 and fold("".join(tokens[j].text for j in word)) == folded
            ]
        if matches:
            return matches
    return []
