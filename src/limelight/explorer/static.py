"""The page's files, read once at start: its own modules and those it shares with the exported page.

The addresses mirror the source tree, so that one relative import serves browser and type checker.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from fastapi.responses import Response

from limelight.views.page.html import FOLDER as SHARED

OWN = Path(__file__).parent / "assets"

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    """A file as it is sent."""

    data: bytes
    """compressed, as every browser takes it"""
    kind: str
    tag: str

    def response(self) -> Response:
        """The answer that carries it."""
        headers = {
            "content-encoding": "gzip",
            "cache-control": "no-cache",
            "etag": self.tag,
        }
        return Response(self.data, media_type=self.kind, headers=headers)


def asset_files() -> dict[str, File]:
    """Every file by its address under `/assets/`; the page itself as `index.html`."""
    files: dict[str, File] = {}
    for folder, place in ((OWN, "explorer/assets/"), (SHARED, "views/page/assets/")):
        for path in sorted(folder.iterdir()):
            if path.suffix in _KINDS:
                data = path.read_bytes()
                tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
                files[place + path.name] = File(gzip.compress(data, 6), _KINDS[path.suffix], tag)
    files["index.html"] = files.pop("explorer/assets/index.html")
    return files
