"""`limelight why`: where the score of a link came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def why(
    text: Annotated[str, typer.Argument(help="The text.")],
    layer: Annotated[int, typer.Option(help="Counted from 0.")],
    head: Annotated[int, typer.Option(help="Counted from 0.")],
    query: Annotated[str, typer.Option(help="The token that looks: its text or its number.")],
    key: Annotated[str, typer.Option(help="The token looked at.")],
    model: Annotated[str, typer.Option(help="minilm, smollm2, or the path of a model.")] = "minilm",
    save: Annotated[
        Path | None, typer.Option(help="Write the figure or the numbers: .png, .svg, .json, ...")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Split the score of a link by its sources: token, position, earlier heads, feed-forward."""
    from limelight.errors import UnavailableError
    from limelight.files import check_writable
    from limelight.insight import why as insight
    from limelight.models.decoder import Decoder
    from limelight.models.encoder import Encoder
    from limelight.models.loading.pretrained import load
    from limelight.seeing.look import look

    if save is not None:
        check_writable(save)
    loaded = load(model)
    if not isinstance(loaded, Encoder | Decoder):
        raise UnavailableError("why takes encoders and decoders")
    asks, answers = (int(each) if each.isdecimal() else each for each in (query, key))
    found = insight.why(look(text, loaded), layer, head, asks, answers, model=loaded)
    if save is not None:
        found.save(save)
    if json:
        print(found.to_json())
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(found.table())
    if save is not None:
        console.print(f"Wrote {save}.", markup=False)
