"""Figures for papers and slides: matplotlib, without its global state.

Each function returns a `matplotlib.figure.Figure`; `save_figure` writes PNG, SVG or PDF. Tokens of
any script are drawn with an installed font that has their characters, and never as mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from limelight.colours import LIGHT
from limelight.errors import OptionError
from limelight.insight.salience import opening, pooled
from limelight.insight.summary import background, summary
from limelight.labels import columns as width_of
from limelight.labels import fit, visible
from limelight.plotting import FORMATS as FORMATS
from limelight.plotting import draw_over, fonts_for, new_figure, weight_scale
from limelight.plotting import save_figure as save_figure
from limelight.seeing.recording.picks import Pick
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_WIDEST_LABEL = 14
_SMALLEST_TEXT = 5.5
"""In points: the smallest text that is readable on paper."""
_MOST_GRAPHED = 120
"""Tokens of a token graph, at most."""
_MOST_WEIGHTS = 1 << 22
"""Weights of a head up to which its heat map is made from all of them."""
_MOST_CELLS = 512
_THUMB = 64
_MOST_LINKS = 3
"""Links drawn in a graph for each of its tokens, on average, at most."""


def heat_map(recording: Recording, layer: int | None = None, head: int | None = None) -> Figure:
    """The weights of one head: rows are queries, columns are keys; background is left blank.

    Without a layer and head: those of the most salient link. For a long text each cell shows the
    strongest of the links that were recorded in it.
    """
    layer, head, *_ = opening(recording, layer, head)
    rows, columns = _labels(recording.queries), _labels(recording.tokens)
    side = min(12.0, max(3.6, 0.36 * max(len(rows), len(columns)) + 1.2))
    figure = new_figure(side + 0.8, side)
    # like "constrained", but for axes with equal sides: it leaves space for their labels first
    figure.set_layout_engine("compressed")
    axes = figure.add_subplot()
    blank = sorted(background(recording))
    kept = recording.seen(layer).source is not None
    if kept and len(rows) * len(columns) <= _MOST_WEIGHTS:
        weights = recording.weights(layer, head).float().cpu().clone()
        weights[:, blank] = float("nan")
    else:
        position = recording.head_position(head)
        weights = pooled(recording, layer, (_MOST_CELLS, _MOST_CELLS), head=position)[0]
    extent = (-0.5, len(columns) - 0.5, len(rows) - 0.5, -0.5)
    image = axes.imshow(
        weights.numpy(), cmap=weight_scale(), vmin=0.0, aspect="equal", extent=extent
    )
    if max(len(rows), len(columns)) <= 96:
        axes.set_xticks([column + 0.5 for column in range(len(columns) - 1)], minor=True)
        axes.set_yticks([row + 0.5 for row in range(len(rows) - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
    _name_ticks(axes, rows, columns, side - 1.6)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.xaxis.set_label_position("top")
    _set_title(axes, _title(recording, layer, head))
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.03)
    label = "weight; background columns are blank" if blank else "weight"
    bar.set_label(label if weights.shape[0] == len(rows) else "strongest weight in each cell")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def all_heads(recording: Recording) -> Figure:
    """Every head at once: layers down, heads across, colour from 0 to 1."""
    count, heads = len(recording.layers), len(recording.head_numbers)
    figure = new_figure(0.75 * heads + 0.8, 0.75 * count + 0.9)
    grid = figure.subplots(count, heads, squeeze=False)
    for place, layer in enumerate(recording.layer_numbers):
        pictures = pooled(recording, layer, (_THUMB, _THUMB))
        for column, head in enumerate(recording.head_numbers):
            axes: Axes = grid[place, column]
            axes.imshow(
                pictures[column].numpy(), cmap=weight_scale(), vmin=0.0, vmax=1.0, aspect="auto"
            )
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


def picture_map(
    recording: Recording,
    layer: int | None = None,
    head: int | None = None,
    token: Pick = 0,
) -> Figure:
    """What a patch, or [CLS], attends to in a picture, drawn over it.

    Args:
        recording: of a picture.
        layer: the last unless given.
        head: the mean over all heads unless given.
        token: the query: [CLS], the first token, unless given; a patch by "row,column".
    """
    picture = recording.picture
    if picture is None:
        raise OptionError("a picture map is of a picture, found a recording of a text")
    layer = recording.layer_numbers[-1] if layer is None else layer
    heads = recording.head_numbers if head is None else (head,)
    weights = torch.stack([recording.row(layer, head, token) for head in heads]).mean(0)
    (query, *_) = recording.find(token)
    name = recording.tokens[query].text
    pixels = picture.pixels.numpy()
    figure = new_figure(8.4, 4.2)
    left, right = figure.subplots(1, 2)
    left.imshow(pixels)
    left.axis("off")
    drawn = draw_over(right, pixels, picture.grid(weights).float().numpy(), picture.patch(query))
    bar = figure.colorbar(drawn, ax=right, fraction=0.046, pad=0.03)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    which = f"mean of {len(heads)} heads" if head is None else f"head {head}"
    _set_title(left, visible(recording.model, 40))
    _set_title(right, f"layer {layer}, {which}: {name} looks at")
    return figure


def token_graph(
    recording: Recording, layer: int | None = None, head: int | None = None, least: float = 0.05
) -> Figure:
    """Tokens on a line and an arc for each link of at least a weight.

    Arcs above the line look forward, those below look back. The stronger the link, the thicker and
    darker its arc; background has no arcs. If there are many links, the strongest are drawn.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    layer, head, *_ = opening(recording, layer, head)
    tokens = _labels(recording.tokens)
    if recording.queries is not recording.tokens:
        raise OptionError("a token graph is of one text, found a recording of two texts")
    if len(tokens) > _MOST_GRAPHED:
        raise OptionError(
            f"a token graph is of at most {_MOST_GRAPHED} tokens, found {len(tokens)}: "
            "heat_map shows as many as there are"
        )
    links = _links(recording, layer, head, least)
    drawn = links[-_MOST_LINKS * len(tokens) :]
    # many tokens are written upright, which keeps the line short
    upright = len(tokens) > 24
    pitch = 0.24 if upright else 0.62
    figure = new_figure(max(5.0, pitch * len(tokens)), 4.6 if upright else 4.2)
    axes = figure.add_subplot()
    reach = max([abs(i - j) for i, j, _ in drawn], default=1)
    gap = 0.1 if not upright else 0.034 * max(map(width_of, tokens)) + 0.04
    for i, j, weight in drawn:
        side = 1 if j > i else -1
        tall = gap + 1.33 * (0.25 + 0.75 * abs(i - j) / reach)
        points = [(i, gap * side), (i, tall * side), (j, tall * side), (j, gap * side)]
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        strength = {"linewidth": 0.5 + 4 * weight, "alpha": min(1.0, 0.12 + weight)}
        axes.add_patch(PathPatch(curve, facecolor="none", edgecolor=LIGHT.key, **strength))
    style: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    style |= {"rotation": 90, "fontsize": 8} if upright else {"fontsize": 9}
    for place, token in enumerate(tokens):
        axes.text(place, 0.0, token, fontfamily=fonts_for(tokens), **style)
    axes.set_xlim(-0.7, len(tokens) - 0.3)
    axes.set_ylim(-1.1 - gap, 1.1 + gap)
    axes.axis("off")
    caption: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 8, "color": LIGHT.muted}
    axes.text(0, 1, "above: looks forward", va="top", **caption)
    count = (
        "" if len(drawn) == len(links) else f"; the {len(drawn)} strongest of {len(links)} links"
    )
    axes.text(0, 0, f"below: looks back{count}", va="bottom", **caption)
    _set_title(axes, _title(recording, layer, head))
    return figure


def head_profile(recording: Recording) -> Figure:
    """Every head by the mean entropy of its weights (x, bits) and its mean distance (y, tokens).

    Coloured by layer. Only heads with space for a label beside them are named.
    """
    figure = new_figure(6.2, 4.6)
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    x = summary(recording).entropy.flatten().tolist()
    y = summary(recording).distance.flatten().tolist()
    heads = len(recording.head_numbers)
    numbers = [
        (layer, head) for layer in recording.layer_numbers for head in recording.head_numbers
    ]
    layers = [layer for layer, _ in numbers]
    first, last = min(layers), max(layers)
    points = axes.scatter(
        x, y, s=34, c=layers, cmap=_layer_scale(), vmin=first, vmax=max(last, first + 1),
        edgecolor=LIGHT.ink, linewidth=0.4,
    )  # fmt: skip
    for place in _labelled_points(x, y):
        layer, head = numbers[place]
        axes.annotate(
            f"{layer}·{head}" if len(recording.layers) > 1 else str(head), (x[place], y[place]),
            xytext=(4, 3), textcoords="offset points", fontsize=6.5, color=LIGHT.muted,
        )  # fmt: skip
    axes.set_xlabel("entropy of a head's weights, bits")
    axes.set_ylabel("mean distance looked, tokens")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    name = visible(recording.model, 40) + ": " if recording.model else ""
    style = "layer·head" if len(recording.layers) > 1 else "by number"
    _set_title(axes, f"{name}{heads * len(recording.layers)} heads, named {style}")
    if len(recording.layers) > 1:
        ticks = MaxNLocator(integer=True)
        bar = figure.colorbar(points, ax=axes, fraction=0.04, pad=0.03, ticks=ticks)
        bar.set_label("layer")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def _labelled_points(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """The points with space beside them for a label, the most isolated first."""
    # as fractions of the axes: x begins at its minimum, y at zero
    points = np.stack([np.asarray(x) / (np.ptp(x) or 1.0), np.asarray(y) / (max(y) or 1.0)], axis=1)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    labelled: list[int] = []
    for point in np.argsort(-distances.min(axis=1), kind="stable").tolist():
        right, up = (points - points[point]).T
        # a label is to the right of its point and a little above it
        others = (right > 0) & (right < 0.065) & (up > -0.03) & (up < 0.045)
        labels = (np.abs(right[labelled]) < 0.065) & (np.abs(up[labelled]) < 0.04)
        if not others.any() and not labels.any():
            labelled.append(point)
    return labelled


@cache
def _layer_scale() -> Colormap:
    """The colour scale without its palest part, which would vanish on white."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(
        "limelight layers", weight_scale()(np.linspace(0.15, 1, 32))
    )  # pyright: ignore


def _links(
    recording: Recording, layer: int, head: int, least: float
) -> list[tuple[int, int, float]]:
    """Links of at least `least` between different tokens, background left out, weakest first."""
    weights = recording.weights(layer, head).float().cpu().clone()
    weights[:, sorted(background(recording))] = 0.0
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
        axes.set_title(title, fontsize=10, pad=12, parse_math=False, fontfamily=fonts_for([title]))


def _name_ticks(axes: Axes, rows: Sequence[str], columns: Sequence[str], inches: float) -> None:
    """Tokens as tick labels along sides of this length; only every nth where all are too many."""
    families = fonts_for([*rows, *columns])
    # a line of text takes about 1.2 times its size; a point is 1/72 of an inch
    pitch = 72 * inches / max(len(rows), len(columns), 1) / 1.2
    size = max(_SMALLEST_TEXT, min(9.0, pitch))
    style: dict[str, Any] = {"fontsize": size, "fontfamily": families, "parse_math": False}
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        places = range(0, len(labels), max(1, math.ceil(size / pitch)))
        axis.set_ticks(list(places), [labels[place] for place in places], **style)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
