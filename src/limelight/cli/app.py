"""The `limelight` command: one file a command.

Nothing here may import torch, and the commands import what is heavy when they run:
`limelight --help` answers at once.
"""

from __future__ import annotations

import typer

from limelight.cli.train import train
from limelight.cli.worked import worked

app = typer.Typer(
    name="limelight",
    help="Self-attention you can see, at full speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(worked)
app.command()(train)


@app.callback()
def _root() -> None:  # pyright: ignore[reportUnusedFunction]
    """Self-attention you can see, at full speed."""
