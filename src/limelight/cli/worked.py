"""`limelight worked`: a worked example step by step, and an audit of printed numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from limelight.insight.worked.example import Worked

_FORMATS = ("text", "markdown", "latex", "html")


def worked(
    example: Annotated[
        str, typer.Argument(help="A known example, or a TOML file.")
    ] = "apple-phones",
    check: Annotated[
        bool, typer.Option("--check", help="Audit the printed numbers; exit 1 if any is wrong.")
    ] = False,
    format: Annotated[str, typer.Option(help="text, markdown, latex or html.")] = "text",
    decimals: Annotated[int, typer.Option(help="Digits after the point, 0 to 12.")] = 3,
    to: Annotated[
        Path | None, typer.Option(help="Write each step as a slide (PNG) to this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the known examples.")] = False,
) -> None:
    """Work through attention step by step, and check printed numbers.

    A file of your own is TOML: tokens, x, w_query, w_key, w_value, or [[heads]] of them; w_output,
    mask, scale, residual, memory and [[layers]] as needed; [printed] holds the numbers to audit.
    """
    from limelight.errors import FileError, OptionError
    from limelight.insight.worked.parsing import known_examples
    from limelight.insight.worked.parsing import worked as parse

    if list_:
        for name in known_examples():
            print(f"{name:<14}{parse(name).title}")
        return
    if format not in _FORMATS:
        raise OptionError(f"--format must be one of {', '.join(_FORMATS)}, found {format!r}")
    if not 0 <= decimals <= 12:
        raise OptionError(f"--decimals must be 0 to 12, found {decimals}")
    parsed = parse(example)
    if check and not parsed.is_printed:
        raise FileError(f"{example}: has no [printed] table, so there is nothing to check")
    if to is not None:
        from limelight.insight.worked.slides import save_slides

        slides = save_slides(parsed, to, decimals)
        if not json:
            print(f"Wrote {len(slides)} slides: {slides[0]} to {slides[-1].name}.")
    elif not json:
        _print(parsed, format, decimals, check)
    if json:
        print(parsed.to_json())
    if check and not parsed.audit().passed:
        raise typer.Exit(1)


def _print(example: Worked, format: str, decimals: int, check: bool) -> None:
    from rich.console import Console

    from limelight.insight.worked.rendering import FORMATS

    console = Console(highlight=False, markup=False, emoji=False)
    audit = example.audit()
    if check:
        console.print(audit)
        if audit.open:
            console.print("Fill these in first: the solution would give them away.")
            return
        console.print("\nThe whole example with the right numbers:\n", style="bold")
    if format != "text":
        print(FORMATS[format](example, decimals))
        return
    _print_steps(console, example, decimals)
    if example.is_printed and not check and not audit.open:
        console.print()
        console.print(audit)


def _print_steps(console: Console, example: Worked, decimals: int) -> None:
    from rich.text import Text

    from limelight.insight.worked.rendering import cell_of, spotlight, step_table, story
    from limelight.labels import visible

    steps = example.steps()
    spot = spotlight(example, steps)
    console.print(Text(visible(example.title), style="bold"))
    for step in steps:
        rows, columns = step.table.shape
        line = Text()
        line.append(f"{step.where + ': ' if step.where else ''}{step.formula}", style="bold")
        line.append(f"   {rows}×{columns}   ")
        line.append(step.meaning, style="dim")
        console.print(line)
        console.print(step_table(step, decimals))
        i, j = cell_of(step, spot)
        written = step.written(i, j, decimals)
        if written:
            names = f"{visible(step.rows[i])}, {visible(step.columns[j])}"
            console.print(Text(f"  {names}: {written}\n", style="dim"))
    for line in story(example, steps):
        console.print(line)
