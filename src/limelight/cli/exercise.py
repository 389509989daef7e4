"""`limelight exercise`: a worked example to fill in, and its solution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def exercise(
    tokens: Annotated[int, typer.Option(help="2 to 8.")] = 3,
    size: Annotated[int, typer.Option(help="Channels of a token, 1 to 6.")] = 2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same exercise.")] = 0,
    heads: Annotated[int, typer.Option(help="1 to 4.")] = 1,
    mask: Annotated[str, typer.Option(help="none or causal.")] = "none",
    to: Annotated[Path, typer.Option(help="The folder to write both files into.")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="Print both instead of writing.")] = False,
) -> None:
    """Write an exercise with simple numbers, and its solution.

    Check a filled-in sheet with `limelight worked FILE --check`.
    """
    from limelight.errors import FileError
    from limelight.files import writing
    from limelight.insight.exercise import exercise as make

    sheets = make(tokens, size, seed, heads=heads, mask=mask)  # pyright: ignore[reportArgumentType]
    if json:
        print(sheets.to_json())
        return
    if not to.is_dir():
        raise FileError(f"--to {to}: no such folder")
    sheet, solution = to / f"{sheets.name}.toml", to / f"{sheets.name}-solution.toml"
    if sheet.exists() and sheet.read_bytes() != sheets.sheet().encode():
        raise FileError(f"{sheet}: already exists and may hold answers: choose another --to")
    for path, text in ((sheet, sheets.sheet()), (solution, sheets.solution())):
        with writing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    print(sheets.sheet())
    print(f"Wrote {sheet} to fill in and {solution}.")
    print(f"When it is filled in: limelight worked {sheet} --check")
