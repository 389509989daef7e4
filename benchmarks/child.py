"""Peak memory of a piece of code, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import THREADS

_START = """
import json, sys, time, torch
import limelight as ll

def process_memory(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")

"""


def run(code: str, *arguments: object) -> dict[str, Any]:
    """What `code` prints, parsed as JSON.

    The code can use torch, `ll`, its arguments in `sys.argv`, and `process_memory(field)` in bytes.
    """
    process = subprocess.run(
        [sys.executable, "-c", f"{_START}torch.set_num_threads({THREADS})\n{code}",
         *map(str, arguments)],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(process.stdout)
