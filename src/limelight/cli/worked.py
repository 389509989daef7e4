"""`limelight worked`: a worked example step by step, with real numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from limelight.insight.worked import Step


def worked(
    example: Annotated[
        str, typer.Argument(help="A known example, or a TOML file.")
    ] = "apple-phones",
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Follow one attention head from the embeddings to the output, and audit what is printed."""
    from limelight.insight.worked import load_worked

    found = load_worked(example)
    steps, slips = found.steps(), found.audit()
    if json:
        from json import dumps

        tables = {step.name: step.table.tolist() for step in steps}
        print(dumps({"tokens": found.tokens, "steps": tables, "slips": [vars(s) for s in slips]}))
        return

    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{found.title}[/bold]: softmax(Q·Kᵀ / √d) · V, one step at a time\n")
    for step in steps:
        rows, columns = step.table.shape
        console.print(f"[bold]{step.name}[/bold]  {rows}×{columns}  [dim]{step.formula}[/dim]")
        console.print(_table(step, found.tokens))
    console.print(_story(steps, found.tokens))
    if found.printed:
        console.print(
            f"\n[bold]Audit of the printed example:[/bold] {len(slips)} numbers do not follow "
            "from X, the matrices and the print before them."
        )
        for slip in slips:
            console.print(f"  {slip}", markup=False)


def _table(step: Step, tokens: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    shares = step.name == "weights"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in step.columns:
        table.add_column(column, justify="right")
    if shares:
        table.add_column("sum", justify="right", style="dim")
    for token, row in zip(tokens, step.table.tolist(), strict=True):
        best = max(row)
        cells = [f"[bold]{x:.3f}[/bold]" if shares and x == best else f"{x:.3f}" for x in row]
        table.add_row(token, *cells, *([f"{sum(row):.3f}"] if shares else []))
    return table


def _story(steps: list[Step], tokens: tuple[str, ...]) -> str:
    weights = next(step.table for step in steps if step.name == "weights")
    lines: list[str] = []
    for token, row in zip(tokens, weights.tolist(), strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        lines.append(
            f'"{token}" attends most to "{tokens[best]}": takes {row[best]:.1%} of its value.'
        )
    return "\n".join(lines)
