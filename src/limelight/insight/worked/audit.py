"""The audit of printed numbers: which do not follow from those printed before them.

Each step is recomputed from the *printed* tables before it, so an error counts once, where it was
made. A number follows if it agrees to half of its last printed digit, plus what rounding in the
tables it is computed from may change. A wrong number enters later steps exactly as printed; a right
one may have been rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.text import Text
from torch import Tensor

from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.insight.worked.example import HeadMatrices, Layer, Printed, Worked
from limelight.insight.worked.steps import number, numbered
from limelight.ops.problem import check_problem
from limelight.seeing.steps.head_steps import Attended

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderableType

_EXACT = 1e-9


@dataclass(frozen=True)
class Mismatch:
    """A printed number that does not follow from what is printed before it."""

    step: str
    token: str
    column: str
    printed: str
    """the cell's text"""
    follows: float
    layer: int | None = None
    head: int | None = None

    @property
    def cell(self) -> str:
        """Which cell: `scores: love → phones`, with layer and head where there are several."""
        layer = "" if self.layer is None else f"layer {self.layer} "
        head = "" if self.head is None else f"head {self.head} "
        separator = " → " if self.step in ("scores", "scaled", "masked", "weights") else ", "
        return f"{layer}{head}{self.step}: {self.token}{separator}{self.column}"

    @property
    def follows_text(self) -> str:
        """What follows, with the printed number of digits, and one more unless it is a zero."""
        decimals = len(self.printed.partition(".")[2])
        text = number(self.follows, decimals + 1)
        return text.removesuffix("0") if "." in text and decimals else text.removesuffix(".0")

    def __str__(self) -> str:
        return f"{self.cell} is printed as {self.printed}, but {self.follows_text} follows"


@dataclass(frozen=True)
class Audit(Result):
    """The outcome of an audit: what is wrong, what is still open, how much was checked."""

    title: str
    mismatches: tuple[Mismatch, ...]
    open: int
    """cells still to be filled in"""
    checked: int
    """numbers that were compared"""

    @property
    def passed(self) -> bool:
        """Whether every printed number follows and none is left open."""
        return not self.mismatches and not self.open

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        parts: list[str] = []
        if self.mismatches:
            parts.append(
                f"{len(self.mismatches)} of {self.checked} printed numbers do not follow "
                "from the ones before them"
            )
        elif self.checked:
            parts.append(f"all {self.checked} printed numbers follow")
        if self.open:
            parts.append(f"{self.open} cells are still open")
        return "; ".join(parts or ["nothing is printed"]) + "."

    def table(self) -> Table:
        """Each wrong cell: what is printed and what follows."""
        rows = [
            (mismatch.cell, mismatch.printed, mismatch.follows_text) for mismatch in self.mismatches
        ]
        return Table(("cell", "printed", "follows"), rows, self.verdict)

    def figure(self) -> Figure:
        """How far each wrong number is off."""
        from limelight.colours import LIGHT
        from limelight.plotting import fonts_for, new_figure

        figure = new_figure(7.0, max(1.6, 0.28 * len(self.mismatches) + 1.0))
        axes = figure.add_subplot()
        names = [mismatch.cell for mismatch in self.mismatches]
        rows = list(range(len(names)))
        printed = [
            float(mismatch.printed.replace("−", "-").replace("∞", "inf"))
            for mismatch in self.mismatches
        ]
        follows = [mismatch.follows for mismatch in self.mismatches]
        for row, wrong, right in zip(rows, printed, follows, strict=True):
            axes.plot([wrong, right], [row, row], color=LIGHT.line, linewidth=3, zorder=1)
        axes.scatter(printed, rows, color=LIGHT.query, label="printed", zorder=2)
        axes.scatter(follows, rows, color=LIGHT.key, label="follows", zorder=2)
        axes.set_yticks(rows, names, parse_math=False, fontfamily=fonts_for(names), fontsize=8)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        if names:
            axes.legend(frameon=False)
        axes.set_title(self.verdict, fontsize=9, parse_math=False)
        return figure

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """The verdict, and the wrong cells where there are some."""
        yield self.table() if self.mismatches else Text(self.verdict, style="bold")

    def values(self) -> Mapping[str, Any]:
        """Mismatches, open cells, how many were checked, and whether all of it follows."""
        mismatches = [vars(mismatch) for mismatch in self.mismatches]
        return {
            "passed": self.passed,
            "checked": self.checked,
            "open": self.open,
            "mismatches": mismatches,
        }


class _Known(NamedTuple):
    """A table as the reader knows it, and how far rounding may have moved each number."""

    table: Tensor
    slack: Tensor

    @classmethod
    def exact(cls, table: Tensor) -> _Known:
        return cls(table, torch.zeros_like(table))

    def product(self, right: _Known) -> _Known:
        slack = self.slack @ right.table.abs() + (self.table.abs() + self.slack) @ right.slack
        return _Known(self.table @ right.table, slack)

    @property
    def transposed(self) -> _Known:
        return _Known(self.table.T, self.slack.T)


class _Auditor:
    """Reads the printed tables in order and collects what does not follow."""

    def __init__(self) -> None:
        self.mismatches: list[Mismatch] = []
        self.open = self.checked = 0

    def read(self, step: str, printed: Printed | None, follows: _Known, names: _Names) -> _Known:
        """What the next step is computed from: the printed numbers, or else what follows."""
        if printed is None:
            return follows
        filled = ~printed.table.isnan()
        gap = (follows.table - printed.table).abs()
        # −∞ against −∞ is no difference, and an open cell has none
        gap = gap.masked_fill((follows.table == printed.table) | ~filled, 0.0)
        wrong = filled & (gap > printed.half_digit + follows.slack + _EXACT)
        for i, j in wrong.nonzero().tolist():
            self.mismatches.append(
                Mismatch(
                    step,
                    names.rows[i],
                    names.columns[j],
                    printed.words[i][j],
                    float(follows.table[i, j]),
                    names.layer,
                    names.head,
                )
            )
        self.open += int((~filled).sum())
        self.checked += int(filled.sum())
        rounded = torch.where((gap <= _EXACT) & (follows.slack == 0), 0.0, printed.half_digit)
        slack = torch.where(wrong, 0.0, torch.where(filled, rounded, follows.slack))
        return _Known(torch.where(filled, printed.table, follows.table), slack)


class _Names(NamedTuple):
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layer: int | None
    head: int | None


def audit(example: Worked) -> Audit:
    """Every printed number that does not follow from X, the matrices and those printed before."""
    auditor = _Auditor()
    x = _Known.exact(example.x)
    memory = None if example.memory is None else _Known.exact(example.memory)
    several = len(example.layers) > 1
    for layer_number, layer in enumerate(example.layers, 1):
        x = _audit_layer(example, layer, x, memory, auditor, layer_number if several else None)
    return Audit(example.title, tuple(auditor.mismatches), auditor.open, auditor.checked)


def _audit_layer(
    example: Worked,
    layer: Layer,
    x: _Known,
    memory: _Known | None,
    auditor: _Auditor,
    layer_number: int | None,
) -> _Known:
    several = len(layer.heads) > 1
    heads = [
        _audit_head(
            example, layer, head, x, memory, auditor, layer_number, head_number if several else None
        )
        for head_number, head in enumerate(layer.heads, 1)
    ]
    concatenated = _Known(
        torch.cat([head.table for head in heads], 1), torch.cat([head.slack for head in heads], 1)
    )

    def read(step: str, follows: _Known) -> _Known:
        names = _Names(example.tokens, numbered("", follows.table.shape[1]), layer_number, None)
        return auditor.read(step, layer.printed.get(step), follows, names)

    last = read("concatenation", concatenated)
    if layer.w_output is not None:
        last = last.product(_Known.exact(layer.w_output))
    last = read("output", last)
    if layer.residual:
        last = read("sum", _Known(x.table + last.table, x.slack + last.slack))
    return last


def _audit_head(
    example: Worked,
    layer: Layer,
    head: HeadMatrices,
    x: _Known,
    memory: _Known | None,
    auditor: _Auditor,
    layer_number: int | None,
    head_number: int | None,
) -> _Known:
    def read(step: str, follows: _Known, rows: tuple[str, ...], columns: tuple[str, ...]) -> _Known:
        names = _Names(rows, columns, layer_number, head_number)
        return auditor.read(step, head.printed.get(step), follows, names)

    source = x if memory is None else memory
    queries, keys = example.tokens, example.key_tokens
    channels = numbered("", head.w_query.shape[1])
    value_channels = numbered("", head.w_value.shape[1])
    query = read("query", x.product(_Known.exact(head.w_query)), queries, channels)
    key = read("key", source.product(_Known.exact(head.w_key)), keys, channels)
    value = read("value", source.product(_Known.exact(head.w_value)), keys, value_channels)
    scores = read("scores", query.product(key.transposed), queries, keys)
    factor = layer.factor
    scaled = _Known(scores.table * factor, scores.slack * factor)
    scaled = read("scaled", scaled, queries, keys)
    masked = read(
        "masked", _Known(_attended(layer, scaled.table).scores[0], scaled.slack), queries, keys
    )
    weights = read("weights", _softmax(masked), queries, keys)
    return read("head", weights.product(value), queries, value_channels)


def _attended(layer: Layer, scaled: Tensor) -> Attended:
    """A table of scaled scores through the layer's mask and softmax: the identity as its keys."""
    identity = torch.eye(scaled.shape[1], dtype=scaled.dtype)[None, None]
    problem = check_problem(scaled[None, None], identity, identity, mask=layer.mask, scale=1.0)
    return Attended.of(problem)


def _softmax(scores: _Known) -> _Known:
    """The weights of each row, and how far they move if each score moves by its slack."""
    highest = scores.table.amax(1, keepdim=True).nan_to_num(0.0, neginf=0.0)
    low = (scores.table - scores.slack - highest).exp()
    high = (scores.table + scores.slack - highest).exp()
    middle = (scores.table - highest).exp()
    weights = middle / middle.sum(1, keepdim=True).clamp_min(1e-300)
    most = high / (high + low.sum(1, keepdim=True) - low).clamp_min(1e-300)
    least = low / (low + high.sum(1, keepdim=True) - high).clamp_min(1e-300)
    return _Known(weights, torch.maximum(most - weights, weights - least))
