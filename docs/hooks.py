"""What is done to the pages when the site is built: public names are listed, formulas are drawn.

Formulas become MathML, which browsers draw themselves: no script, nothing fetched.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

import limelight

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`<!-- names: ops layers -->` becomes the names whose home begins with one of these."""

    def named(match: re.Match[str]) -> str:
        begins = tuple(match.group(1).split())
        homes = [
            f"::: limelight.{home}.{name}"
            for name, home in limelight._HOME.items()
            if home.startswith(begins)
        ]
        return "\n\n".join(homes)

    return re.sub(r"<!-- names: ([\w ]+) -->", named, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Every formula as MathML: `$…$` within a line, `$$…$$` by itself."""

    def drawn(match: re.Match[str]) -> str:
        display = "inline" if match.group(1) == "span" else "block"
        return convert(unescape(match.group(2)).strip(), display=display)

    return _FORMULA.sub(drawn, html)
