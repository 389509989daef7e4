"""The names of checkpoints in the folder of a training run: step-00000500, step-00001000, …"""

from __future__ import annotations

import re
from pathlib import Path

from limelight.files import is_folder

_STEP = re.compile(r"step-(\d{8})")


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run / f"step-{step:08d}"


def checkpoint_steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, in order; none if this is not the folder of a run."""
    if not is_folder(run):
        return []
    names = [_STEP.fullmatch(entry.name) for entry in run.iterdir() if entry.is_dir()]
    return sorted(int(name[1]) for name in names if name is not None)
