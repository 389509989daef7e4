"""How a caller names tokens: by index, by the text of a token or word, or several of these."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from limelight.errors import OptionError
from limelight.seeing.recording.tokens import Token, words

Pick = SupportsIndex | str | Sequence[SupportsIndex | str]
"""How a token is named: by its index, by its text, or several of them."""


def single_picks(token: Pick) -> list[int | str]:
    """What a pick names, one by one: indices and texts."""
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

    A text must be that of one token or one word only; where it occurs more often the message
    names the places, one of which can be given instead.
    """
    return [index for pick in single_picks(token) for index in _find(pick, tokens)]


def _find(pick: int | str, tokens: Sequence[Token]) -> list[int]:
    if isinstance(pick, int):
        if not -len(tokens) <= pick < len(tokens):
            raise OptionError(f"token must be an index below {len(tokens)}, found {pick}")
        return [pick % len(tokens)]
    places = _places(pick, tokens)
    if len(places) > 1:
        where = ", ".join(str(place[0]) for place in places)
        raise OptionError(f"token {pick!r} occurs {len(places)} times: give one of {where}")
    if not places:
        raise OptionError(f"token {pick!r} is not among the {len(tokens)} tokens")
    return places[0]


def _places(text: str, tokens: Sequence[Token]) -> list[list[int]]:
    """Where a text is one token or one whole word; the other case serves if nothing else does."""
    for same in (str, str.casefold):
        folded = same(text.strip())
        places = [[j] for j, token in enumerate(tokens) if same(token.text) == folded]
        if not places:
            places = [
                word
                for word in words(tokens)
                if len(word) > 1 and same("".join(tokens[j].text for j in word)) == folded
            ]
        if places:
            return places
    return []
