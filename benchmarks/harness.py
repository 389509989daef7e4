"""Interleaved rounds: every contender runs in each round, so that a busy moment slows all alike."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.machine import Machine, multiply_add, read_memory

T = TypeVar("T")

Call = Callable[[], "Tensor | Sequence[Tensor] | None"]
"""One timed call; its results are compared between contenders."""

SETTLE = 0.05
"""Seconds to wait before each block: for so long, idle OpenMP workers of the last contender (SDPA,
ours) may spin on a core. The workers of ONNX Runtime and OpenVINO sleep at once."""


PLAIN_READ = "plain read"
"""The contender that only reads what a memory-bound case must read."""


PLAIN_MATHS = "plain multiply-adds"
"""The contender that only multiplies and adds, in registers: the FMA peak during these rounds. The
clock of a shared host varies by a tenth and more, so a peak measured earlier would not do."""


class UnableError(Exception):
    """A peer cannot run this case; the message says why."""


class DisagreementError(Exception):
    """A peer's result is not ours, so timing the two would compare different computations."""


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a question: our call, and a function that makes each peer's call."""

    name: str
    ours: Call
    peers: Mapping[str, Callable[[], Call]]
    flops: float = 0.0
    """Floating-point operations of one call, for the share of the FMA peak."""
    reads: Sequence[Tensor] = ()
    """What one call must read; a plain read of it is timed too, for the share of the bandwidth."""
    tolerance: float = 2e-4
    beside: Mapping[str, Callable[[], Call]] = field(default_factory=dict[str, Callable[[], Call]])
    """Contenders that are shown but do not count as peers."""
    unpack: Mapping[str, Callable[[Tensor], Tensor]] = field(
        default_factory=dict[str, Callable[[Tensor], Tensor]]
    )
    """Converts a contender's result to the layout of ours for the check, outside the timing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median of the rounds and the quartiles around it."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Timing:
        """The median and quartiles of at least one value."""
        if len(values) < 2:
            return Timing(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return Timing(middle, low, high)


@dataclass(frozen=True, slots=True)
class Row:
    """The measurements at one point."""

    case: str
    ours: Timing
    peers: dict[str, Timing]
    beside: dict[str, Timing]
    left_out: dict[str, str]
    best: str | None
    """The fastest peer."""
    ratio: Timing | None
    """best peer / ours: the ratio of the medians, and the quartiles of the rounds' ratios."""
    gflops: float
    peak_share: float
    gbytes: float
    bandwidth_share: float


@dataclass(frozen=True, slots=True)
class Target:
    """A target and the value measured for it."""

    text: str
    found: str
    met: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a point may take."""

    rounds: int
    block: float
    """Seconds that one contender's block of calls should last."""
    budget: float
    """Seconds after which no further round is started (three are always run)."""


FULL = Limits(rounds=11, block=0.12, budget=45.0)
QUICK = Limits(rounds=5, block=0.04, budget=2.5)


class Bench:
    """What a question measures with: compare() measures a point, worst() and mean() summarise."""

    def __init__(self, machine: Machine, *, quick: bool, say: Callable[[str], None]) -> None:
        self.machine = machine
        self.quick = quick
        self.rows: list[Row] = []
        self.limits = QUICK if quick else FULL
        self._say = say

    def pick(self, full: Iterable[T], *, quick: Iterable[T]) -> list[T]:
        """The points of a full run, or the few of a quick one."""
        return list(quick if self.quick else full)

    def say(self, text: str) -> None:
        """Show progress."""
        self._say(text)

    def compare(self, case: Case) -> Row:
        """Check every contender against ours, time them interleaved, add a row."""
        self._say(f"{case.name}: checking")
        calls, left_out = _calls(case)
        times = interleave(calls, self.limits, lambda text: self._say(f"{case.name}: {text}"))
        row = self._row(case, times, left_out)
        self.rows.append(row)
        calls.clear()
        gc.collect()
        return row

    def _row(self, case: Case, times: dict[str, list[float]], left_out: dict[str, str]) -> Row:
        timings = {name: Timing.of(values) for name, values in times.items()}
        ours = timings["ours"]
        peers = {name: timings[name] for name in case.peers if name in timings}
        best = min(peers, key=lambda name: peers[name].median, default=None)
        gflops = case.flops / ours.median / 1e9
        read, maths = timings.get(PLAIN_READ), timings.get(PLAIN_MATHS)
        return Row(
            case=case.name,
            ours=ours,
            peers=peers,
            beside={name: timings[name] for name in (*case.beside, PLAIN_READ) if name in timings},
            left_out=left_out,
            best=best,
            ratio=None if best is None else ratio(times[best], times["ours"]),
            gflops=gflops,
            peak_share=0.0 if maths is None else gflops * 1e9 * maths.median / multiply_add(),
            gbytes=sum(tensor.nbytes for tensor in case.reads) / ours.median / 1e9,
            bandwidth_share=0.0 if read is None else read.median / ours.median,
        )

    def worst(self, rows: Iterable[Row] | None = None) -> float:
        """The smallest ratio to the best peer."""
        return min(_ratios(self.rows if rows is None else rows), default=math.nan)

    def mean(self, rows: Iterable[Row] | None = None) -> float:
        """The geometric mean of the ratios to the best peer."""
        ratios = _ratios(self.rows if rows is None else rows)
        return statistics.geometric_mean(ratios) if ratios else math.nan


def at_least(what: str, measured: float, bound: float, unit: str = "x") -> Target:
    """A target with a lower bound."""
    scale = 100 if unit == "%" else 1
    digits = 0 if unit == "%" else 2
    text = f"{what} ≥ {bound * scale:g}{unit}"
    return Target(text, f"{measured * scale:.{digits}f}{unit}", measured >= bound)


def at_most(what: str, measured: float, bound: float, unit: str = "x") -> Target:
    """A target with an upper bound."""
    return Target(f"{what} ≤ {bound:g}{unit}", f"{measured:.2f}{unit}", measured <= bound)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Timing:
    """How many times faster we are: ratio of medians, quartiles of the paired rounds."""
    paired = Timing.of([a / b for a, b in zip(theirs, ours, strict=True)])
    middle = statistics.median(theirs) / statistics.median(ours)
    return Timing(middle, min(paired.low, middle), max(paired.high, middle))


def interleave(
    calls: Mapping[str, Call], limits: Limits, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[float]]:
    """Seconds per call, one value per round and contender; the order differs between rounds."""
    names = list(calls)
    repeats = {name: _repeats(calls[name], limits.block) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for turn in range(limits.rounds):
        if turn >= 3 and time.perf_counter() - start > limits.budget:
            break
        for name in random.Random(turn).sample(names, len(names)):
            say(f"round {turn + 1} of {limits.rounds}, {name}")
            times[name].append(_block(calls[name], repeats[name]))
    return times


def _block(call: Call, repeats: int) -> float:
    time.sleep(SETTLE)
    if repeats > 1:
        call()  # not timed: the other contenders have evicted our data from the caches
    seconds: list[float] = []
    # Very short calls are timed in batches: reading the clock takes 50 ns.
    batch = max(1, repeats // 200)
    for _ in range(max(1, repeats // batch)):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        seconds.append((time.perf_counter() - start) / batch)
    return statistics.median(seconds)


def _repeats(call: Call, block: float) -> int:
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    return max(1, min(20_000, int(block / max(once, 1e-7))))


def _calls(case: Case) -> tuple[dict[str, Call], dict[str, str]]:
    calls: dict[str, Call] = {"ours": case.ours}
    left_out: dict[str, str] = {}
    expected = _flat(case.ours())
    for name, make in {**case.peers, **case.beside}.items():
        try:
            call = make()
        except UnableError as reason:
            left_out[name] = str(reason)
            continue
        unpack = case.unpack.get(name, lambda result: result)
        _check_equal(case, name, expected, [unpack(result) for result in _flat(call())])
        calls[name] = call
    if case.flops:
        calls[PLAIN_MATHS] = _multiply_add
    if case.reads:
        calls[PLAIN_READ] = partial(_read_all, case.reads)
    return calls, left_out


def _read_all(reads: Sequence[Tensor]) -> None:
    for tensor in reads:
        read_memory(tensor)


def _multiply_add() -> None:
    multiply_add()


def _check_equal(case: Case, name: str, expected: list[Tensor], results: list[Tensor]) -> None:
    for ours, theirs in zip(expected, results, strict=True):
        if ours.shape != theirs.shape:
            raise DisagreementError(
                f"{case.name}: {name} has shape {theirs.shape}, ours {ours.shape}"
            )
        difference = (ours.float() - theirs.float()).abs().max().item() if ours.numel() else 0.0
        if not difference <= case.tolerance * max(1.0, ours.float().abs().max().item()):
            raise DisagreementError(f"{case.name}: {name} differs from ours by {difference:.3g}")


def _flat(result: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if result is None:
        return []
    tensors = [result] if isinstance(result, Tensor) else list(result)
    return [tensor.detach().clone() for tensor in tensors]


def _ratios(rows: Iterable[Row]) -> list[float]:
    return [row.ratio.median for row in rows if row.ratio is not None]


def tensors(*shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Standard normal tensors, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]
