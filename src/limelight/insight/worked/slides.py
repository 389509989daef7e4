"""A worked example as slides: each step a figure, the row and column that make a cell marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from limelight.colours import LIGHT
from limelight.errors import FileError
from limelight.files import check_path
from limelight.insight.worked.example import Worked
from limelight.insight.worked.rendering import cell_of, spotlight
from limelight.insight.worked.steps import WorkedStep, digits, number
from limelight.labels import fit, visible
from limelight.plotting import fonts_for, new_figure, save_figure, weight_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDEST = 8
"""Characters of a row or column name, at most."""


class _Panel(NamedTuple):
    """A matrix on a slide, what it is called, and which of its cells are marked."""

    symbol: str
    table: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    row: int | None = None
    column: int | None = None
    shares: bool = False


def slides(example: Worked, decimals: int = 3) -> Iterator[tuple[str, Figure]]:
    """Each step as a slide: the name of its file, and the figure."""
    steps = example.steps()
    spot = spotlight(example, steps)
    shown = [step for step in steps if not step.name.startswith("w_")]
    for place, step in enumerate(shown, 1):
        numbers = (("layer", step.layer), ("head", step.head))
        where = "".join(f"-{name}{value}" for name, value in numbers if value is not None)
        yield f"{place:02d}{where}-{step.name}", slide(step, spot, decimals)


def save_slides(example: Worked, folder: str | Path, decimals: int = 3) -> list[Path]:
    """Write each step as a PNG into a folder, which is created where it is missing."""
    folder = check_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be a folder: {error.strerror}") from error
    written: list[Path] = []
    for name, figure in slides(example, decimals):
        written.append(folder / f"{name}.png")
        save_figure(figure, written[-1])
    return written


def slide(step: WorkedStep, spot: tuple[int, int], decimals: int = 3) -> Figure:
    """One step: the matrices it is made of, an equals sign, and what it gives."""
    panels, signs = _panels(step, cell_of(step, spot))
    figure = new_figure(10.0, 5.625)
    figure.set_layout_engine("none")
    # row names are left of a matrix, so a panel is wider than its columns
    spans = [panel.table.shape[1] + 1.4 for panel in panels]
    tallest = max(panel.table.shape[0] for panel in panels) + 1.2
    unit = min(0.92 / (sum(spans) + 0.5 * len(signs)), 0.62 * 0.5625 / tallest, 0.1)
    left = 0.5 - unit * (sum(spans) + 0.5 * len(signs)) / 2
    for place, (panel, span) in enumerate(zip(panels, spans, strict=True)):
        rows, columns = panel.table.shape
        height = unit * rows / 0.5625
        axes = figure.add_axes((left + unit * 1.2, 0.48 - height / 2, unit * columns, height))
        _draw(axes, panel, decimals, min(16.0, 190 * unit))
        left += unit * span
        if place < len(signs):
            figure.text(
                left + unit * 0.3,
                0.48,
                signs[place],
                ha="center",
                va="center",
                fontsize=min(30.0, 400 * unit),
                color=LIGHT.muted,
            )
            left += unit * 0.5
    where = f"{step.where}: " if step.where else ""
    _write(figure, 0.92, _subscripts(f"{where}{step.formula}"), 20.0, LIGHT.ink, math=True)
    _write(figure, 0.85, step.meaning, 12.0, LIGHT.muted)
    _write(figure, 0.07, _caption(step, spot, decimals), 13.0, LIGHT.query)
    return figure


def _write(
    figure: Figure, y: float, text: str, size: float, colour: str, *, math: bool = False
) -> None:
    """A centred line, shrunk where it would not fit the slide."""
    line = figure.text(0.5, y, text, ha="center", va="center", fontsize=size, color=colour,
                       parse_math=math, math_fontfamily="dejavusans",
                       fontfamily=fonts_for([text]))  # fmt: skip
    available, width = 0.94 * figure.bbox.width, line.get_window_extent().width
    line.set_fontsize(min(size, size * available / max(width, 1.0)))


def _subscripts(formula: str) -> str:
    r"""W_Q with Q as a subscript, which Unicode lacks.

    >>> _subscripts("X · W_Q₁")
    'X · $\\mathrm{W}_\\mathrm{Q}$₁'
    """
    return re.sub(r"\bW_([QKVO])", r"$\\mathrm{W}_\\mathrm{\1}$", formula)


def overview(example: Worked) -> Figure:
    """The weights of every head side by side."""
    steps = [step for step in example.steps() if step.name == "weights"]
    rows, columns = steps[0].table.shape
    figure = new_figure(max(3.2, (0.7 * columns + 1.2) * len(steps)), 0.55 * rows + 1.6)
    for axes, step in zip(figure.subplots(1, len(steps), squeeze=False)[0], steps, strict=True):
        panel = _Panel(step.symbol, step.table, step.rows, step.columns, shares=True)
        _draw(axes, panel, 3, 9.0)
        axes.set_title(
            step.where or visible(example.title, 60),
            fontsize=10,
            parse_math=False,
            fontfamily=fonts_for([example.title]),
            pad=22,
        )
    return figure


def _panels(step: WorkedStep, cell: tuple[int, int]) -> tuple[list[_Panel], list[str]]:
    """The matrices of a slide, from left to right, and the signs between them."""
    i, j = cell
    result = _Panel(step.symbol, step.table, step.rows, step.columns, i, j, step.name == "weights")
    if step.operation == "given":
        return [result._replace(row=None, column=None)], []
    sources = [
        _Panel(
            source.symbol,
            source.table,
            source.rows,
            source.columns,
            shares=source.name == "weights",
        )
        for source in step.sources
    ]
    if step.operation == "product":
        left, right = sources
        if step.transposed:
            right = _Panel(f"{right.symbol}ᵀ", right.table.T, right.columns, right.rows)
        return [left._replace(row=i), right._replace(column=j), result], ["·", "="]
    if step.operation == "row":
        return [sources[0]._replace(row=i), result], ["→"]
    if step.operation == "concatenation":
        signs = [","] * (len(sources) - 1) + ["="]
        return [*(panel._replace(row=i) for panel in sources), result._replace(column=None)], signs
    signs = ["+"] * (len(sources) - 1) + ["="]
    return [*(panel._replace(row=i, column=j) for panel in sources), result], signs


def _draw(axes: Axes, panel: _Panel, decimals: int, size: float) -> None:
    """A matrix with its numbers, names and symbol; the marked row, column or cell is framed."""
    shades = panel.table if panel.shares else torch.zeros_like(panel.table)
    axes.imshow(0.75 * shades.numpy(), cmap=weight_scale(), vmin=0.0, vmax=1.0, aspect="auto")
    count = digits(panel.table, decimals)
    longest = max(len(number(value, count)) for row in panel.table.tolist() for value in row)
    size = min(size, size * 6 / max(longest, 1))
    _draw_numbers(axes, panel, count, size)
    _frame_marked(axes, panel)
    _name_rows_and_columns(axes, panel, min(9.0, size * 0.8))
    axes.spines[:].set_color(LIGHT.muted)
    axes.set_xlabel(_subscripts(panel.symbol), fontsize=min(16.0, size * 1.2),
                    math_fontfamily="dejavusans", labelpad=6)  # fmt: skip


def _draw_numbers(axes: Axes, panel: _Panel, decimals: int, size: float) -> None:
    for i, row in enumerate(panel.table.tolist()):
        for j, value in enumerate(row):
            dark = panel.shares and value > 0.7
            axes.text(
                j,
                i,
                number(value, decimals),
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else LIGHT.ink,
            )


def _frame_marked(axes: Axes, panel: _Panel) -> None:
    """A frame in the colour of queries around the marked row, column or cell."""
    from matplotlib.patches import Rectangle

    if panel.row is None and panel.column is None:
        return
    rows, columns = panel.table.shape
    first_row, height = (-0.5, rows) if panel.row is None else (panel.row - 0.5, 1)
    first_column, width = (-0.5, columns) if panel.column is None else (panel.column - 0.5, 1)
    axes.add_patch(
        Rectangle(
            (first_column, first_row),
            width,
            height,
            fill=False,
            edgecolor=LIGHT.query,
            linewidth=2.5,
            clip_on=False,
            zorder=3,
        )
    )


def _name_rows_and_columns(axes: Axes, panel: _Panel, size: float) -> None:
    rows, columns = panel.table.shape
    fonts = fonts_for(visible(name) for name in [*panel.rows, *panel.columns])
    style: dict[str, Any] = {
        "parse_math": False, "fontsize": size, "fontfamily": fonts, "color": LIGHT.muted,
    }  # fmt: skip
    axes.set_xticks(range(columns), [_short(name) for name in panel.columns], **style)
    axes.set_yticks(range(rows), [_short(name) for name in panel.rows], **style)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2)


def _caption(step: WorkedStep, spot: tuple[int, int], decimals: int) -> str:
    i, j = cell_of(step, spot)
    written = step.written(i, j, decimals)
    return f"{_short(step.rows[i])}, {_short(step.columns[j])}:  {written}" if written else ""


def _short(name: str) -> str:
    return fit(visible(name), _WIDEST).rstrip(" ") or name
