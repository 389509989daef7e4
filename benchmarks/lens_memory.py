"""Long sequences: how much memory does the full lens need?"""

from __future__ import annotations

from benchmarks import child
from benchmarks.harness import Bench, Target, at_most

TITLE = "memory of the full lens, h 8, d 64"
TARGET = "extra peak memory < 300 MB at n 65536 (dense weights: 137 GB); n 131072 finishes"

_CODE = """
n, causal = int(sys.argv[1]), sys.argv[2] == "causal"
lens = ll.Lens(top=8, entropy=True, received=True, map=(128, 128))
small = torch.randn(1, 8, 300, 64)
ll.attend(small, small, small, lens=lens)
q, k, v = (torch.randn(1, 8, n, 64) for _ in range(3))
before, start = process_memory("VmRSS:"), time.perf_counter()
output, seen = ll.attend(q, k, v, mask=ll.causal() if causal else None, lens=lens)
print(json.dumps({
    "extra": process_memory("VmHWM:") - before - output.nbytes,
    "seconds": time.perf_counter() - start,
    "received": seen.received.sum().item() / (8 * n),
}))
"""


def measure(bench: Bench) -> list[Target]:
    targets: list[Target] = []
    long = bench.pick(((65536, "full"), (131072, "causal")), quick=((8192, "full"),))
    for length, kind in long:
        bench.say(f"n {length} {kind}, in a child process")
        measured = child.run(_CODE, length, kind)
        what = f"extra peak memory, n {length} {kind} ({measured['seconds']:.0f} s)"
        targets.append(at_most(what, measured["extra"] / 1e6, 300 * max(1, length / 65536), " MB"))
        if abs(measured["received"] - 1) > 1e-4:
            raise AssertionError(
                f"attention received sums to {measured['received']} per query, expected 1"
            )
    return targets
