"""Peak memory of a call on a long sequence."""

from __future__ import annotations

from benchmarks import child
from benchmarks.harness import Bench, Target, at_most

TITLE = "peak memory, h 8, d 64"
TARGET = "output + 64 MB at n 65536"

_CODE = """
n = int(sys.argv[1])
small = torch.randn(1, 8, 16, 64)
ll.attend(small, small, small)
q, k, v = (torch.randn(1, 8, n, 64) for _ in range(3))
before = process_memory("VmRSS:")
output = ll.attend(q, k, v)
print(json.dumps({"extra": process_memory("VmHWM:") - before, "output": output.nbytes}))
"""


def measure(bench: Bench) -> list[Target]:
    n = bench.pick((65536,), quick=(16384,))[0]
    bench.say(f"n {n}, in a child process")
    measured = child.run(_CODE, n)
    beyond = (measured["extra"] - measured["output"]) / 1e6
    what = f"beyond the output of {measured['output'] / 1e6:.0f} MB at n {n}"
    return [at_most(what, beyond, 64, " MB")]
