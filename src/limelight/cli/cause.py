"""`limelight cause`: the weights of a token, and what cutting each link changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def cause(
    text: Annotated[str, typer.Argument(help="The text.")],
    token: Annotated[str, typer.Option(help="The token that attends: its text or its index.")],
    model: Annotated[str, typer.Option(help="minilm, smollm2, or the path of a model.")] = "minilm",
    links: Annotated[int, typer.Option(help="How many links of single heads to list.")] = 10,
    controls: Annotated[
        int, typer.Option(help="Random links of other tokens to cut, for comparison.")
    ] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the random links.")] = 0,
    save: Annotated[
        Path | None, typer.Option(help="Write the figure or the numbers: .png, .svg, .json, ...")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Measure what each link of a token causes, by cutting it.

    Each link is cut by itself in one head, in one layer and everywhere, before softmax and after
    it, and each token is hidden from all others. Shown beside it: weight, value-weighted attention,
    rollout, gradient x input, and how well their rankings agree.
    """
    from limelight.cli.results import output
    from limelight.cli.streams import parse_token
    from limelight.files import check_writable
    from limelight.insight import cause as insight

    if save is not None:
        check_writable(save)
    result = insight.cause(model, text, parse_token(token), controls=controls, seed=seed)
    output(
        result,
        [result.table(), result.link_table(links), result.correlation_table()],
        save=save,
        json=json,
        verdict=result.verdict,
    )
