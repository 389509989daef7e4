"""The output of results: as a file, as JSON, or as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limelight.insight.result import Result
    from limelight.insight.table import Table


def output(
    result: Result,
    tables: Sequence[Table],
    *,
    save: Path | None,
    json: bool,
    verdict: str = "",
) -> None:
    """Save a result if requested, and print it: as tables, or as JSON and nothing else."""
    if save is not None:
        result.save(save)
    if json:
        print(result.to_json())
        return
    from rich.console import Console

    console = Console(highlight=False)
    for table in tables:
        console.print(table)
    if verdict:
        console.print(verdict, markup=False)
    if save is not None:
        console.print(f"Wrote {save}.", markup=False)
