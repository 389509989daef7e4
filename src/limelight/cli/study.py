"""`limelight study`: textbook claims about attention, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def study(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which studies; see --list.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Run every study.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    to: Annotated[
        Path | None, typer.Option(help="Write a figure (PNG) and JSON of each to this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list of the results.")] = False,
) -> None:
    """Measure what textbooks claim about attention.

    Each claim gets a verdict from its numbers: it "holds" if all of them are within the bounds set
    for them, "does not" if none is, and "holds partly" otherwise.
    """
    from limelight.errors import FileError, OptionError
    from limelight.insight.studies.registry import STUDIES, check_study

    if list_:
        width = max(map(len, STUDIES))
        print("\n".join(f"{name:<{width}}  {about}" for name, about in STUDIES.items()))
        return
    chosen = list(STUDIES) if all_ else list(dict.fromkeys(names or ()))
    if not chosen:
        raise OptionError("expected the name of a study or --all, found neither; --list lists them")
    for name in chosen:
        check_study(name)
    if to is not None:
        try:
            to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"--to {to}: cannot be made: {error.strerror}") from error
    _run(chosen, seed, to, json)


def _run(names: list[str], seed: int, to: Path | None, json: bool) -> None:
    from rich.console import Console

    from limelight.insight.studies.registry import study as measure

    console = Console(highlight=False, markup=False, emoji=False)
    progress = Console(stderr=True)
    documents: list[str] = []
    for number, name in enumerate(names, start=1):
        with progress.status(f"{name} ({number} of {len(names)}) …"):
            result = measure(name, seed=seed)
        if to is not None:
            result.save(to / f"{name}.png")
            result.save(to / f"{name}.json")
        if json:
            documents.append(result.to_json())
        else:
            console.print(result)
    if json:
        print(f"[{', '.join(documents)}]")
    elif to is not None:
        print(f"Wrote {2 * len(names)} files to {to}.")
