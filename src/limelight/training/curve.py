"""The loss curve of a run, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limelight.errors import UnavailableError
from limelight.files import writing


def draw_curve(entries: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Write a picture of the loss over the steps: in training and on held-out text."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UnavailableError(
            "the loss curve needs matplotlib: pip install limelight[training]"
        ) from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    training = [(float(e["step"]), e["loss"]) for e in entries if "loss" in e]
    held_out = [(float(e["step"]), e["held_out_loss"]) for e in entries if "held_out_loss" in e]
    axes.plot(*_columns(training), color="#4c72b0", linewidth=1, label="training")
    if held_out:
        axes.plot(*_columns(held_out), color="#dd8452", marker="o", markersize=4, label="held out")
        step, loss = held_out[-1]
        axes.annotate(
            f"{loss:.3f}", (step, loss), xytext=(0, 8), textcoords="offset points", ha="right"
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
