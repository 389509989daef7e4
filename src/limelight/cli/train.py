"""`limelight train`: a training run from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file that describes the run.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of the run.")
    ] = False,
) -> None:
    """Train a language model on text, or an encoder-decoder on pairs.

    Under torchrun, several processes train one model: torchrun --nproc-per-node 2 -m limelight
    train CONFIG.
    """
    from limelight.training.loop import train as run
    from limelight.training.settings import Settings

    result = run(Settings.from_file(config), base=config.parent, resume=resume, quiet=False)
    if result.is_leader:
        print(
            f"{result.checkpoint}: held-out loss {result.held_out.loss:.4f} "
            f"after {result.seconds / 60:.1f} min"
        )
