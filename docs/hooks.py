"""Hooks of the site's build: they list public names in the reference and convert formulas.

Formulas become MathML, which browsers render themselves: no script, nothing fetched.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

import limelight

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace `<!-- names: ops layers -->` by the public names whose modules begin with these."""

    def directives(match: re.Match[str]) -> str:
        prefixes = tuple(match.group(1).split())
        return "\n\n".join(
            f"::: limelight.{home}.{name}"
            for name, home in limelight._HOME.items()
            if home.startswith(prefixes)
        )

    return re.sub(r"<!-- names: ([\w ]+) -->", directives, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Convert every formula to MathML: `$…$` inline, `$$…$$` as a block."""

    def mathml(match: re.Match[str]) -> str:
        display = "inline" if match.group(1) == "span" else "block"
        return convert(unescape(match.group(2)).strip(), display=display)

    return _FORMULA.sub(mathml, html)
