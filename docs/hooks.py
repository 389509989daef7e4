"""The reference lists every public name when the site is built, so that none can be forgotten."""

from __future__ import annotations

import re
from typing import Any

import limelight


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
