"""Every step of an attention head in numbers: from X to the layer's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from limelight.layers.attention import Attention
from limelight.layers.rotary import Rotation
from limelight.layers.steps import input_matrices
from limelight.ops import reference
from limelight.ops.bias import Alibi
from limelight.ops.mask_rules import Mask
from limelight.ops.problem import Problem, check_problem
from limelight.ops.sources import Call
from limelight.seeing.tokens import Token, plain_tokens
from limelight.shapes import OptionError

if TYPE_CHECKING:
    from limelight.seeing.recording import Recording


@dataclass(frozen=True, eq=False)
class Flow:
    """What an attention layer took in, what it multiplied with, and what it gave out."""

    x: Tensor
    """i m: the tokens that ask"""
    memory: Tensor | None
    """j m: the tokens asked, or None where these are x"""
    output: Tensor
    """i m: what the layer gave out"""
    w_query: Tensor | None = None
    """h m d; the matrices stay with the model, so a recording read from a file has none"""
    w_key: Tensor | None = None
    """g m d"""
    w_value: Tensor | None = None
    """g m e"""
    w_output: Tensor | None = None
    """h·e m"""


class Step(NamedTuple):
    """One step: its name, how it comes about, its axes and its numbers."""

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


@dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """The full computational flow of one head, step by step, with real numbers.

    Iterate over it for the steps in order, or take one by name: `steps["weights"].value`.
    """

    steps: tuple[Step, ...]
    tokens: tuple[Token, ...]
    queries: tuple[Token, ...]
    head: int
    layer: int | None = None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> Step:
        for step in self.steps:
            if step.name == name:
                return step
        known = ", ".join(step.name for step in self.steps)
        raise OptionError(f"there is no step {name!r}: the steps are {known}")

    def __contains__(self, name: object) -> bool:
        return any(step.name == name for step in self.steps)

    def story(self, token: int) -> list[str]:
        """What happens to one token, a line a step; `token` is its index among the queries."""
        if not -len(self.queries) <= token < len(self.queries):
            raise OptionError(f"token must be an index below {len(self.queries)}, found {token}")
        return _story(self, token % len(self.queries))

    def __str__(self) -> str:
        where = (
            f"head {self.head}" if self.layer is None else f"layer {self.layer}, head {self.head}"
        )
        parts = [f"Attention step by step: {where}"]
        names = [token.text for token in self.queries]
        for step in self.steps:
            labels = names if step.axes.startswith("i ") else None
            if step.axes.startswith("j "):
                labels = [token.text for token in self.tokens]
            parts.append(f"{step.name}   {step.formula}   ({step.shape_text})")
            parts.append(_table(step.value, labels))
        return "\n\n".join(parts)

    __repr__ = __str__


def steps(
    layer: Attention,
    x: Tensor,
    *,
    head: int = 0,
    memory: Tensor | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    rotation: Rotation | None = None,
    words: Sequence[str] | None = None,
) -> Steps:
    """Every step of one head of an attention layer, from X to the layer's output.

    Args:
        layer: the attention layer.
        x: `i m` or `1 i m`: one text.
        head: the query head whose steps are told.
        memory: `j m` or `1 j m`: the tokens asked, x itself unless given.
        mask: as in the layer's call.
        bias: as in the layer's call.
        rotation: as in the layer's call.
        words: what the tokens of x are called; their numbers unless given.

    >>> import torch, limelight as ll
    >>> found = ll.steps(ll.Attention(4, heads=2), torch.eye(4)[:3], words=["I", "love", "you"])
    >>> found["weights"].shape_text, found["row sums"].value.round(decimals=4)
    ('i j = 3 x 3', tensor([1., 1., 1.]))
    """
    if not isinstance(layer, Attention):
        raise OptionError(f"layer must be an Attention, found {type(layer).__name__}")
    if not 0 <= head < layer.heads:
        raise OptionError(f"head must be one of 0 to {layer.heads - 1}, found {head}")
    x = _one_text("x", x)
    asked = None if memory is None else _one_text("memory", memory)
    with torch.no_grad():
        projected = layer.project(x, asked, rotation=rotation)
        problem = check_problem(*projected, mask=mask, bias=bias, scale=layer.scale)
        options = {"mask": mask, "bias": bias, "rotation": rotation}
        flow = flow_of(layer, x, asked, layer(x, asked, **options))
    names = [str(i) for i in range(x.shape[1])] if words is None else list(words)
    if len(names) != x.shape[1]:
        raise OptionError(
            f"words has {len(names)} words, expected one for each of the {x.shape[1]} tokens"
        )
    queries = plain_tokens(names)[1]
    tokens = queries
    if asked is not None:
        tokens = plain_tokens([str(j) for j in range(asked.shape[1])])[1]
    return Steps(_tell(problem, flow, head), tokens, queries, head)


def flow_of(layer: Attention, x: Tensor, memory: Tensor | None, output: Tensor) -> Flow:
    """What a layer did with one text, `1 i m`, kept without gradients."""
    w_query, w_key, w_value = (matrix.detach() for matrix in input_matrices(layer))
    w_output = None if layer.output is None else layer.output.weight.detach().T
    return Flow(
        x.detach()[0],
        None if memory is None else memory.detach()[0],
        output.detach()[0],
        w_query,
        w_key,
        w_value,
        w_output,
    )


def steps_of_recording(recording: Recording, layer: int, head: int) -> Steps:
    """The steps of a recorded head, as far as the recording kept what they are told from."""
    seen, position = recording.seen(layer), recording.head_position(head)
    if not isinstance(seen.source, Call):
        raise OptionError(
            "the steps need a call's query, key and value, which this recording does not hold"
        )
    index = recording.layer_numbers.index(layer)
    flow = recording.flows[index] if recording.flows else None
    told = _tell(seen.source.problem, flow, position)
    return Steps(told, recording.tokens, recording.queries, head, layer)


@torch.no_grad()
def _tell(problem: Problem, flow: Flow | None, head: int) -> tuple[Step, ...]:
    group = problem.query.shape[1] // problem.key.shape[1]
    owner = head // group
    told: list[Step] = []
    if flow is not None:
        told += _inputs(flow, head, owner)
    query, key, value = problem.query[0, head], problem.key[0, owner], problem.value[0, owner]
    scores = reference.scores(problem)
    weights, _ = reference.normalise(scores)
    mixed = weights @ problem.value.to(weights.dtype).repeat_interleave(group, dim=1)
    similarity = query @ key.mT
    told += [
        Step("Q", "X · W_Q" + _turned(flow), "i d", query),
        Step("K", "X · W_K" + _turned(flow), "j d", key),
        Step("V", "X · W_V", "j e", value),
        Step("scores", "Q · Kᵀ", "i j", similarity),
        Step("scaled", f"scores · {problem.scale:.4g}", "i j", similarity * problem.scale),
        Step("masked", _masked_formula(problem), "i j", scores[0, head]),
        Step("weights", "softmax of each row of masked", "i j", weights[0, head]),
        Step("row sums", "Σ_j weights_ij", "i", weights[0, head].sum(-1)),
        Step("weighted values", "weights · V", "i e", mixed[0, head]),
        Step("heads", "weights · V of every head", "h i e", mixed[0]),
        Step(
            "concatenation", "the heads side by side", "i h·e", mixed[0].transpose(0, 1).flatten(1)
        ),
    ]
    if flow is not None:
        formula = "concatenation · W_O" if flow.w_output is not None else "what the layer gives out"
        told.append(Step("output", formula, "i m", flow.output))
    return tuple(told)


def _inputs(flow: Flow, head: int, owner: int) -> list[Step]:
    told = [Step("X", "what the layer takes in", "i m", flow.x)]
    if flow.memory is not None:
        told.append(Step("memory", "what is looked at", "j m", flow.memory))
    for name, matrix, one, axes in (
        ("W_Q", flow.w_query, head, "m d"),
        ("W_K", flow.w_key, owner, "m d"),
        ("W_V", flow.w_value, owner, "m e"),
    ):
        if matrix is not None:
            told.append(Step(name, "learned", axes, matrix[one]))
    if flow.w_output is not None:
        told.append(Step("W_O", "learned", "h·e m", flow.w_output))
    return told


def _turned(flow: Flow | None) -> str:
    """Biases and positions may have entered on the way; the numbers hold them."""
    return " (+ bias, positions)" if flow is None or flow.w_query is not None else ""


def _masked_formula(problem: Problem) -> str:
    parts = ["scaled"]
    if problem.softcap:
        parts = [f"{problem.softcap:g} · tanh(scaled / {problem.softcap:g})"]
    if problem.bias is not None:
        parts.append("+ bias")
    if problem.slopes is not None:
        parts.append("− slope · distance")
    if problem.mask is not None:
        parts.append(f", −∞ outside {problem.mask.name()}")
    return " ".join(parts).replace(" ,", ",")


def _story(told: Steps, token: int) -> list[str]:
    name = told.queries[token].text
    query, weights = told["Q"].value[token], told["weights"].value[token]
    scores, scaled = told["scores"].value[token], told["scaled"].value[token]
    allowed = int(torch.isfinite(told["masked"].value[token]).sum())
    lines = [f'"{name}" asks: its query has {len(query)} numbers and length {query.norm():.2f}']
    if not allowed:
        return [*lines, f'"{name}" may look at nothing: it takes zeros']
    best = int(weights.argmax())
    match, weight = told.tokens[best].text, float(weights[best])
    order = weights.argsort(descending=True)[1:3].tolist()
    others = ", ".join(f'"{told.tokens[j].text}" {float(weights[j]):.3f}' for j in order)
    length = told["weighted values"].value[token].norm()
    lines += [
        f'its query meets {allowed} keys: the score with "{match}" is {float(scores[best]):.2f}, '
        f"scaled {float(scaled[best]):.2f}",
        f'best match "{match}" {weight:.3f}' + (f", then {others}" if others else ""),
        f'it takes {weight:.0%} of the value of "{match}", {1 - weight:.0%} of all others together',
        f"the mix of values has length {length:.2f}",
    ]
    if "output" in told:
        row = told["output"].value[token]
        lines.append(f"all heads together give it {len(row)} numbers of length {row.norm():.2f}")
    return lines


def _one_text(name: str, x: Tensor) -> Tensor:
    x = x[None] if x.ndim == 2 else x
    if x.ndim != 3 or x.shape[0] != 1:
        raise OptionError(f"{name} must be one text, (n, m) or (1, n, m), found {tuple(x.shape)}")
    return x


def _table(value: Tensor, labels: Sequence[str] | None, most: int = 8) -> str:
    """The numbers in columns; of a large tensor its first rows and columns."""
    if value.ndim == 1:
        value = value[:, None] if labels is None else value[None]
    while value.ndim > 2:
        value = value[0]
    rows, columns = value.shape
    lines: list[str] = []
    for i in range(min(rows, most)):
        label = f"{labels[i][:12]:>12}  " if labels is not None and i < len(labels) else "  "
        numbers = " ".join(f"{float(one):8.4f}" for one in value[i, :most])
        lines.append(label + numbers + (" ..." if columns > most else ""))
    if rows > most:
        lines.append(f"  ... {rows - most} more rows")
    return "\n".join(lines)
