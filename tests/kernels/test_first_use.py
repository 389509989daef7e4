"""The first use of the kernels in a process, by several threads at once."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import threading
import torch
torch.manual_seed(0)
x = torch.randn(1, 2, 40, 16)
start, results = threading.Barrier(8), []
def work():
    start.wait()
    import limelight as ll
    results.append(ll.attend(x, x, x, mask=ll.causal()))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(results) == 8 and all(torch.equal(result, results[0]) for result in results)
"""


def test_several_threads_can_import_and_call_at_once() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, timeout=300)
