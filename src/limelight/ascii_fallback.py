"""ASCII in place of the characters that a terminal's encoding lacks."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

ERROR_HANDLER = "limelight.ascii"
"""The name for `errors=` of `str.encode` and of streams."""

_REPLACEMENTS = {
    "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "∘": "*", "→": "->", "…": "...", "ᵀ": "^T",
    "√": "sqrt ", "∞": "inf", "Σ": "sum", "‘": "'", "’": "'", "“": '"', "”": '"', "‹": "<",
    "›": ">", "′": "'", "␣": "_", "█": "#",
}  # fmt: skip


def to_ascii(character: str) -> str:
    """A character in ASCII: by its meaning, without its accents, or as a question mark.

    >>> [to_ascii(sign) for sign in "−é₂日"]
    ['-', 'e', '2', '?']
    """
    if character.isascii():
        return character
    if unicodedata.combining(character):
        return ""
    parts = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _REPLACEMENTS.get(character) or parts or "?"


def use_ascii_fallback() -> None:
    """From now on printing cannot fail because the encoding lacks a character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERROR_HANDLER)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(map(to_ascii, missing)), error.end


codecs.register_error(ERROR_HANDLER, _replace)
