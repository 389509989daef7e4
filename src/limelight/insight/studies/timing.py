"""Times that compare on a busy machine: processor time on one thread, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

import torch

WARM = 2
"""Rounds that are not counted: memory is taken and code is read for the first time."""


@contextmanager
def one_thread() -> Generator[None]:
    """Within the block, torch and the kernels use one thread, so that nothing waits for another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each way in each round; all ways run once a round, one after another.

    The processor's time stands still while other programs run, and what slows the machine for a
    while slows all ways alike, so their ratio within a round stays.

    >>> sorted(in_turns({"sum": lambda: sum(range(99)), "nothing": lambda: None}, 3))
    ['nothing', 'sum']
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(WARM + rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            took = time.process_time() - start
            if turn >= WARM:
                seconds[name].append(took)
    return seconds


def median_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median, and between which of the values it lies with 95 % confidence or more.

    The interval of the sign test: of r values, the k-th smallest to the k-th largest, where
    fewer than k of r throws of a coin are heads in at most 2.5 % of cases. It assumes nothing of
    how the values are spread.

    >>> median_interval([float(value) for value in range(1, 16)])
    (8.0, (4.0, 12.0))
    """
    ordered, count = sorted(values), len(values)
    ways, below, k = 1, 1, 0  # of choosing k of them; of choosing fewer than k + 1
    while below / 2**count <= 0.025:
        k += 1
        ways = ways * (count - k + 1) // k
        below += ways
    if k == 0:
        raise ValueError(f"an interval of 95 % needs at least 6 values, found {count}")
    return median(ordered), (ordered[k - 1], ordered[-k])
