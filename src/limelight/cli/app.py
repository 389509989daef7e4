"""The `limelight` command: one file per subcommand.

Nothing here may import torch, and the subcommands import what is heavy when they run, so that
`limelight --help` prints at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from limelight.cli.cause import cause
from limelight.cli.embed import embed
from limelight.cli.exercise import exercise
from limelight.cli.explore import explore
from limelight.cli.generate import generate
from limelight.cli.heads import heads
from limelight.cli.info import info
from limelight.cli.shift import shift
from limelight.cli.show import show
from limelight.cli.study import study
from limelight.cli.train import train
from limelight.cli.translate import translate
from limelight.cli.why import why
from limelight.cli.worked import worked
from limelight.version import __version__

app = typer.Typer(
    name="limelight",
    help="Self-attention you can see, at full speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(show)
app.command()(explore)
app.command()(worked)
app.command()(cause)
app.command()(heads)
app.command()(shift)
app.command()(why)
app.command()(exercise)
app.command()(study)
app.command()(train)
app.command()(translate)
app.command()(generate)
app.command()(embed)
app.command()(info)


def _print_version(requested: bool) -> bool:
    if requested:
        print(f"limelight {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Self-attention you can see, at full speed."""
