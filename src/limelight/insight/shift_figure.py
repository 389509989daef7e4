"""The figure of `shift`: the word's paths, how near the groups are, and what the word took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limelight.colours import LIGHT
from limelight.labels import fit, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from limelight.insight.shift import Shift

_COLOURS = ("#b4500a", "#0b6b66", "#3a6ea5", "#8e5ea2", "#c9a227", "#d1495b")
_LINES = ("-", "--", ":", "-.")
_MAPS = 6
"""Sentences whose sources are drawn."""


def draw(shift: Shift) -> Figure:
    """Above: paths in a plane, cosines by layer. Below: each sentence's tokens by layer."""
    from limelight.plotting import new_figure

    maps = min(len(shift.sentences), _MAPS)
    rows = (maps + 1) // 2
    layers = shift.took[0].shape[0]
    height = min(5.0, max(1.7, 0.2 * layers + 0.9))
    figure = new_figure(10.5, 4.6 + height * rows)
    grid = figure.add_gridspec(1 + rows, 2, height_ratios=[4.6, *([height] * rows)])
    _draw_paths(figure.add_subplot(grid[0, 0]), shift)
    _draw_cosines(figure.add_subplot(grid[0, 1]), shift)
    for sentence in range(maps):
        cell = grid[1 + sentence // 2, sentence % 2] if maps > 1 else grid[1, :]
        _draw_sources(figure.add_subplot(cell), shift, sentence)
    return figure


def _style(texts: list[str], size: int = 8) -> dict[str, Any]:
    from limelight.plotting import fonts_for

    return {"fontsize": size, "fontfamily": fonts_for(texts), "parse_math": False}


def _draw_paths(axes: Axes, shift: Shift) -> None:
    style = _style([*shift.sentences, *shift.groups, shift.word])
    for s, text in enumerate(shift.sentences):
        x, y = shift.paths[s].T.tolist()
        colour = _COLOURS[s % len(_COLOURS)]
        axes.plot(x, y, color=colour, linewidth=1.4, marker="o", markersize=3, label=_short(text))
        axes.plot(x[0], y[0], "o", color="white", markeredgecolor=colour, markersize=7)
        axes.plot(x[-1], y[-1], "o", color=colour, markersize=7)
    for name, (x, y) in zip(shift.groups, shift.group_ends.tolist(), strict=True):
        axes.plot(x, y, marker="*", markersize=12, color=LIGHT.ink)
        axes.annotate(
            visible(name, 20), (x, y), xytext=(7, -3), textcoords="offset points", **style
        )
    legend = axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    for entry in legend.get_texts():
        entry.set_parse_math(False)
        entry.set_fontfamily(style["fontfamily"])
    title = f'where "{visible(shift.word, 20)}" goes: ○ before attention, ● at the end'
    axes.set_title(title, **_style([title], 9))
    axes.margins(0.16)
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)


def _draw_cosines(axes: Axes, shift: Shift) -> None:
    from matplotlib.lines import Line2D

    stages = range(shift.similarity.shape[1])
    style = _style(list(shift.groups))
    for s in range(len(shift.sentences)):
        for g in range(len(shift.groups)):
            values = shift.similarity[s, :, g].tolist()
            colour = _COLOURS[s % len(_COLOURS)]
            axes.plot(stages, values, _LINES[g % 4], color=colour, linewidth=1.4)
            axes.annotate(f"{values[-1]:.2f}", (stages[-1], values[-1]), xytext=(4, -2),
                          color=colour, textcoords="offset points", fontsize=7)  # fmt: skip
    names = [
        Line2D([], [], color=LIGHT.ink, linestyle=_LINES[g % 4], label=visible(name, 20))
        for g, name in enumerate(shift.groups)
    ]
    legend = axes.legend(handles=names, fontsize=8, frameon=False, loc="upper left")
    for entry in legend.get_texts():
        entry.set_parse_math(False)
        entry.set_fontfamily(style["fontfamily"])
    axes.set_title("cosine to each group", fontsize=9)
    axes.set_xlabel("layers passed", fontsize=8)
    axes.set_xlim(0, stages[-1] * 1.1)
    axes.margins(y=0.16)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)


def _draw_sources(axes: Axes, shift: Shift, sentence: int) -> None:
    """How much the word took from each token in each layer, as shares of the layer."""
    from limelight.plotting import weight_scale

    took = shift.took[sentence]
    shares = took / took.sum(1, keepdim=True).clamp(min=1e-12)
    names = [fit(visible(name), 12).strip() or "·" for name in shift.tokens[sentence]]
    axes.imshow(shares.numpy(), cmap=weight_scale(), vmin=0.0, aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", **_style(names))
    every = max(1, len(took) // 12)
    axes.set_yticks(range(0, len(took), every))
    axes.set_ylabel("layer", fontsize=8)
    for place in shift.places[sentence]:
        axes.get_xticklabels()[place].set_color(_COLOURS[sentence % len(_COLOURS)])
        axes.get_xticklabels()[place].set_fontweight("bold")
    title = f"taken from, share of the layer: {_short(shift.sentences[sentence])}"
    axes.set_title(title, color=_COLOURS[sentence % len(_COLOURS)], **_style([title]))
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)


def _short(text: str) -> str:
    return fit(visible(text, 200), 60).strip()
