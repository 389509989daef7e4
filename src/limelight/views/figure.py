"""Figures for papers and slides: matplotlib, without its global state.

Each function gives a `matplotlib.figure.Figure`; `save_figure` writes PNG, SVG or PDF. Tokens of
any script are drawn with whatever installed font knows them, and never read as mathematics.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limelight.files import writing
from limelight.seeing.recording import Recording
from limelight.seeing.tokens import Token
from limelight.shapes import FileError, OptionError, UnavailableError
from limelight.views.colours import LIGHT
from limelight.views.labels import fit, visible
from limelight.views.telling import opening, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_WIDEST_LABEL = 14
_MOST_LABELS = 96


def heat_map(recording: Recording, layer: int | None = None, head: int | None = None) -> Figure:
    """The weights of one head: rows ask, columns answer; what is set apart is left blank.

    Without a layer and head: those of the most telling link.
    """
    layer, head, *_ = opening(recording, layer, head)
    rows, columns = _labels(recording.queries), _labels(recording.tokens)
    side = min(12.0, max(3.6, 0.36 * max(len(rows), len(columns)) + 1.2))
    figure = _figure(side + 0.8, side)
    axes = figure.add_subplot()
    weights, blank = recording.weights(layer, head).float().cpu(), sorted(recording.set_apart)
    weights[:, blank] = float("nan")
    extent = (-0.5, len(columns) - 0.5, len(rows) - 0.5, -0.5)
    image = axes.imshow(weights.numpy(), cmap=_scale(), vmin=0.0, aspect="equal", extent=extent)
    if max(len(rows), len(columns)) <= _MOST_LABELS:
        axes.set_xticks([column + 0.5 for column in range(len(columns) - 1)], minor=True)
        axes.set_yticks([row + 0.5 for row in range(len(rows) - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
    _name_ticks(axes, rows, columns)
    axes.set_xlabel("answers")
    axes.set_ylabel("asks")
    axes.xaxis.set_label_position("top")
    _set_title(axes, _title(recording, layer, head))
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.03)
    bar.set_label("weight; blank columns are set apart" if blank else "weight")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def all_heads(recording: Recording) -> Figure:
    """Every head at once: layers down, heads across, colour from 0 to 1."""
    count, heads = len(recording.layers), len(recording.head_numbers)
    figure = _figure(0.75 * heads + 0.8, 0.75 * count + 0.9)
    grid = figure.subplots(count, heads, squeeze=False)
    blank = sorted(recording.set_apart)
    for place, layer in enumerate(recording.layer_numbers):
        for column, head in enumerate(recording.head_numbers):
            axes: Axes = grid[place, column]
            weights = recording.weights(layer, head).float().cpu()
            weights[:, blank] = 0.0
            axes.imshow(weights.numpy(), cmap=_scale(), vmin=0.0, vmax=1.0, aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_color(LIGHT.line)
            if place == 0:
                axes.set_title(str(head), fontsize=8, color=LIGHT.muted)
            if column == 0:
                axes.set_ylabel(
                    str(layer), fontsize=8, color=LIGHT.muted, rotation=0, labelpad=8, va="center"
                )
    figure.suptitle("layers down, heads across", fontsize=9, color=LIGHT.muted)
    return figure


def token_graph(
    recording: Recording, layer: int | None = None, head: int | None = None, least: float = 0.05
) -> Figure:
    """Tokens on a line and an arc for each link of at least a weight: forward above, back below.

    The stronger the link, the thicker and darker its arc; what is set apart has no arcs.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    layer, head, *_ = opening(recording, layer, head)
    if recording.queries is not recording.tokens:
        raise OptionError("a token graph is of one text, found a recording of two texts")
    links = _links(recording, layer, head, least)
    tokens = _labels(recording.tokens)
    figure = _figure(max(5.0, 0.62 * len(tokens)), 4.2)
    axes = figure.add_subplot()
    reach = max([abs(i - j) for i, j, _ in links], default=1)
    for i, j, weight in links:
        side = 1 if j > i else -1
        tall = 1.33 * side * (0.25 + 0.75 * abs(i - j) / reach)
        points = [(i, 0.1 * side), (i, tall), (j, tall), (j, 0.1 * side)]
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        strength = {"linewidth": 0.5 + 4 * weight, "alpha": min(1.0, 0.12 + weight)}
        axes.add_patch(PathPatch(curve, facecolor="none", edgecolor=LIGHT.answer, **strength))
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "parse_math": False}
    for place, token in enumerate(tokens):
        axes.text(place, 0.0, token, fontfamily=_families(tokens), **style)
    axes.set_xlim(-0.7, len(tokens) - 0.3)
    axes.set_ylim(-1.15, 1.15)
    axes.axis("off")
    _set_title(axes, _title(recording, layer, head))
    return figure


def head_profile(recording: Recording) -> Figure:
    """Where heads stand: mean entropy of the weights (bits) across, mean distance looked up."""
    figure = _figure(5.6, 4.4)
    axes = figure.add_subplot()
    count = len(recording.layers)
    for place, (layer, seen) in enumerate(
        zip(recording.layer_numbers, recording.layers, strict=True)
    ):
        entropy, distance = spread(seen)
        axes.scatter(
            entropy.tolist(), distance.tolist(), s=34, color=_scale()((place + 1) / count),
            edgecolor=LIGHT.ink, linewidth=0.4, label=f"layer {layer}",
        )  # fmt: skip
        for head, x, y in zip(
            recording.head_numbers, entropy.tolist(), distance.tolist(), strict=True
        ):
            axes.annotate(
                str(head), (x, y), xytext=(4, 3), textcoords="offset points", fontsize=6,
                color=LIGHT.muted,
            )  # fmt: skip
    axes.set_xlabel("entropy of a head's weights, bits")
    axes.set_ylabel("mean distance looked, tokens")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure as its suffix says: .png, .svg or .pdf."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise FileError(f"path must end in one of {', '.join(FORMATS)}, found {path.name!r}")
    with warnings.catch_warnings(), writing(path) as temporary:
        # a letter that no installed font knows is drawn as a box, which says enough
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support")
        figure.savefig(temporary, format=path.suffix.lower().lstrip("."), dpi=200)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError("figures need matplotlib: pip install limelight[figures]") from error
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


@cache
def _scale() -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    anchors = [tuple(channel / 255 for channel in anchor) for anchor in LIGHT.scale]
    return LinearSegmentedColormap.from_list("limelight", anchors)  # pyright: ignore


def _links(
    recording: Recording, layer: int, head: int, least: float
) -> list[tuple[int, int, float]]:
    """Links of at least `least` between different tokens that are not set apart, weakest first."""
    weights = recording.weights(layer, head).float().cpu()
    weights[:, sorted(recording.set_apart)] = 0.0
    weights.fill_diagonal_(0.0)
    pairs = (weights >= least).nonzero().tolist()
    return sorted(((i, j, float(weights[i, j])) for i, j in pairs), key=lambda link: link[2])


def _labels(tokens: Sequence[Token]) -> list[str]:
    return [_short(visible(token.text)) for token in tokens]


def _short(label: str) -> str:
    return fit(label, _WIDEST_LABEL).rstrip(" ") or label


def _title(recording: Recording, layer: int, head: int) -> str:
    name = visible(recording.model, 40) + ", " if recording.model else ""
    return f"{name}layer {layer}, head {head}"


def _set_title(axes: Axes, title: str) -> None:
    if title:
        axes.set_title(title, fontsize=10, pad=12, parse_math=False, fontfamily=_families([title]))


def _name_ticks(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Tokens as tick labels, every so many where there are too many to read."""
    families = _families([*rows, *columns])
    size = max(4.0, min(9.0, 300 / max(len(rows), len(columns), 1)))
    style: dict[str, Any] = {"fontsize": size, "fontfamily": families, "parse_math": False}
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        step = -(-len(labels) // _MOST_LABELS)
        places = range(0, len(labels), max(step, 1))
        axis.set_ticks(list(places), [labels[place] for place in places], **style)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _families(labels: Iterable[str]) -> list[str]:
    """The default font, then an installed one for each letter that those before do not know."""
    families = ["DejaVu Sans"]
    missing = {ord(letter) for label in labels for letter in label}
    missing -= _installed()["DejaVu Sans"]
    for name, letters in _installed().items() if missing else ():
        if missing & letters:
            families.append(name)
            missing -= letters
    return families


@cache
def _installed() -> dict[str, frozenset[int]]:
    """The letters that each installed upright font knows."""
    from matplotlib.font_manager import fontManager, get_font

    found: dict[str, frozenset[int]] = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: entry.name):
        plain = entry.style == "normal" and entry.weight in (400, "normal", "regular")
        # the last resort knows every letter and draws none of them
        if not plain or entry.name in found or entry.name.startswith("Last Resort"):
            continue
        # fonts made of bitmaps only, as some emoji are, cannot be drawn
        with suppress(RuntimeError, OSError):
            found[entry.name] = frozenset(get_font(entry.fname).get_charmap())
    return found
