"""Waiting: what do importing, `--help` and the first picture cost?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Bench, Target, at_most

TITLE = "starting up, each in a new process"
TARGET = "import ≤ torch + 0.2 s; --help < 0.3 s; show on its second run < 3 s"

TEXT = "The animal didn't cross the street because it was too tired."
LIMELIGHT = str(Path(sys.executable).with_name("limelight"))
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import limelight": [sys.executable, "-c", "import limelight; limelight.attend"],
    "limelight --help": [LIMELIGHT, "--help"],
    "limelight show": [LIMELIGHT, "show", TEXT],
}


def ask(bench: Bench) -> list[Target]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(bench.pick((8,), quick=(4,))[0]):
            for name, command in COMMANDS.items():
                bench.say(f"{name}, run {turn + 1}")
                start = time.perf_counter()
                subprocess.run(command, cwd=folder, capture_output=True, check=True)
                if turn:  # the first run fills the disk cache and compiles the Python files
                    times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in times.items()}
    more = median["import limelight"] - median["import torch"]
    return [
        at_most(f"import limelight beyond torch's {median['import torch']:.2f} s", more, 0.2, " s"),
        at_most("limelight --help", median["limelight --help"], 0.3, " s"),
        at_most("limelight show, whole run", median["limelight show"], 3.0, " s"),
    ]
