"""The figure of a study: one panel per quantity, with lines over numbers and bars over names."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limelight.colours import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from limelight.insight.studies.study import Curve, Panel

_COLOURS = ("#0b6b66", "#b4500a", "#5b4fa3", "#8a7a16", "#2f6fb0", "#8c3a5f")
"""Distinguishable on light and dark and without colour vision, by lightness and by marker."""
_MARKS = "osD^vP"
_LABELLED = 12
"""Up to this many points each has a tick of its own."""


def draw(panels: Sequence[Panel], claim: str, summary: str) -> Figure:
    """All panels side by side, under the claim and its verdict."""
    from limelight.plotting import new_figure

    lines = textwrap.wrap(claim, 64 * len(panels))
    figure = new_figure(4.8 * len(panels), 3.9 + 0.18 * len(lines))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    figure.suptitle("\n".join([summary, *lines]), fontsize=9.5, parse_math=False)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
        if _named(curve):
            axes.bar(range(len(curve.x)), curve.y, color=colour, width=0.6, label=curve.name)
        elif curve.reference:
            axes.plot(curve.x, curve.y, "--", color=LIGHT.muted, linewidth=2.5, label=curve.name)
        else:
            size = 4 if len(curve.x) <= _LABELLED else 2
            end = len(curve.x) - curve.predicted
            axes.plot(curve.x[:end], curve.y[:end], color=colour, marker=mark, markersize=size,
                      linewidth=1.6, label=curve.name)  # fmt: skip
            if curve.predicted:  # from the last measured point on
                axes.plot(curve.x[end - 1 :], curve.y[end - 1 :], ":", color=colour, marker=mark,
                          markersize=size, markerfacecolor="none", markevery=slice(1, None),
                          linewidth=1.6)  # fmt: skip
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.log_y:
        axes.set_yscale("log")
    _set_ticks(axes, panel)
    axes.set_title(panel.title, fontsize=9.5)
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, axis="y" if _named(panel.curves[0]) else "both")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(panel.curves) > 1:
        axes.legend(
            fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16),
            ncols=min(len(panel.curves), 4), columnspacing=1.0, handletextpad=0.4,
        )  # fmt: skip


def _set_ticks(axes: Axes, panel: Panel) -> None:
    """A tick for each point where there are few, by its name or its number."""
    points = max((curve.x for curve in panel.curves), key=len)
    if len(points) > _LABELLED:
        return
    names = [x if isinstance(x, str) else f"{x:,}" for x in points]
    crowded = sum(map(len, names)) > 40
    axes.minorticks_off()
    axes.set_xticks(
        range(len(points)) if _named(panel.curves[0]) else points,  # pyright: ignore[reportArgumentType]
        names, rotation=25 if crowded else 0, ha="right" if crowded else "center",
    )  # fmt: skip


def _named(curve: Curve) -> bool:
    return isinstance(curve.x[0], str)
