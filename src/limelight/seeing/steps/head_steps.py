"""The steps of one head in numbers: each formula, applied to the steps that it names."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.ops.backends import reference
from limelight.ops.problem import Problem
from limelight.seeing.steps.flow import UNKNOWN, Flow, Formulas, Projection

UNRECORDED = (
    "The input of the layer was not recorded, so X, the layer's matrices and its output are "
    "missing: Q, K and V are as recorded."
)
WITHOUT_PROJECTIONS = (
    "The matrices, biases and rotations of the layer stay with the model and are in no file: "
    "Q, K, V and the output are as recorded."
)
SOME_HEADS = (
    "The concatenated heads and the output are missing: they take all heads, and only some were "
    "recorded."
)


class Step(NamedTuple):
    """One step: its name, its formula, its axes and its numbers."""

    name: str
    formula: str
    axes: str
    """the letters of the axes, such as "i d" """
    value: Tensor

    @property
    def shape_text(self) -> str:
        """The shape with its letters: `i d = 15 x 32`."""
        sizes = " x ".join(str(size) for size in self.value.shape)
        return f"{self.axes} = {sizes}"


class HeadSteps(NamedTuple):
    """The steps that are known, and in words what is missing."""

    steps: tuple[Step, ...]
    missing: str = ""


class Attended(NamedTuple):
    """The scores, weights and outputs of all heads of a call."""

    scores: Tensor
    """h i j: what softmax takes"""
    weights: Tensor
    """h i j"""
    heads: Tensor
    """h i e: weights · V"""

    @classmethod
    @torch.no_grad()
    def of(cls, problem: Problem) -> Attended:
        """Computed by the reference, whichever implementation ran."""
        scores = reference.scores(problem)
        weights, _ = reference.normalise(problem, scores)
        value = reference.wide(problem.value)
        heads = reference.weighted_sum(
            weights, value, reference.allowed(problem, reference.whole(problem))
        )
        return cls(scores[0], weights[0], heads[0])

    @property
    def concatenation(self) -> Tensor:
        """The heads side by side: `i h·e`."""
        return self.heads.transpose(0, 1).flatten(1)


@torch.no_grad()
def head_steps(
    problem: Problem, attended: Attended, flow: Flow | None, position: int, number: int
) -> HeadSteps:
    """The steps of a head: at `position` among the call's heads, `number` among the layer's."""
    kv_head = position // (problem.query.shape[1] // problem.key.shape[1])
    query = problem.query[0, position]
    key, value = problem.key[0, kv_head], problem.value[0, kv_head]
    inputs = [] if flow is None else _inputs(flow, number)
    steps = [
        *inputs,
        *_projected(UNKNOWN if flow is None else flow.formulas, inputs, query, key, value),
        *_attention(problem, attended, position, query, key),
    ]
    if flow is None:
        return HeadSteps((*steps, *_all_heads(attended, "every recorded head")), UNRECORDED)
    missing = [] if flow.projections is not None else [WITHOUT_PROJECTIONS]
    if flow.output is None:
        missing.append(SOME_HEADS)
    else:
        steps += _all_heads(attended, "every head")
        steps.append(Step("output", flow.formulas.output, "i m", flow.output))
    return HeadSteps(tuple(steps), " ".join(missing))


def _inputs(flow: Flow, head: int) -> list[Step]:
    """The input of the layer and its learned matrices."""
    steps = [Step("X", "the input of the layer", "i m", flow.x)]
    if flow.memory is not None:
        steps.append(Step("memory", "what is attended to", "j m", flow.memory))
    projections = flow.projections
    if projections is None:
        return steps
    size = projections.query.weight.shape[1]
    if size < flow.x.shape[1]:
        first, last = head * size, (head + 1) * size
        formula = f"columns {first} to {last - 1} of X"
        steps.append(Step("X of the head", formula, "i m/h", flow.x[:, first:last]))
    kv_head = projections.kv_head(head)
    steps += _learned("Q", projections.query.of_head(head), "m d")
    steps += _learned("K", projections.key.of_head(kv_head), "m d")
    steps += _learned("V", projections.value.of_head(kv_head), "m e")
    if projections.output is not None and flow.output is not None:
        steps += _learned("O", projections.output, "h·e m")
    if (rotation := projections.rotation) is not None:
        steps += [
            Step("cos", "of the angle that each position is rotated by", "i d", rotation.cos),
            Step("sin", "of the same angle, the first half negative", "i d", rotation.sin),
        ]
    return steps


def _learned(name: str, linear: Projection, axes: str) -> list[Step]:
    steps = [Step(f"W_{name}", "learned", axes, linear.weight)]
    if linear.bias is not None:
        steps.append(Step(f"b_{name}", "learned", axes.split()[1], linear.bias))
    return steps


def _projected(
    formulas: Formulas, inputs: list[Step], query: Tensor, key: Tensor, value: Tensor
) -> list[Step]:
    known = {step.name: step.value for step in inputs}
    steps: list[Step] = []
    for name, axes, formula, before, projected in (
        ("Q", "i d", formulas.query, formulas.unrotated_query, query),
        ("K", "j d", formulas.key, formulas.unrotated_key, key),
    ):
        if before and "cos" in known:
            unrotated = known.get("X of the head", known["X"]) @ known[f"W_{name}"]
            unrotated = unrotated + known.get(f"b_{name}", 0.0)
            steps.append(Step(f"{name} unrotated", before, axes, unrotated))
        elif before:
            formula = f"{before}, rotated by position"
        steps.append(Step(name, formula, axes, projected))
    return [*steps, Step("V", formulas.value, "j e", value)]


def _attention(
    problem: Problem, attended: Attended, head: int, query: Tensor, key: Tensor
) -> list[Step]:
    """From Q and K to weights · V; a bias, a mask and factors are steps of their own."""
    weights = attended.weights[head]
    similarity = query.to(weights.dtype) @ key.to(weights.dtype).mT
    added, masked = _added(problem, head, weights.dtype), _capped(problem)
    if added:
        masked = " + ".join([masked, *(step.name for step in added)])
    allowed = reference.allowed(problem, reference.whole(problem))
    if problem.mask is not None and allowed is not None:
        masked += " where mask is 1, −∞ where it is 0"
        mask = allowed.expand(problem.extent)[0, head].to(weights.dtype)
        added.append(Step("mask", f"1 where {problem.mask.name()} lets a token look", "i j", mask))
    if problem.factors is not None:
        factors = problem.factors.expand(problem.extent)[0, head].to(weights.dtype)
        added.append(Step("factors", "given: what the weights are multiplied by", "i j", factors))
    softmax, sums, shares = "softmax of each row of masked", weights.sum(-1), list[Step]()
    if problem.factors is not None:
        softmax += " + log(factors)"
    if not problem.rows_sum_to_one:
        by = "a given log-sum-exp" if problem.lse is not None else "its keys and a sink"
        shares = [Step("share", f"what its keys draw of a row normalised by {by}", "i", sums)]
        softmax = f"share_i · {softmax}"
    return [
        Step("scores", "Q · Kᵀ", "i j", similarity),
        Step("scaled", _scaled_formula(problem.scale), "i j", similarity * problem.scale),
        *added,
        Step("masked", masked, "i j", attended.scores[head]),
        *shares,
        Step("weights", softmax, "i j", weights),
        Step("row sums", "Σ_j weights_ij", "i", sums),
        Step("weighted values", "weights · V", "i e", attended.heads[head]),
    ]


def _all_heads(attended: Attended, which: str) -> list[Step]:
    return [
        Step("heads", f"weights · V of {which}", "h i e", attended.heads),
        Step("concatenation", "the heads side by side", "i h·e", attended.concatenation),
    ]


def _scaled_formula(scale: float) -> str:
    """With 1/√d where the scale is that, else with all digits of a float32."""
    # Outside this range no head has so many channels, and the square may underflow to 0.
    size = round(1 / scale**2) if 1e-6 < abs(scale) < 1e6 else 0
    exact = size > 0 and math.isclose(scale, 1 / math.sqrt(size), rel_tol=1e-9)
    return f"scores / √{size}" if exact else f"scores · {scale:.9g}"


def _capped(problem: Problem) -> str:
    cap = f"{problem.softcap:.9g}"
    return f"{cap} · tanh(scaled / {cap})" if problem.softcap else "scaled"


def _added(problem: Problem, head: int, dtype: torch.dtype) -> list[Step]:
    """What is added to the scores of a head."""
    steps: list[Step] = []
    if problem.bias is not None:
        bias = problem.bias.expand(problem.extent)[0, head].to(dtype)
        steps.append(Step("bias", "given", "i j", bias))
    if problem.slopes is not None:
        i, j = problem.extent[2:]
        offsets = torch.arange(j - i, j)[:, None] - torch.arange(j)
        slope = float(problem.slopes[head])
        bias = (-slope * offsets.abs()).to(problem.query.device, dtype)
        formula = f"−{slope:.9g} · distance in tokens"
        steps.append(Step("position bias", formula, "i j", bias))
    return steps
