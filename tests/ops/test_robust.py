"""The kernels in long-lived processes: forks, threads, thread counts, Ctrl-C, memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import limelight as ll
from limelight import _kernels
from limelight.ops.masks.mask import Mask


def run(script: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def test_concurrent_python_threads_get_their_own_results() -> None:
    calls = [torch.randn(2, 3, 50 + 13 * t, 32) for t in range(6)]
    expected = [ll.attend(x, x, x, mask=ll.causal()) for x in calls]

    def work(t: int) -> bool:
        x = calls[t % 6]
        return torch.equal(ll.attend(x, x, x, mask=ll.causal()), expected[t % 6])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(240)))


@pytest.mark.parametrize(
    "mask",
    [
        None,
        ll.causal(),
        ll.window(100, 20),
        ll.causal() & ll.window(256),
        ll.documents([700, 3, 797]) & ll.window(60),
        ll.anchors(3) | ll.window(40),
        ll.padding([1400]) & ll.causal(),
    ],
    ids=["all", "causal", "window", "both", "documents", "anchors", "padding"],
)
@pytest.mark.parametrize("d", [64, 160])
def test_the_thread_count_follows_torch_and_changes_nothing(mask: Mask | None, d: int) -> None:
    q, k, v = torch.randn(1, 2, 1500, d), torch.randn(1, 1, 1500, d), torch.randn(1, 1, 1500, d)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            assert _kernels.threads() == threads
            results.append(ll.attend(q, k, v, mask=mask))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_a_fork_after_use_works_in_child_and_parent() -> None:
    ran = run(
        """
        import os, torch, limelight as ll
        x = torch.randn(2, 4, 400, 64)
        expected = ll.attend(x, x, x)          # the threads of the parent exist now
        stored = expected.numpy().tobytes()    # torch itself must not compute in the child
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                results = [ll.attend(x, x, x).numpy().tobytes() for _ in range(5)]
                os._exit(0 if all(result == stored for result in results) else 1)
            children.append(child)
        assert torch.equal(ll.attend(x, x, x), expected)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        print("done")
        """
    )
    assert ran.stdout.strip() == "done", ran.stderr


def test_data_loader_workers_can_attend() -> None:
    ran = run(
        """
        import torch, limelight as ll
        from torch.utils.data import DataLoader, Dataset
        class Rows(Dataset):
            def __len__(self): return 8
            def __getitem__(self, t):
                x = torch.full((1, 2, 64, 16), float(t))
                return ll.attend(x, x, x)
        x = torch.randn(1, 8, 500, 64)
        ll.attend(x, x, x)
        for t, batch in enumerate(DataLoader(Rows(), num_workers=2)):
            assert torch.allclose(batch, torch.full_like(batch, float(t)))
        print("done")
        """
    )
    assert ran.stdout.strip() == "done", ran.stderr


SLOW = """
    import signal, torch, limelight as ll
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    x = torch.randn(1, 8, 40000, 64)
    small = torch.randn(1, 2, 300, 64)
    expected = ll.attend(small, small, small)
    try:
        print("ready", flush=True)             # the signal may come before the next line begins
        ll.attend(x, x, x{options})            # half a minute, if left alone
        print("finished")
    except KeyboardInterrupt:
        assert torch.equal(ll.attend(small, small, small), expected)
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("options", ["", ", mask=ll.causal()"])
def test_ctrl_c_ends_a_long_call(options: str) -> None:
    script = textwrap.dedent(SLOW.replace("{options}", options))
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=120)[0].strip() == "interrupted"
    assert child.returncode == 0


def test_a_failed_allocation_raises_and_later_calls_work() -> None:
    ran = run(
        """
        import resource, torch, limelight as ll
        q, k = torch.randn(1, 2, 96, 4), torch.randn(1, 2, 1 << 20, 4)
        small = ll.attend(q, q, q)
        held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (120 << 20), resource.RLIM_INFINITY))
        try:
            ll.attend(q, k, k, lens=ll.Lens(received=True))
        except MemoryError:
            assert torch.equal(ll.attend(q, q, q), small)
            print("refused")
        """
    )
    assert ran.stdout.strip() == "refused", ran.stderr


def test_memory_stays_linear() -> None:
    """65,536 tokens, where the scores alone would be 137 GB: beyond the output at most 64 MB."""
    ran = run(
        """
        import resource, torch, limelight as ll
        q, k, v = (torch.randn(1, 8, 65536, 64) for _ in range(3))
        ll.attend(q[:, :, :256], k[:, :, :256], v[:, :, :256], mask=ll.causal())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out = ll.attend(q, k, v, mask=ll.causal() & ll.window(256))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        limit = out.numel() * 4 + 64 * 2**20
        assert grown <= limit, (grown, limit)
        print("done")
        """
    )
    assert ran.stdout.strip() == "done", ran.stderr
