"""The progress of a run on the terminal: a bar with loss and speed, and a line per evaluation."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Shows the progress of a run."""

    def update(self, step: int, loss: float, speed: float) -> None:
        """Move to a finished step; `speed` in tokens per second."""
        ...

    def print(self, text: str) -> None:
        """Print a line that stays on the screen."""
        ...


class NoProgress:
    """Shows nothing: for processes other than the leader, and for calls from Python."""

    def update(self, step: int, loss: float, speed: float) -> None:
        pass

    def print(self, text: str) -> None:
        pass


class _Bar:
    def __init__(self, bar: Any, steps: int, start: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=steps, completed=start, loss="", speed="")

    def update(self, step: int, loss: float, speed: float) -> None:
        self._bar.update(
            self._task, completed=step, loss=f"loss {loss:.3f}", speed=f"{speed:,.0f} tokens/s"
        )

    def print(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)


@contextmanager
def progress_bar(steps: int, start: int) -> Generator[Progress]:
    """A progress bar on the terminal; without a terminal, only the lines are printed."""
    from rich import progress

    columns = (
        progress.TextColumn("step {task.completed}/{task.total}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[loss]}  {task.fields[speed]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bar:
        yield _Bar(bar, steps, start)
