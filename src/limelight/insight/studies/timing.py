"""Times that are comparable on a busy machine: processor time on one thread, interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

import torch

WARM = 2
"""Warm-up rounds, which are not counted: they allocate memory and load code."""


@contextmanager
def one_thread() -> Generator[None]:
    """Within the block, torch and the kernels use one thread, so that none waits for another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each way in each round; every way runs once per round, in turn.

    Processor time does not advance while other programs run, and whatever slows the machine for a
    while slows all ways alike, so their ratio within a round is stable.

    >>> sorted(in_turns({"sum": lambda: sum(range(99)), "nothing": lambda: None}, 3))
    ['nothing', 'sum']
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(WARM + rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            elapsed = time.process_time() - start
            if turn >= WARM:
                seconds[name].append(elapsed)
    return seconds


def median_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median, and the two values between which it lies with at least 95 % confidence.

    The interval of the sign test: of r values, the k-th smallest to the k-th largest, where fewer
    than k of r coin flips are heads with a probability of at most 2.5 %. It assumes nothing about
    the distribution of the values.

    >>> median_interval([float(value) for value in range(1, 16)])
    (8.0, (4.0, 12.0))
    """
    ordered, count = sorted(values), len(values)
    ways, below, k = 1, 1, 0  # ways of choosing k values; of choosing at most k
    while below / 2**count <= 0.025:
        k += 1
        ways = ways * (count - k + 1) // k
        below += ways
    if k == 0:
        raise ValueError(f"an interval of 95 % needs at least 6 values, found {count}")
    return median(ordered), (ordered[k - 1], ordered[-k])
