"""The page's files, read once at start: its own modules and those shared with the exported page.

Their URLs mirror the source tree, so that a relative import works for browser and type checker.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from fastapi.responses import Response

from limelight.views.page.html import FOLDER as SHARED

OWN = Path(__file__).parent / "assets"

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    """A file as it is sent."""

    data: bytes
    """compressed by gzip"""
    media_type: str
    etag: str

    def response(self) -> Response:
        """The HTTP response."""
        headers = {
            "content-encoding": "gzip",
            "cache-control": "no-cache",
            "etag": self.etag,
        }
        return Response(self.data, media_type=self.media_type, headers=headers)


def asset_files() -> dict[str, File]:
    """Every file by its path under `/assets/`; the page itself as `index.html`."""
    files: dict[str, File] = {}
    for folder, prefix in ((OWN, "explorer/assets/"), (SHARED, "views/page/assets/")):
        for path in sorted(folder.iterdir()):
            if path.suffix in _MEDIA_TYPES:
                data = path.read_bytes()
                etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
                file = File(gzip.compress(data, 6), _MEDIA_TYPES[path.suffix], etag)
                files[prefix + path.name] = file
    files["index.html"] = files.pop("explorer/assets/index.html")
    return files
