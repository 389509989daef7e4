"""Time and memory against n: all scores at once, tiled and exact, a window, linear attention."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from limelight.insight.studies.study import Curve, Panel, Study, at_least, exponent
from limelight.insight.studies.timing import one_thread
from limelight.insight.table import Table
from limelight.ops.attend import attend
from limelight.ops.linear_attention import attend_linear
from limelight.ops.masks.band import causal, window
from limelight.rng import generator_for

HEADS, SIZE, WINDOW = 12, 32, 128
"""The heads of MiniLM; with so many, the scores of any length are newly allocated memory."""
TABLE = (1_000, 10_000, 100_000)
"""The lengths in the table of the claim's source."""
LENGTHS = (1_000, 2_000, 4_000, 10_000, 30_000, 100_000)
_MOST = {"all at once": 4_000, "exact, tiled": 10_000}
"""The longest text for ways whose memory or time is quadratic."""


def run(seed: int = 0) -> Study:
    """Four ways to attend, each up to what takes some seconds; the rest is extrapolated."""
    times, memory = _measure(seed)
    measured = {name: len(values) for name, values in times.items()}
    time_powers = {name: exponent(LENGTHS[: measured[name]], times[name]) for name in _WAYS}
    memory_powers = {name: exponent(LENGTHS[: measured[name]], memory[name]) for name in _WAYS}
    times = {name: _extrapolated(times[name], time_powers[name]) for name in _WAYS}
    memory = {
        name: [max(size, _output_bytes(n)) for size, n in zip(sizes, LENGTHS, strict=True)]
        for name in _WAYS
        for sizes in [_extrapolated(memory[name], memory_powers[name])]
    }
    return Study(
        name="cost",
        claim="the attention matrix grows quadratically: doubling the input quadruples the time "
        "and the memory needed.",
        source="slides 'The Limitation: O(N²) Complexity'; Self-Attention Layer §12; notes; "
        "The Architecture of Focus §6",
        measured=f"processor time on one thread and peak memory of {HEADS} heads of {SIZE}, n from "
        f"{LENGTHS[0]:,} to {LENGTHS[-1]:,}, and the exponents in n",
        checks=(
            at_least("exponent of time, all scores at once", time_powers["all at once"], 1.7),
            at_least("exponent of memory, all scores at once", memory_powers["all at once"], 1.7),
            at_least("exponent of time, exact and tiled", time_powers["exact, tiled"], 1.7),
            at_least("exponent of memory, exact and tiled", memory_powers["exact, tiled"], 1.7),
            at_least("exponent of time, window", time_powers["window"], 1.7),
        ),
        panels=(
            _panel("processor time", "seconds", times, measured),
            _panel("memory beyond input", "bytes", memory, measured),
        ),
        seed=seed,
        tables=(
            _table("time on one thread", times, time_powers, measured, _duration),
            _table("memory beyond input", memory, memory_powers, measured, _amount),
        ),
        notes="The claim is true of the number of comparisons, and of a program that stores them "
        "all. Exact attention need not store them, and a window or linear attention saves the time "
        "as well. Times are from one machine; ≈ and dots mark values that were not measured but "
        "extrapolated by the exponent.",
        details={
            "comparisons": {n: n * n for n in TABLE},
            "time exponents": time_powers,
            "memory exponents": memory_powers,
            "measured up to": {name: LENGTHS[count - 1] for name, count in measured.items()},
        },
    )


def _measure(seed: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and bytes of each way, at each length up to the longest that it is run for."""
    times: dict[str, list[float]] = {name: [] for name in _WAYS}
    memory: dict[str, list[float]] = {name: [] for name in _WAYS}
    with torch.no_grad(), one_thread():
        for n in LENGTHS:
            rng = generator_for(seed, n)
            q, k, v = torch.randn(3, 1, HEADS, n, SIZE, generator=rng)
            for name, way in _WAYS.items():
                if n > _MOST.get(name, LENGTHS[-1]):
                    continue
                way(q[:, :, :64], k[:, :, :64], v[:, :, :64])
                grown = _peak(lambda way=way, q=q, k=k, v=v: way(q, k, v))
                memory[name].append(max(grown, _output_bytes(n)))
                times[name].append(min(_seconds(way, q, k, v) for _ in range(3)))
    return times, memory


def _output_bytes(n: int) -> float:
    """The least that every way needs; a reused allocation does not show in the measured growth."""
    return 4.0 * HEADS * n * SIZE


def _extrapolated(values: Sequence[float], power: float) -> list[float]:
    """The values at all lengths: beyond the last measured one, by its power law."""
    last = LENGTHS[len(values) - 1]
    return [*values, *(values[-1] * (n / last) ** power for n in LENGTHS[len(values) :])]


def _panel(
    title: str, unit: str, values: Mapping[str, list[float]], measured: Mapping[str, int]
) -> Panel:
    curves = [
        Curve(name, LENGTHS, values[name], predicted=len(LENGTHS) - measured[name])
        for name in _WAYS
    ]
    return Panel(title, "tokens", unit, curves, True, True)


def _table(
    title: str,
    values: Mapping[str, list[float]],
    powers: Mapping[str, float],
    measured: Mapping[str, int],
    format_value: Callable[[float], str],
) -> Table:
    """The source's table of comparisons, with what each way takes."""
    rows = [
        (
            f"{n:,}",
            f"{n * n:,}",
            *(
                "≈ " * (index >= measured[name]) + format_value(values[name][index])
                for name in _WAYS
            ),
        )
        for n in TABLE
        for index in [LENGTHS.index(n)]
    ]
    rows.append(("exponent in n", "2", *(f"{powers[name]:.2f}" for name in _WAYS)))
    return Table(("words", "comparisons", *_WAYS), rows, title, right_aligned=True)


def _duration(seconds: float) -> str:
    if seconds >= 90:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _amount(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def _eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * SIZE**-0.5, dim=-1) @ v


_WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "all at once": _eager,
    "exact, tiled": lambda q, k, v: attend(q, k, v),
    "window": lambda q, k, v: attend(q, k, v, mask=causal() & window(WINDOW)),
    "linear": lambda q, k, v: attend_linear(q, k, v),
}


def _seconds(way: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor) -> float:
    start = time.process_time()
    way(*tensors)
    return time.process_time() - start


def _peak(work: Callable[[], Tensor]) -> float:
    """Bytes by which the process grows at its peak, by Linux's counter; NaN elsewhere."""
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
