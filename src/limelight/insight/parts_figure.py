"""The figure of a decomposed score or output: a matrix of positive and negative parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from limelight.colours import LIGHT
from limelight.labels import fit, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRINTED = 0.08
"""Parts of at least this share of the largest are printed as numbers."""


class Axis(NamedTuple):
    """The rows or columns of a matrix."""

    title: str
    names: Sequence[str]
    shown: Sequence[int]
    """which of the names, in order"""

    @property
    def label(self) -> str:
        """The title, and how many are left out."""
        some, all_ = len(self.shown), len(self.names)
        return self.title if some == all_ else f"{self.title} (the {some} largest of {all_})"


def draw_parts(parts: Tensor, rows: Axis, columns: Axis, title: str, unit: str) -> Figure:
    """Parts `r c` as a matrix, the larger ones with their numbers."""
    from limelight.plotting import fonts_for, new_figure

    chosen = parts[list(rows.shown)][:, list(columns.shown)]
    names = [[_short(axis.names[index]) for index in axis.shown] for axis in (rows, columns)]
    figure = new_figure(0.36 * chosen.shape[1] + 3.2, 0.27 * chosen.shape[0] + 2.4)
    axes = figure.add_subplot()
    limit = max(float(chosen.abs().max()), 1e-12)
    image = axes.imshow(chosen.numpy(), cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
    for i, row in enumerate(chosen.tolist()):
        for j, value in enumerate(row):
            if abs(value) >= _PRINTED * limit:
                colour = "white" if abs(value) > 0.55 * limit else LIGHT.ink
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
    style: dict[str, Any] = {"fontsize": 7, "parse_math": False}
    axes.set_xticks(
        range(len(names[1])), names[1], rotation=90, fontfamily=fonts_for(names[1]), **style
    )
    axes.set_yticks(range(len(names[0])), names[0], fontfamily=fonts_for(names[0]), **style)
    axes.set_xlabel(columns.label, fontsize=9, parse_math=False)
    axes.set_ylabel(rows.label, fontsize=9, parse_math=False)
    axes.set_title(title, fontsize=9, parse_math=False, fontfamily=fonts_for([title]))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.set_label(unit, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def largest(sizes: Tensor, count: int) -> list[int]:
    """The indices of the largest sizes, in ascending order."""
    return sorted(sizes.topk(min(count, len(sizes))).indices.tolist())


def _short(name: str) -> str:
    return fit(visible(name), 20).strip() or "·"
