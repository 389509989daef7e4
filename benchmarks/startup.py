"""Start-up: how long do importing, `--help` and the first picture take?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Bench, Target, at_most

TITLE = "starting up, each in a new process"
TARGET = "import ≤ torch + 0.2 s; --help < 0.3 s; show on its second run to first output < 3 s"

TEXT = "The animal didn't cross the street because it was too tired."
LIMELIGHT = str(Path(sys.executable).with_name("limelight"))
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import limelight": [sys.executable, "-c", "import limelight; limelight.attend"],
    "limelight --help": [LIMELIGHT, "--help"],
    "limelight show": [LIMELIGHT, "show", TEXT],
}


def measure(bench: Bench) -> list[Target]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(bench.pick((8,), quick=(4,))[0]):
            for name, command in COMMANDS.items():
                bench.say(f"{name}, run {turn + 1}")
                first, whole = _run(command, folder)
                if turn:  # the first run fills the disk cache and compiles the Python files
                    times[name].append(first if name == "limelight show" else whole)
    median = {name: statistics.median(values) for name, values in times.items()}
    torch = median["import torch"]
    beyond_torch = median["import limelight"] - torch
    return [
        at_most(f"import limelight beyond torch's {torch:.2f} s", beyond_torch, 0.2, " s"),
        at_most("limelight --help", median["limelight --help"], 0.3, " s"),
        at_most("limelight show, to first output", median["limelight show"], 3.0, " s"),
    ]


def _run(command: list[str], folder: str) -> tuple[float, float]:
    """Seconds to the first byte that a command prints, and to its end."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        first = time.perf_counter() - start
        child.stdout.read()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return first, time.perf_counter() - start
