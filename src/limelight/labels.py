"""Tokens as labels: any text made visible, harmless to its surroundings, and short.

A token may hold anything: a line break, a terminal escape, a mark that reverses the reading
direction of all that follows. Views show labels, never raw tokens.
"""

from __future__ import annotations

import unicodedata

# Joiners shape Persian, Indic scripts and emoji, so they stay; variation selectors are not Cf.
_JOINERS = {"\u200c", "\u200d"}


def visible(text: str, limit: int = 200) -> str:
    """The text with controls spelled out, cut after `limit` characters.

    >>> visible("a\\tb\\x1b[31m"), visible("abc\\u202edef")
    ('a␉b␛[31m', 'abc‹U+202E›def')
    >>> visible(" "), visible(""), visible("x" * 10_000, limit=4)
    ('␣', '∅', 'xxx…')
    """
    if text.strip(" ") == "":
        return "␣" * len(text[:limit]) or "∅"
    cut = _cut(text, limit)
    return "".join(_visible_character(character) for character in cut)


def _visible_character(character: str) -> str:
    if character == "\n":
        return "↵"
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    category = unicodedata.category(character)
    if category in {"Cc", "Cf", "Zl", "Zp"} and character not in _JOINERS:
        return f"‹U+{code:04X}›"
    # a lone surrogate cannot be written as UTF-8 at all
    return "\ufffd" if category == "Cs" else character


def _cut(text: str, limit: int) -> str:
    """At most `limit` characters, without separating a base from its combining marks."""
    if len(text) <= limit:
        return text
    end = max(limit - 1, 1)
    while end > 1 and (unicodedata.combining(text[end]) or text[end - 1] in _JOINERS):
        end -= 1
    return text[:end] + "…"


def columns(text: str) -> int:
    """How many terminal columns the text takes: wide letters two, combining marks none.

    >>> columns("it"), columns("日本"), columns("e\\u0301")
    (2, 4, 1)
    """
    return sum(_columns_of(character) for character in text)


def _columns_of(character: str) -> int:
    if (
        unicodedata.combining(character)
        or character in _JOINERS
        or unicodedata.category(character) in {"Mn", "Me"}
    ):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, width: int) -> str:
    """The label cut or padded with spaces to exactly `width` terminal columns.

    >>> fit("animal", 4), fit("it", 4)
    ('ani…', 'it  ')
    """
    if columns(text) > width:
        prefix = ""
        for character in text:
            if columns(prefix) + _columns_of(character) > width - 1:
                break
            prefix += character
        text = prefix + "…"
    return text + " " * (width - columns(text))
