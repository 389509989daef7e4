"""Views of a recording: terminal, figure, page. Each is a pure function of a `Recording`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limelight.errors import FileError
from limelight.files import check_path, writing

if TYPE_CHECKING:
    from limelight.seeing.recording.recording import Recording


_PAGES = (".html", ".htm")
_FIGURES = (".png", ".svg", ".pdf")


def save(
    recording: Recording, path: str | Path, layer: int | None = None, head: int | None = None
) -> None:
    """Write a view of the recording as the file's ending says.

    `.html` is the page, on which any layer and head can be chosen; `.png`, `.svg` and `.pdf` are
    the heat map of one head. Without a layer and head: those of the most salient link. For a
    picture, a figure shows what [CLS] attends to, drawn over it.
    """
    path = check_path(path)
    check_ending(path)
    suffix = path.suffix.lower()
    if suffix in _PAGES:
        _save_page(recording, path, layer, head)
    else:
        from limelight.views.figure import heat_map, picture_map, save_figure

        draw = heat_map if recording.picture is None else picture_map
        save_figure(draw(recording, layer, head), path)


def _save_page(recording: Recording, path: Path, layer: int | None, head: int | None) -> None:
    from limelight.insight.salience import opening
    from limelight.views.page.document import file_parts, header
    from limelight.views.page.html import page

    parts = file_parts(recording, opening(recording, layer, head))
    with writing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for piece in page(header(recording, layer, head), parts):
            file.write(piece)


def check_ending(path: str | Path) -> None:
    """Raise unless the ending says what to write of a recording, as a view or whole."""
    path = check_path(path)
    if path.suffix.lower() not in (".safetensors", *_PAGES, *_FIGURES):
        raise FileError(
            "path must end in .safetensors, .html, .png, .svg or .pdf (the ending says what is "
            f"written), found {path.name!r}"
        )


def notebook(recording: Recording) -> str:
    """The page as a piece of HTML for a notebook, isolated from all others."""
    from limelight.views.page.document import file_parts, header
    from limelight.views.page.html import fragment

    return fragment(header(recording), file_parts(recording))
