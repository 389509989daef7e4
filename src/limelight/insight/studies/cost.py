"""Time and memory against n: all scores at once, tiled and exact, a window, linear attention."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, exponent
from limelight.ops.attend import attend
from limelight.ops.linear_attention import attend_linear
from limelight.ops.masks.band import causal, window
from limelight.rng import generator_for

HEADS, SIZE, WINDOW = 4, 32, 128
LENGTHS = (1024, 2048, 4096, 8192)
_EAGER_MOST = 4096


def run(seed: int = 0) -> Study:
    """Four ways to attend, from 1,024 to 8,192 tokens; all scores at once up to 4,096."""
    times: dict[str, list[float]] = {name: [] for name in _WAYS}
    memory: dict[str, list[float]] = {name: [] for name in _WAYS}
    with torch.no_grad():
        for n in LENGTHS:
            rng = generator_for(seed, n)
            q, k, v = torch.randn(3, 1, HEADS, n, SIZE, generator=rng)
            for name, way in _WAYS.items():
                if name == "all at once" and n > _EAGER_MOST:
                    continue
                way(q[:, :, :64], k[:, :, :64], v[:, :, :64])
                grown = _peak(lambda way=way, q=q, k=k, v=v: way(q, k, v))
                # at least the output: the allocator may have reused memory for it
                memory[name].append(max(grown, 4.0 * q.numel()))
                times[name].append(min(_seconds(way, q, k, v) for _ in range(3)))
    lengths = {name: LENGTHS[: len(values)] for name, values in times.items()}
    grows = {name: exponent(lengths[name], times[name]) for name in _WAYS}
    held = {name: exponent(lengths[name], memory[name]) for name in _WAYS}
    claimed = {n: n * n for n in (1_000, 10_000, 100_000)}
    return Study(
        name="cost",
        claim="the attention matrix grows quadratically: doubling the input quadruples the time "
        "and the memory needed.",
        source="slides 'The Limitation: O(N²) Complexity'; Self-Attention Layer §12; notes; "
        "The Architecture of Focus §6",
        measured=f"seconds and peak memory of {HEADS} heads of {SIZE}, n from {LENGTHS[0]:,} to "
        f"{LENGTHS[-1]:,}, and the exponents in n",
        checks=(
            at_least("exponent of time, all scores at once", grows["all at once"], 1.7),
            at_least("exponent of memory, all scores at once", held["all at once"], 1.7),
            at_least("exponent of time, exact and tiled", grows["exact, tiled"], 1.7),
            at_least("exponent of memory, exact and tiled", held["exact, tiled"], 1.7),
            at_least("exponent of time, window", grows["window"], 1.7),
        ),
        panels=(
            Panel(
                "time",
                "tokens",
                "seconds",
                [Curve(name, lengths[name], times[name]) for name in _WAYS],
                True,
                True,
            ),
            Panel(
                "memory beyond input",
                "tokens",
                "bytes",
                [Curve(name, lengths[name], memory[name]) for name in _WAYS],
                True,
                True,
            ),
        ),
        seed=seed,
        notes="The claim is true of the number of comparisons (1,000 tokens: 1 million; 10,000: "
        "100 million; 100,000: 10 billion) and of a program that stores them. The exact result "
        "needs no such memory, and a window or linear attention not even the time. Times are of "
        "this machine and this moment.",
        details={"comparisons": claimed, "time exponents": grows, "memory exponents": held},
    )


def _eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * SIZE**-0.5, dim=-1) @ v


_WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "all at once": _eager,
    "exact, tiled": lambda q, k, v: attend(q, k, v),
    "window": lambda q, k, v: attend(q, k, v, mask=causal() & window(WINDOW)),
    "linear": lambda q, k, v: attend_linear(q, k, v),
}


def _seconds(way: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor) -> float:
    start = time.perf_counter()
    way(*tensors)
    return time.perf_counter() - start


def _peak(work: Callable[[], Tensor]) -> float:
    """Bytes by which the process grows while it works; the counter of Linux, reset before."""
    gc.collect()
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return float("nan")
    reset.write_text("5")
    before = _status("VmRSS")
    work()
    return float(_status("VmHWM") - before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
