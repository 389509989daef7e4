"""`limelight shift`: how a word's meaning changes from layer to layer, in different sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def shift(
    word: Annotated[str, typer.Argument(help="The word; it occurs once in every sentence.")],
    sentences: Annotated[list[str], typer.Argument(help="One or more sentences.")],
    toward: Annotated[
        list[str],
        typer.Option(help="A group of words: fruit=banana,pear,mango.", show_default=False),
    ],
    model: Annotated[str, typer.Option(help="minilm, smollm2, or the path of a model.")] = "minilm",
    template: Annotated[
        str, typer.Option(help="The sentence that the groups' words are put into.")
    ] = "I bought a {}.",
    save: Annotated[
        Path | None, typer.Option(help="Write the figure or the numbers: .png, .svg, .json, ...")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show how a word's meaning shifts, layer by layer.

    Compares the word's vector with groups of words, before attention and after each layer.
    """
    from limelight.cli.results import output
    from limelight.errors import OptionError
    from limelight.files import check_writable
    from limelight.insight import shift as insight

    groups: dict[str, list[str]] = {}
    for option in toward:
        name, equals, members = option.partition("=")
        groups[name] = [member.strip() for member in members.split(",") if member.strip()]
        if not (name and equals and groups[name]):
            raise OptionError(f"--toward must be NAME=WORD,WORD,..., found {option!r}")
    if save is not None:
        check_writable(save)
    result = insight.shift(word, sentences, groups, model=model, template=template)
    output(result, [result.table(), result.source_table()], save=save, json=json)
