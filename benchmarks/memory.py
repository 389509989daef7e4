"""Peak memory at a long sequence, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Bench, Target, at_most
from benchmarks.machine import THREADS

TITLE = "peak memory, h 8, d 64"
TARGET = "output + 64 MB at n 65536"

_CHILD = """
import json, sys, torch
import limelight as ll

def held(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")

n, threads = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
small = torch.randn(1, 8, 16, 64)
ll.attend(small, small, small)
q, k, v = (torch.randn(1, 8, n, 64) for _ in range(3))
before = held("VmRSS:")
output = ll.attend(q, k, v)
print(json.dumps({"extra": held("VmHWM:") - before, "output": output.nbytes}))
"""


def ask(bench: Bench) -> list[Target]:
    n = bench.pick((65536,), quick=(16384,))[0]
    bench.say(f"n {n}, in a child process")
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(n), str(THREADS)],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(child.stdout)
    beyond = (found["extra"] - found["output"]) / 1e6
    what = f"beyond the output of {found['output'] / 1e6:.0f} MB at n {n}"
    return [at_most(what, beyond, 64, " MB")]
