"""A study: a claim, what was measured, and a verdict that follows from the numbers by a rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from limelight.insight.result import Result
from limelight.insight.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderableType

Verdict = Literal["holds", "holds partly", "does not"]


@dataclass(frozen=True)
class Check:
    """One number that the claim predicts, and the bound it must keep."""

    what: str
    measured: float
    bound: float
    kind: Literal["at least", "at most"]
    interval: tuple[float, float] | None = None
    """of times: that of the median over the rounds of this run; another run may lie outside it"""

    @property
    def holds(self) -> bool:
        """Whether the bound is kept, by the whole interval; NaN keeps no bound."""
        low, high = self.interval or (self.measured, self.measured)
        return low >= self.bound if self.kind == "at least" else high <= self.bound

    @property
    def cells(self) -> tuple[str, str, str, bool]:
        """What was measured, the number, the bound, whether it is kept: a row of a table."""
        number = f"{self.measured:.3g}"
        if self.interval is not None:
            number += " ({:.3g} to {:.3g})".format(*self.interval)
        return self.what, number, f"{self.kind} {self.bound:.3g}", self.holds


def at_least(
    what: str, measured: float, bound: float, interval: tuple[float, float] | None = None
) -> Check:
    """The claim predicts a number of at least this.

    >>> at_least("share of the nearest key", 0.9, 0.5).holds
    True
    >>> at_least("time of one / time of the other", 1.1, 1.0, (0.8, 1.3)).holds
    False
    """
    return Check(what, float(measured), float(bound), "at least", interval)


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
    x: Sequence[int | float] | Sequence[str]
    """numbers, drawn as a line, or names of what is compared, drawn as bars"""
    y: Sequence[int | float]
    reference: bool = False
    """whether it is a reference for the others rather than measured"""
    predicted: int = 0
    """how many of the last points are extrapolated from the others"""


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
    """A textbook claim about attention, measured.

    The verdict is computed from the checks: "holds" where every check keeps its bound, "does not"
    where none does, and "holds partly" otherwise.
    """

    name: str
    claim: str
    source: str
    """where the claim is made"""
    measured: str
    """what was measured, in a sentence"""
    checks: tuple[Check, ...]
    panels: tuple[Panel, ...]
    seed: int = 0
    notes: str = ""
    tables: tuple[Table, ...] = ()
    """printed after the checks"""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def verdict(self) -> Verdict:
        """The outcome of all checks."""
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
        return Table(
            ("what", "measured", "expected", "holds"),
            [check.cells for check in self.checks],
            self._summary,
        )

    def figure(self) -> Figure:
        """The measured curves, under the claim and its verdict."""
        from limelight.insight.studies.figure import draw

        return draw(self.panels, self.claim, self._summary)

    def values(self) -> Mapping[str, Any]:
        """Everything, with the verdict."""
        checks = [{**vars(check), "holds": check.holds} for check in self.checks]
        return {
            "name": self.name, "claim": self.claim, "source": self.source,
            "measured": self.measured, "verdict": self.verdict, "checks": checks,
            "panels": self.panels, "seed": self.seed, "notes": self.notes,
            "tables": self.tables, "details": self.details,
        }  # fmt: skip

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """The verdict, the claim and where it is made, the checks, the tables and the notes."""
        from rich.padding import Padding
        from rich.table import Table as Grid
        from rich.text import Text

        yield Text(self._summary, style="bold")
        facts = Grid.grid(padding=(0, 2, 0, 0))
        for name in ("claim", "source", "measured"):
            facts.add_row(Text(name, style="dim"), Text(getattr(self, name)))
        yield Padding(facts, (0, 0, 0, 2))
        yield replace(self.table(), title="")
        yield from self.tables
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
