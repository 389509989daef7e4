"""Seeing: what does the lens cost beside plain attention, and how much memory?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

import limelight as ll
from benchmarks.harness import Bench, Call, Case, Target, at_least, at_most, tensors
from benchmarks.machine import THREADS

TITLE = "the lens, h 8, d 64"
TARGET = (
    "full lens ≤ 1.8x plain attend and ≥ 3x eager weights, same sweep ≤ 1.25x at n 4096; "
    "extra peak memory < 300 MB at n 65536; n 131072 finishes"
)

SAME_SWEEP = ll.Lens(top=8, entropy=True)
EVERY_QUERY = ll.Lens(top=8, entropy=True, distance=True, columns=(0,), band=16)
FULL = ll.Lens(top=8, entropy=True, received=True, map=(128, 128))

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
    n = bench.pick((4096,), quick=(1024,))[0]
    q, k, v = tensors(*[(1, 8, n, 64)] * 3)

    def seen(lens: ll.Lens) -> Call:
        return lambda: ll.attend(q, k, v, lens=lens)[0]

    def eager() -> Tensor:
        weights = torch.softmax(q @ k.mT * 64**-0.5, dim=-1)
        return weights @ v

    row = bench.compare(
        Case(
            f"n{n} full lens",
            ours=seen(FULL),
            peers={"eager weights": lambda: eager},
            beside={
                "plain attend": lambda: lambda: ll.attend(q, k, v),
                "same sweep": lambda: seen(SAME_SWEEP),
                "every query": lambda: seen(EVERY_QUERY),
            },
        )
    )
    plain = row.beside["plain attend"].median
    targets = [
        at_most(f"full lens beside plain, n {n}", row.ours.median / plain, 1.8),
        at_least("full lens against eager weights", bench.worst(), 3.0),
        at_most("same sweep (top 8, entropy)", row.beside["same sweep"].median / plain, 1.25),
        at_most("every per-query statistic", row.beside["every query"].median / plain, 1.25),
    ]
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
