"""Weight, value-weighted weight, rollout and gradient against what cutting a link changes."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from limelight.insight.cause import gradient_times_input
from limelight.insight.interventions import ALL, CleanRun, Cuts
from limelight.insight.rank_correlation import spearman
from limelight.insight.rollout import rolled_out
from limelight.insight.runner import eval_mode, runner_for, through_the_seam
from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most
from limelight.insight.value_norms import value_norms
from limelight.models.loading.pretrained import load
from limelight.ops.calls import AttentionCall, Interceptor, intercept
from limelight.ops.lens.spec import Lens
from limelight.rng import generator_for
from limelight.seeing.recording.picks import find_tokens

SENTENCES = [
    f"The {who} didn't {what} because it was too {how}."
    for who, what, how in itertools.product(
        ("animal", "horse", "robot", "child", "boat"),
        ("cross the street", "enter the house", "follow the river", "leave the garden"),
        ("tired", "slow", "old", "heavy", "late"),
    )
]
"""100 sentences with a pronoun to resolve."""
MEASURES = ("weight", "value-weighted", "rollout", "gradient")


def run(seed: int = 0) -> Study:
    """Every key of "it" cut everywhere, in 100 sentences on MiniLM."""
    model = load("minilm")
    rows = [_sentence(model, text, seed) for text in SENTENCES]
    correlations = {
        name: torch.tensor([row["correlation"][name] for row in rows]) for name in MEASURES
    }
    medians = {name: float(values.median()) for name, values in correlations.items()}
    agreed = sum(row["agreed"] for row in rows) / len(rows)
    strongest = sum(row["strongest"] for row in rows) / len(rows)
    uniform = sum(row["uniform"] for row in rows) / len(rows)
    permuted = sum(row["permuted"] for row in rows) / len(rows)
    places = list(range(len(rows)))
    return Study(
        name="explanation",
        claim="attention is not explanation: a high weight does not guarantee causal importance.",
        source="notes 'Common Misconceptions'",
        measured="over 100 sentences on MiniLM: rank correlation between the weight that 'it' "
        "gives each word (mean over heads) and the change of its final vector when that "
        "link is cut everywhere",
        checks=(
            at_most("median rank correlation of weight and causal change", medians["weight"], 0.8),
            at_most(
                "share of sentences where the strongest link is the one that matters most",
                agreed,
                0.8,
            ),
            at_least(
                "mean change by permuted weights / by cutting the strongest link",
                permuted / strongest,
                1.0,
            ),
        ),
        panels=(
            Panel(
                "against the causal change",
                "sentence, in order",
                "rank correlation",
                [
                    Curve(name, places, values.sort().values.tolist())
                    for name, values in correlations.items()
                ],
            ),
        ),
        seed=seed,
        notes=f"Medians: {', '.join(f'{name} {value:.2f}' for name, value in medians.items())}. "
        f"Equal weights everywhere change the vector by {uniform:.3f}, permuted ones by "
        f"{permuted:.3f}, cutting the strongest link by {strongest:.3f} (1 − cosine): the weights "
        "matter together (Wiegreffe & Pinter 2019) even where one of them does not. The causal "
        "change is the finding, correlation only a summary; later layers may repair a cut.",
        details={"medians": medians, "uniform": uniform, "permuted": permuted},
    )


def _sentence(model: torch.nn.Module, text: str, seed: int) -> dict[str, Any]:
    runner = runner_for(model, text)
    place = find_tokens("it", runner.tokens)[0]
    with eval_mode(runner.model), through_the_seam(runner.model), torch.no_grad():
        clean = CleanRun(runner, place, progress=False)
        n = len(runner.inputs)
        everywhere = Cuts.of(torch.tensor(ALL), ALL, place, torch.arange(n))
        change = clean.cut(everywhere, "forbid", "").change
        all_rows = Cuts.of(torch.tensor(ALL), ALL, place, torch.tensor([0]))
        uniform = float(clean.uniform(all_rows, "").change[0])
        with intercept(_permuted(seed), runner.model):
            permuted = float(clean.effect(runner.run(runner.rows(1), place)).change[0])
        gradient = gradient_times_input(clean, seed)
    start = torch.zeros(n)
    start[place] = 1.0
    measures = {
        "weight": _weights(clean, place, by_value=False),
        "value-weighted": _weights(clean, place, by_value=True),
        "rollout": rolled_out(clean.layers, start),
        "gradient": gradient,
    }
    # heads rest on special tokens, which would be the strongest key of almost every sentence
    others = torch.tensor([not token.special for token in runner.tokens])
    others[place] = False
    effect = change.cpu()[others]
    weight = measures["weight"].cpu()[others]
    return {
        "correlation": {
            name: float(spearman(values.cpu().double()[others], effect.double()))
            for name, values in measures.items()
        },
        "agreed": bool(weight.argmax() == effect.argmax()),
        "strongest": float(effect[weight.argmax()]),
        "uniform": uniform,
        "permuted": permuted,
    }


def _weights(clean: CleanRun, place: int, *, by_value: bool) -> Tensor:
    """The token's weight on each key, mean over layers and heads; by value, times its norm."""
    total = torch.zeros(len(clean.runner.inputs), dtype=torch.float64)
    for seen in clean.layers:
        rows = seen.rows([place])[0, :, 0].double()
        if by_value:
            rows = rows * value_norms(seen)[0].double()
        total += rows.mean(0).cpu()
    return total / len(clean.layers)


def _permuted(seed: int) -> Interceptor:
    """An interceptor that permutes the weights of each query of each head at random."""
    rng = generator_for(seed, 77)

    def permute(call: AttentionCall) -> Tensor:
        _, seen = call.attend(lens=Lens())
        weights = seen.dense()
        order = torch.rand(weights.shape, generator=rng).argsort(-1).to(weights.device)
        value = call.value.repeat_interleave(weights.shape[1] // call.value.shape[1], dim=1)
        return weights.gather(-1, order).to(value.dtype) @ value

    return permute
