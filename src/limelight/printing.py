"""Text for terminals that do not know every letter: what they lack is written in ASCII."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

FOLD = "limelight.fold"
"""The error handler under which `str.encode` writes what an encoding lacks in ASCII."""

_FORMS = {
    "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "∘": "*", "→": "->", "…": "...", "ᵀ": "^T",
    "√": "sqrt ", "∞": "inf", "Σ": "sum", "‘": "'", "’": "'", "“": '"', "”": '"', "‹": "<",
    "›": ">", "′": "'", "␣": "_", "█": "#",
}  # fmt: skip


def ascii_form(character: str) -> str:
    """A character in ASCII: by its meaning, without its accents, or as a question mark.

    >>> [ascii_form(sign) for sign in "−é₂日"]
    ['-', 'e', '2', '?']
    """
    if character.isascii():
        return character
    if unicodedata.combining(character):
        return ""
    parts = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _FORMS.get(character) or parts or "?"


def print_what_can_be_printed() -> None:
    """From now on nothing that is printed can fail for want of a letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=FOLD)


def _fold(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(map(ascii_form, lacking)), error.end


codecs.register_error(FOLD, _fold)
