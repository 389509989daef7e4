"""A study: a claim, what was measured, and a verdict that follows from the numbers by a rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from limelight.insight.result import Result
from limelight.insight.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderableType

Verdict = Literal["holds", "holds partly", "does not"]

_COLOURS = ("#0b6b66", "#b4500a", "#5b4fa3", "#8a7a16", "#2f6fb0", "#8c3a5f")
"""Told apart in the light, in the dark and without colour vision, by lightness and by marks."""
_MARKS = "osD^vP"


@dataclass(frozen=True)
class Check:
    """One number that the claim predicts, and the bound it must keep."""

    what: str
    measured: float
    bound: float
    kind: Literal["at least", "at most"]

    @property
    def holds(self) -> bool:
        """Whether the bound is kept; a number that is none keeps no bound."""
        if self.kind == "at least":
            return self.measured >= self.bound
        return self.measured <= self.bound


def at_least(what: str, measured: float, bound: float) -> Check:
    """The claim predicts a number of at least this.

    >>> at_least("share of the nearest key", 0.9, 0.5).holds
    True
    """
    return Check(what, float(measured), float(bound), "at least")


def at_most(what: str, measured: float, bound: float) -> Check:
    """The claim predicts a number of at most this.

    >>> at_most("share of the farthest key", float("nan"), 0.5).holds
    False
    """
    return Check(what, float(measured), float(bound), "at most")


@dataclass(frozen=True)
class Curve:
    """A line of a figure: a name and its points."""

    name: str
    x: Sequence[int | float]
    y: Sequence[int | float]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: curves over the same quantity."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Study(Result):
    """A claim of the documents, measured.

    The verdict is computed: it "holds" where every check keeps its bound, "does not" where none
    does, and "holds partly" otherwise.
    """

    name: str
    claim: str
    source: str
    """which of the documents makes the claim"""
    measured: str
    """what was measured, in a sentence"""
    checks: tuple[Check, ...]
    panels: tuple[Panel, ...]
    seed: int = 0
    notes: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def verdict(self) -> Verdict:
        """What the checks say together."""
        kept = sum(check.holds for check in self.checks)
        if kept == len(self.checks):
            return "holds"
        return "holds partly" if kept else "does not"

    @property
    def line(self) -> str:
        """Claim, source, what was measured, verdict: in one line."""
        return f"{self._summary} Claim: {self.claim} [{self.source}] Measured: {self.measured}"

    @property
    def _summary(self) -> str:
        kept = sum(check.holds for check in self.checks)
        return f"{self.name}: {self.verdict} ({kept} of {len(self.checks)} checks)."

    def table(self) -> Table:
        """Each check: what was measured, the bound, whether it is kept."""
        rows = [
            (check.what, _digits(check.measured), f"{check.kind} {_digits(check.bound)}",
             check.holds)
            for check in self.checks
        ]  # fmt: skip
        return Table(("what", "measured", "expected", "holds"), rows, self._summary)

    def figure(self) -> Figure:
        """The curves that were measured."""
        from limelight.plotting import new_figure

        figure = new_figure(4.6 * len(self.panels), 3.7)
        for axes, panel in zip(
            figure.subplots(1, len(self.panels), squeeze=False)[0], self.panels, strict=True
        ):
            _draw(axes, panel)
        figure.suptitle(f"{self.name}: {self.verdict}", fontsize=11)
        return figure

    def values(self) -> Mapping[str, Any]:
        """Everything, with the verdict."""
        checks = [{**vars(check), "holds": check.holds} for check in self.checks]
        return {
            "name": self.name, "claim": self.claim, "source": self.source,
            "measured": self.measured, "verdict": self.verdict, "checks": checks,
            "panels": self.panels, "seed": self.seed, "notes": self.notes,
            "details": self.details,
        }  # fmt: skip

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """The verdict, the claim and where it is made, the checks, and what to bear in mind."""
        from rich.padding import Padding
        from rich.table import Table as Grid
        from rich.text import Text

        yield Text(self._summary, style="bold")
        facts = Grid.grid(padding=(0, 2, 0, 0))
        for name in ("claim", "source", "measured"):
            facts.add_row(Text(name, style="dim"), Text(getattr(self, name)))
        yield Padding(facts, (0, 0, 0, 2))
        yield replace(self.table(), title="")
        if self.notes:
            yield Text(self.notes + "\n", style="dim")


def exponent(x: Sequence[int | float], y: Sequence[int | float]) -> float:
    """The power by which y grows with x: the slope of log y over log x, by least squares.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True)]
    mean_x = sum(a for a, _ in points) / len(points)
    mean_y = sum(b for _, b in points) / len(points)
    spread = sum((a - mean_x) ** 2 for a, _ in points)
    return sum((a - mean_x) * (b - mean_y) for a, b in points) / spread


def _draw(axes: Axes, panel: Panel) -> None:
    for place, curve in enumerate(panel.curves):
        style = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKS[place % len(_MARKS)]}
        axes.plot(curve.x, curve.y, label=curve.name, markersize=4, linewidth=1.6, **style)  # pyright: ignore
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.log_y:
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(panel.curves) > 1:
        axes.legend(fontsize=8, frameon=False)


def _digits(value: float) -> str:
    return f"{value:.3g}"
