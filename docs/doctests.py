"""Show doctests in docstrings as code: without a fence, brackets in them would read as links."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences each doctest, from its first prompt to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object that it reads."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its doctests in fences."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
