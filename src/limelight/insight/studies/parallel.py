"""Steps and time for n tokens: an LSTM, which takes them one by one, and attention, at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most, exponent
from limelight.insight.studies.timing import in_turns, median_interval, one_thread
from limelight.insight.studies.training import seeded
from limelight.layers.attention import Attention

WIDTH, HEADS = 256, 4
LENGTHS = (64, 128, 256, 512, 1024, 2048)
ROUNDS = 15
_SHORT, _LONG = 256, 2048


def run(seed: int = 0) -> Study:
    """One layer each: the operations that wait for one another, and the time of a training step."""
    steps, times, ratios = _measure(seed)
    short, long = (ratios[LENGTHS.index(n)] for n in (_SHORT, _LONG))
    per_token = {
        name: [1e6 * seconds / n for seconds, n in zip(values, LENGTHS, strict=True)]
        for name, values in times.items()
    }
    return Study(
        name="parallel",
        claim="attention is fully parallel, recurrence is sequential: training is dramatically "
        "faster.",
        source="slides 'Parallel Computation'; Self-Attention Layer §10; notes; "
        "The Architecture of Focus §6",
        measured=f"the longest chain of operations that wait for one another, and processor time "
        f"of a training step on one thread; one layer of width {WIDTH}, n from {LENGTHS[0]} to "
        f"{LENGTHS[-1]:,}; median ratio of {ROUNDS} interleaved rounds, 95 % interval",
        checks=(
            at_least("LSTM: exponent of the chain in n", exponent(LENGTHS, steps["LSTM"]), 0.9),
            at_most(
                "attention: exponent of the chain in n", exponent(LENGTHS, steps["attention"]), 0.1
            ),
            at_least(f"LSTM time / attention time, n {_SHORT}", short[0], 1.0, short[1]),
            at_least(f"LSTM time / attention time, n {_LONG:,}", long[0], 1.0, long[1]),
        ),
        panels=(
            Panel(
                "operations that wait for one another",
                "tokens",
                "longest chain",
                [Curve(name, LENGTHS, values) for name, values in steps.items()],
                True,
                True,
            ),
            Panel(
                "processor time of a training step",
                "tokens",
                "microseconds a token",
                [Curve(name, LENGTHS, values) for name, values in per_token.items()],
                log_x=True,
            ),
        ),
        seed=seed,
        notes=_notes(steps, [ratio for ratio, _ in ratios]),
        details={
            "steps": steps,
            "seconds": times,
            "time ratio": {n: ratio for n, (ratio, _) in zip(LENGTHS, ratios, strict=True)},
            "time ratio, 95 %": {n: span for n, (_, span) in zip(LENGTHS, ratios, strict=True)},
        },
    )


class _Measured(NamedTuple):
    """Numbers by layer, or one for both, at each length."""

    steps: dict[str, list[int]]
    """the longest chain of operations"""
    times: dict[str, list[float]]
    """seconds of a training step, median over the rounds"""
    ratios: list[tuple[float, tuple[float, float]]]
    """LSTM time / attention time: the median over the rounds, and its interval"""


def _measure(seed: int) -> _Measured:
    seeded(seed, 1)
    lstm, attention = nn.LSTM(WIDTH, WIDTH, batch_first=True), Attention(WIDTH, heads=HEADS)
    unrolled_lstm = unrolled(lstm)
    measured = _Measured({"LSTM": [], "attention": []}, {"LSTM": [], "attention": []}, [])
    with one_thread():
        for n in LENGTHS:
            x = torch.randn(1, n, WIDTH)
            measured.steps["LSTM"].append(longest_chain(unrolled_lstm(x)))
            measured.steps["attention"].append(longest_chain(attention(x)))
            ways: dict[str, Callable[[], object]] = {
                "LSTM": lambda x=x: lstm(x)[0].sum().backward(),
                "attention": lambda x=x: attention(x).sum().backward(),
            }
            rounds = in_turns(ways, ROUNDS)
            for name, seconds in rounds.items():
                measured.times[name].append(median(seconds))
            pairs = zip(rounds["LSTM"], rounds["attention"], strict=True)
            measured.ratios.append(median_interval([a / b for a, b in pairs]))
    return measured


def unrolled(lstm: nn.LSTM) -> Callable[[Tensor], Tensor]:
    """The same layer, `1 n d` to `1 n d`, as separate operations for each token.

    >>> lstm, x = nn.LSTM(4, 4, batch_first=True), torch.ones(1, 5, 4)
    >>> torch.allclose(unrolled(lstm)(x), lstm(x)[0], atol=1e-6)
    True
    """
    [[from_input, from_hidden, input_bias, hidden_bias]] = lstm.all_weights

    def forward(x: Tensor) -> Tensor:
        projected = nn.functional.linear(x, from_input, input_bias)
        hidden = cell = x.new_zeros(len(x), lstm.hidden_size)
        outputs: list[Tensor] = []
        for step_input in projected.unbind(1):
            gates = step_input + nn.functional.linear(hidden, from_hidden, hidden_bias)
            input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
            cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
            hidden = output_gate.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)

    return forward


def longest_chain(output: Tensor) -> int:
    """The length of the longest chain of dependent operations that lead to an output.

    >>> x = torch.ones(3, requires_grad=True)
    >>> longest_chain((x * 2 + x * 3).exp())
    3
    """
    depth: dict[Any, int] = {None: 0}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        if node in depth:
            waiting.pop()
            continue
        assert node is not None
        inputs = [function for function, _ in node.next_functions if function is not None]
        unknown = [function for function in inputs if function not in depth]
        waiting.extend(unknown)
        if not unknown:
            leaf = not inputs  # accumulates the gradient of a tensor: not an operation
            depth[node] = 0 if leaf else 1 + max(depth[function] for function in inputs)
            waiting.pop()
    return depth[output.grad_fn]


def _notes(steps: dict[str, list[int]], ratios: Sequence[float]) -> str:
    crossing = _crossing(ratios)
    even = "within these lengths neither overtakes the other"
    if crossing is not None:
        even = f"here the two take the same time at about {crossing:,.0f} tokens"
    return (
        f"For {LENGTHS[-1]:,} tokens the LSTM's chain is {steps['LSTM'][-1]:,} operations long, "
        f"attention's {steps['attention'][-1]}: with unlimited parallel hardware, that is how long "
        f"each would take. On one thread the amount of work counts instead, n·d² against "
        f"n·d² + n²·d, so attention is faster on texts that are short for their width; {even}. The "
        f"gain on hardware with thousands of units was not measured. While a text is being "
        f"generated, attention is sequential, too."
    )


def _crossing(ratios: Sequence[float]) -> float | None:
    """The length at which the ratio falls below 1, by linear interpolation of logarithms."""
    points = list(zip(LENGTHS, ratios, strict=True))
    for (n, above), (m, under) in pairwise(points):
        if above >= 1.0 > under:
            share = math.log(above) / math.log(above / under)
            return n * (m / n) ** share
    return None
