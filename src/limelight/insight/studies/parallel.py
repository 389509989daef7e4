"""Time for n tokens: an LSTM, which goes one by one, against attention, which does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from limelight.insight.studies.study import Curve, Panel, Study, at_least, exponent
from limelight.insight.studies.training import seeded
from limelight.layers.attention import Attention

WIDTH, BATCH = 64, 4
LENGTHS = (64, 128, 256, 512, 1024)
ROUNDS = 15


def run(seed: int = 0) -> Study:
    """One layer each, forward and backward, in interleaved rounds."""
    seeded(seed, 1)
    lstm, attention = nn.LSTM(WIDTH, WIDTH, batch_first=True), Attention(WIDTH, heads=4)
    times: dict[str, list[float]] = {"LSTM": [], "attention": []}
    for n in LENGTHS:
        x = torch.randn(BATCH, n, WIDTH)
        steps: dict[str, Callable[[], torch.Tensor]] = {
            "LSTM": lambda x=x: lstm(x)[0].sum(),
            "attention": lambda x=x: attention(x).sum(),
        }
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(ROUNDS):
            for name, step in steps.items():
                start = time.perf_counter()
                step().backward()
                best[name] = min(best[name], time.perf_counter() - start)
        for name, seconds in best.items():
            times[name].append(seconds)
    ratio = [a / b for a, b in zip(times["LSTM"], times["attention"], strict=True)]
    return Study(
        name="parallel",
        claim="attention is fully parallel, recurrence is sequential: training is much faster.",
        source="slides 'Parallel Computation'; Self-Attention Layer §10; notes; "
        "The Architecture of Focus §6",
        measured=f"seconds for forward and backward of one layer, width {WIDTH}, batch {BATCH}, "
        f"n from {LENGTHS[0]} to {LENGTHS[-1]}, best of {ROUNDS}",
        checks=(
            at_least("LSTM time / attention time, n 256", ratio[LENGTHS.index(256)], 1.5),
            at_least("LSTM time / attention time, n 1024", ratio[-1], 1.5),
            at_least("exponent of the LSTM's time in n", exponent(LENGTHS, times["LSTM"]), 0.7),
        ),
        panels=(
            Panel(
                "time of a training step of one layer",
                "tokens",
                "seconds",
                [Curve(name, LENGTHS, values) for name, values in times.items()],
                True,
                True,
            ),
        ),
        seed=seed,
        notes="Times are of this machine and this moment, and repeat only roughly. On two cores "
        "there is little to be parallel with; attention's square cost catches up at long lengths.",
    )
