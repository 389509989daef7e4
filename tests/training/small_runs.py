"""The settings of a small run, and its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from limelight.training.log import read_log
from limelight.training.settings import Settings

TEXT = "".join(f"{number} squared is {number * number}.\n" for number in range(300))
STEPS = 60


def settings(folder: Path, **changes: Any) -> Settings:
    model = {"preset": "gpt2", "layers": 2, "heads": 2, "width": 64, "context": 32, "dropout": 0.1}
    table = {
        "folder": str(folder),
        "steps": STEPS,
        "batch": 4,
        "evaluate_every": 25,
        "save_every": 4,
        "log_every": 3,
        "data": {"text": "text.txt"},
        "model": model,
        "optimizer": {"warmup_steps": 5},
        **changes,
    }
    return Settings.from_table(table)


def entries(folder: Path) -> list[dict[str, Any]]:
    """The log without timings."""
    log = read_log(folder / "log.jsonl")
    return [{name: e[name] for name in e if name != "tokens_per_second"} for e in log]


def write_toml(path: Path, table: dict[str, Any]) -> None:
    inner = {name: value for name, value in table.items() if isinstance(value, dict)}
    lines = [f"{n} = {json.dumps(v)}" for n, v in table.items() if n not in inner]
    for name, values in inner.items():
        lines += [f"[{name}]", *(f"{n} = {json.dumps(v)}" for n, v in values.items() if v != ())]
    path.write_text("\n".join(lines))
