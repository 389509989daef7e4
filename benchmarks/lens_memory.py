"""Seeing far: how much memory does the full lens need, in a process of its own?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Bench, Target, at_most
from benchmarks.machine import THREADS

TITLE = "memory of the full lens, h 8, d 64"
TARGET = "extra peak memory < 300 MB at n 65536 (dense weights: 137 GB); n 131072 finishes"

_CHILD = """
import json, sys, time, torch
import limelight as ll

def held(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")

n, threads, causal = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "causal"
torch.set_num_threads(threads)
lens = ll.Lens(top=8, entropy=True, received=True, map=(128, 128))
small = torch.randn(1, 8, 300, 64)
ll.attend(small, small, small, lens=lens)
q, k, v = (torch.randn(1, 8, n, 64) for _ in range(3))
before, start = held("VmRSS:"), time.perf_counter()
output, seen = ll.attend(q, k, v, mask=ll.causal() if causal else None, lens=lens)
print(json.dumps({
    "extra": held("VmHWM:") - before - output.nbytes,
    "seconds": time.perf_counter() - start,
    "received": seen.received.sum().item() / (8 * n),
}))
"""


def ask(bench: Bench) -> list[Target]:
    targets: list[Target] = []
    long = bench.pick(((65536, "full"), (131072, "causal")), quick=((8192, "full"),))
    for length, kind in long:
        bench.say(f"n {length} {kind}, in a child process")
        found = _child(length, kind)
        what = f"extra peak memory, n {length} {kind} ({found['seconds']:.0f} s)"
        targets.append(at_most(what, found["extra"] / 1e6, 300 * length / 65536, " MB"))
        if abs(found["received"] - 1) > 1e-4:
            raise AssertionError(f"attention received sums to {found['received']} a query, not 1")
    return targets


def _child(n: int, kind: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(n), str(THREADS), kind],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)
