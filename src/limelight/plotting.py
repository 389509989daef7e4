"""The canvas of every figure: matplotlib without its global state, fonts for any script."""

from __future__ import annotations

import io
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limelight.colours import LIGHT
from limelight.errors import FileError, UnavailableError
from limelight.files import check_path, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

FORMATS = (".png", ".svg", ".pdf")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure in the format of the suffix: .png, .svg or .pdf."""
    path = check_path(path)
    if path.suffix.lower() not in FORMATS:
        raise FileError(f"path must end in one of {', '.join(FORMATS)}, found {path.name!r}")
    with _without_glyph_warnings(), writing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower().lstrip("."), dpi=200)


def inline_svg(figure: Figure) -> str:
    """The figure as an `<img>` with a data URL: its ids and styles cannot affect the page."""
    import base64

    buffer = io.BytesIO()
    with _without_glyph_warnings():
        figure.savefig(buffer, format="svg")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


@contextmanager
def _without_glyph_warnings() -> Generator[None]:
    """No warnings about characters that no installed font has: the boxes drawn for them suffice."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support")
        yield


def draw_over(
    axes: Axes, pixels: NDArray[Any], grid: NDArray[Any], mark: tuple[int, int] | None = None
) -> AxesImage:
    """A picture `h w 3` in grey, and over it a number for each patch, `rows columns`.

    Args:
        axes: where to draw.
        pixels: the picture, from 0 to 255.
        grid: what each patch weighs.
        mark: row and column of a patch to frame.
    """
    from matplotlib.patches import Rectangle

    height, width = pixels.shape[:2]
    extent = (0.0, float(width), float(height), 0.0)
    axes.imshow(pixels.mean(axis=2), cmap="gray", vmin=0, vmax=255, extent=extent)
    heatmap = axes.imshow(
        grid, cmap="inferno", vmin=0.0, alpha=0.6, extent=extent, interpolation="nearest"
    )
    if mark is not None:
        (row, column), (rows, columns) = mark, grid.shape
        size = width / columns, height / rows
        corner = (column * size[0], row * size[1])
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="cyan", linewidth=2))
    axes.axis("off")
    return heatmap


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` by `height` inches, on white."""
    return _figure_class()(figsize=(width, height), layout="constrained", facecolor="white")


@cache
def _figure_class() -> type[Figure]:
    """A figure that a notebook shows as the last line of a cell, without pyplot's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError("figures need matplotlib: pip install limelight[figures]") from error

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            with _without_glyph_warnings():
                self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return NotebookFigure


@cache
def weight_scale() -> Colormap:
    """The colours of weights, 0 to 1, on light paper."""
    from matplotlib.colors import LinearSegmentedColormap

    anchors = [tuple(channel / 255 for channel in anchor) for anchor in LIGHT.scale]
    return LinearSegmentedColormap.from_list("limelight", anchors)  # pyright: ignore


def fonts_for(labels: Iterable[str]) -> list[str]:
    """The fonts that together cover the labels: the default, then installed ones for the rest."""
    families = ["DejaVu Sans"]
    missing = {ord(character) for label in labels for character in label}
    missing -= _coverage()["DejaVu Sans"]
    for name, characters in _coverage().items() if missing else ():
        if missing & characters:
            families.append(name)
            missing -= characters
    return families


@cache
def _coverage() -> dict[str, frozenset[int]]:
    """The characters that each installed upright font has."""
    from matplotlib.font_manager import fontManager, get_font

    coverage: dict[str, frozenset[int]] = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: entry.name):
        plain = entry.style == "normal" and entry.weight in (400, "normal", "regular")
        # Last Resort has a placeholder for every character.
        if not plain or entry.name in coverage or entry.name.startswith("Last Resort"):
            continue
        # Bitmap fonts, as some for emoji are, cannot be drawn.
        with suppress(RuntimeError, OSError):
            coverage[entry.name] = frozenset(get_font(entry.fname).get_charmap())
    return coverage
