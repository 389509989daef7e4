"""`limelight study`: a claim of the textbooks, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def study(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which studies; see --list.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Run every study.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Name the studies.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    to: Annotated[
        Path | None, typer.Option(help="Write figure (PNG) and JSON of each into this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list of the results.")] = False,
) -> None:
    """Measure what textbooks claim about attention.

    Each claim gets a verdict from its numbers: it "holds" where all of them keep the bounds that
    were set for them, "does not" where none does, and "holds partly" otherwise.
    """
    from limelight.errors import FileError, OptionError
    from limelight.insight.studies.registry import STUDIES

    if list_:
        width = max(map(len, STUDIES))
        print("\n".join(f"{name:<{width}}  {about}" for name, about in STUDIES.items()))
        return
    chosen = list(STUDIES) if all_ else list(dict.fromkeys(names or ()))
    if not chosen:
        raise OptionError("name a study, or give --all; --list names them")
    for name in chosen:
        if name not in STUDIES:
            raise OptionError(f"there is no study {name!r}: there are {', '.join(STUDIES)}")
    if to is not None:
        try:
            to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"--to {to}: cannot be a folder: {error.strerror}") from error
    _run(chosen, seed, to, json)


def _run(names: list[str], seed: int, to: Path | None, json: bool) -> None:
    from rich.console import Console

    from limelight.insight.studies.registry import study as measure

    console = Console(highlight=False, markup=False, emoji=False)
    waiting = Console(stderr=True)
    texts: list[str] = []
    for place, name in enumerate(names):
        with waiting.status(f"{name} ({place + 1} of {len(names)}) …"):
            result = measure(name, seed=seed)
        if to is not None:
            result.save(to / f"{name}.png")
            result.save(to / f"{name}.json")
        if json:
            texts.append(result.to_json())
        else:
            console.print(result)
    if json:
        print(f"[{', '.join(texts)}]")
    elif to is not None:
        print(f"Wrote {2 * len(names)} files into {to}.")
