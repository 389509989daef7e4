"""`limelight why`: where the score of a link comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def why(
    text: Annotated[str, typer.Argument(help="The text.")],
    layer: Annotated[int, typer.Option(help="Counted from 0.")],
    head: Annotated[int, typer.Option(help="Counted from 0.")],
    query: Annotated[str, typer.Option(help="The token that attends: its text or its index.")],
    key: Annotated[
        str | None,
        typer.Option(help="The token attended to; without it, the head's output is split."),
    ] = None,
    model: Annotated[str, typer.Option(help="minilm, smollm2, or the path of a model.")] = "minilm",
    save: Annotated[
        Path | None, typer.Option(help="Write the figure or the numbers: .png, .svg, .json, ...")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Split a link's score by where its parts come from.

    The sources are the token, its position, earlier heads and feed-forward layers, on the query's
    side and on the key's.

    Without --key, what the head wrote into the query is split: by the tokens it attended to, by the
    sources of their values, and by the directions of the head's output.
    """
    from limelight.cli.results import output
    from limelight.cli.streams import parse_token
    from limelight.files import check_writable
    from limelight.insight.head_output import HeadOutput
    from limelight.insight.head_output import wrote as split_output
    from limelight.insight.why import why as split_score
    from limelight.models.loading.pretrained import load
    from limelight.seeing.look import look

    if save is not None:
        check_writable(save)
    loaded = load(model)
    rec = look(text, loaded)
    query_token = parse_token(query)
    if key is None:
        result = split_output(rec, layer, head, query_token, model=loaded)
    else:
        result = split_score(rec, layer, head, query_token, parse_token(key), model=loaded)
    tables = [result.table()]
    if isinstance(result, HeadOutput):
        tables.append(result.direction_table())
    output(result, tables, save=save, json=json)
