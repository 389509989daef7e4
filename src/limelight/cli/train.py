"""`limelight train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file that describes the run.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")
    ] = False,
) -> None:
    """Train a language model on text, or an encoder-decoder on pairs.

    Under torchrun (torchrun --nproc-per-node 2 -m limelight train CONFIG) the processes share it.
    """
    from limelight.training.loop import train as run
    from limelight.training.settings import Settings

    outcome = run(Settings.from_file(config), beside=config.parent, resume=resume, quiet=False)
    if outcome.leads:
        print(
            f"{outcome.checkpoint}: held-out loss {outcome.held_out.loss:.4f} "
            f"after {outcome.seconds / 60:.1f} min"
        )
