"""Every step of an attention head in numbers: from X to the layer's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.checks import check_tensor
from limelight.errors import OptionError
from limelight.fields import checked
from limelight.labels import visible
from limelight.layers.attention import Attention
from limelight.layers.rotary import Rotation
from limelight.ops.bias import Alibi
from limelight.ops.lens.sources import Recomputed
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import check_problem
from limelight.seeing.recording.picks import Pick, find_tokens
from limelight.seeing.recording.tokens import Token, plain_tokens
from limelight.seeing.steps.flow import flow_of
from limelight.seeing.steps.head_steps import Attended, Step, head_steps

if TYPE_CHECKING:
    from limelight.seeing.recording.recording import Recording


@dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """The full computational flow of one head, step by step, with real numbers.

    Iterate over it for the steps in order, or take one by name: `steps["weights"].value`. Each
    formula, applied to the steps that it names, gives the numbers of its step.
    """

    steps: tuple[Step, ...]
    tokens: tuple[Token, ...]
    queries: tuple[Token, ...]
    head: int
    layer: int | None = None
    missing: str = ""
    """which steps are missing and why, in words; empty where none is"""

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

    def story(self, token: Pick) -> list[str]:
        """What happens to one token, a line for each step; `token` is its index or its text."""
        indices = find_tokens(token, self.queries)
        if len(indices) != 1:
            raise OptionError(
                f"token must be one token, found {token!r}, which is {len(indices)}: "
                f"give one of {indices}"
            )
        return _story(self, indices[0])

    @property
    def _title(self) -> str:
        layer = "" if self.layer is None else f"layer {self.layer}, "
        return f"Attention step by step: {layer}head {self.head}"

    def __str__(self) -> str:
        parts = [self._title]
        names = [token.text for token in self.queries]
        for step in self.steps:
            labels = names if step.axes.startswith("i ") else None
            if step.axes.startswith("j "):
                labels = [token.text for token in self.tokens]
            parts.append(f"{step.name}   {step.formula}   ({step.shape_text})")
            parts.append(_table(step.value, labels))
        if self.missing:
            parts.append(self.missing)
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook: each step folded, with its formula; the weights are open."""
        parts = [f"<p><b>{self._title}</b></p>"]
        parts += [self._fold(step) for step in self.steps]
        parts.append(f"<p>{escape(self.missing)}</p>" if self.missing else "")
        return "".join(parts)

    def _fold(self, step: Step) -> str:
        sides = {"i": self.queries, "j": self.tokens}
        axes = step.axes.split()
        rows, columns = (
            [visible(token.text, 16) for token in sides.get(axis, ())]
            for axis in (axes[-2] if len(axes) > 1 else "", axes[-1])
        )
        opened = " open" if step.name == "weights" else ""
        return (
            f"<details{opened}><summary><b>{escape(step.name)}</b> &nbsp;"
            f"<code>{escape(step.formula)}</code> &nbsp;<small>{escape(step.shape_text)}</small>"
            f"</summary>{_html_table(step.value, rows, columns)}</details>"
        )


@checked
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
        head: the query head whose steps are computed.
        memory: `j m` or `1 j m`: the tokens attended to, x itself unless given.
        mask: as in the layer's call.
        bias: as in the layer's call.
        rotation: as in the layer's call.
        words: the names of x's tokens; their numbers unless given.

    >>> import torch, limelight as ll
    >>> steps = ll.steps(ll.Attention(4, heads=2), torch.eye(4)[:3], words=["I", "love", "you"])
    >>> steps["weights"].shape_text, steps["row sums"].value.round(decimals=4)
    ('i j = 3 x 3', tensor([1., 1., 1.]))
    """
    if not isinstance(layer, Attention):
        raise OptionError(f"layer must be an Attention, found {type(layer).__name__}")
    if not 0 <= head < layer.heads:
        raise OptionError(f"head must be one of 0 to {layer.heads - 1}, found {head}")
    x = _one_text("x", x)
    attended_text = None if memory is None else _one_text("memory", memory)
    with torch.no_grad():
        projected = layer.project(x, attended_text, rotation=rotation)
        problem = check_problem(*projected, mask=mask, bias=bias, scale=layer.scale)
        attended = Attended.of(problem)
        # From the steps' own numbers: the layer itself drops some of its weights in training.
        output = attended.concatenation.to(x.dtype)[None]
        if layer.output is not None:
            output = layer.output(output)
        flow = flow_of(layer, x, attended_text, output, rotation)
    names = [str(i) for i in range(x.shape[1])] if words is None else list(words)
    if len(names) != x.shape[1]:
        raise OptionError(
            f"words has {len(names)} words, expected one for each of the {x.shape[1]} tokens"
        )
    queries = plain_tokens(names)[1]
    tokens = queries
    if attended_text is not None:
        tokens = plain_tokens([str(j) for j in range(attended_text.shape[1])])[1]
    known = head_steps(problem, attended, flow, head, head)
    return Steps(known.steps, tokens, queries, head)


def steps_of_recording(recording: Recording, layer: int, head: int) -> Steps:
    """The steps of a recorded head, as far as the recording kept what they are computed from."""
    seen, position = recording.seen(layer), recording.head_position(head)
    if not isinstance(seen.source, Recomputed):
        raise OptionError(
            "the steps need a call's query, key and value, which this recording does not hold"
        )
    index = recording.layer_numbers.index(layer)
    flow = recording.flows[index] if recording.flows else None
    problem = seen.source.problem
    known = head_steps(problem, Attended.of(problem), flow, position, head)
    return Steps(known.steps, recording.tokens, recording.queries, head, layer, known.missing)


def _story(steps: Steps, token: int) -> list[str]:
    name = steps.queries[token].text
    query, weights = steps["Q"].value[token], steps["weights"].value[token]
    scores, scaled = steps["scores"].value[token], steps["scaled"].value[token]
    allowed = int(torch.isfinite(steps["masked"].value[token]).sum())
    lines = [f'"{name}" has a query of {len(query)} numbers and length {query.norm():.2f}']
    if not allowed:
        return [*lines, f'"{name}" may look at nothing: it takes zeros']
    best = int(weights.argmax())
    match, weight = steps.tokens[best].text, float(weights[best])
    order = weights.argsort(descending=True)[1:3].tolist()
    others = ", ".join(f'"{steps.tokens[j].text}" {float(weights[j]):.3f}' for j in order)
    length = steps["weighted values"].value[token].norm()
    lines += [
        f'its query is compared with {allowed} keys: the score with "{match}" is '
        f"{float(scores[best]):.2f}, scaled {float(scaled[best]):.2f}",
        f'best match "{match}" {weight:.3f}' + (f", then {others}" if others else ""),
        f'it takes {weight:.0%} of the value of "{match}", {1 - weight:.0%} of all others together',
        f"the mix of values has length {length:.2f}",
    ]
    if "output" in steps:
        row = steps["output"].value[token]
        lines.append(f"all heads together give it {len(row)} numbers of length {row.norm():.2f}")
    return lines


def _one_text(name: str, x: Tensor) -> Tensor:
    check_tensor(name, x)
    x = x[None] if x.ndim == 2 else x
    if x.ndim != 3 or x.shape[0] != 1:
        raise OptionError(f"{name} must be one text, (n, m) or (1, n, m), found {tuple(x.shape)}")
    return x


def _html_table(value: Tensor, rows: Sequence[str], columns: Sequence[str], most: int = 24) -> str:
    """The numbers as an HTML table; of a large tensor its first rows and columns."""
    value = value[:, None] if value.ndim == 1 else value
    while value.ndim > 2:
        value = value[0]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns[:most]) if columns else ""
    lines = [f"<tr><th></th>{head}</tr>"] if head else []
    for i, row in enumerate(value[:most].tolist()):
        name = f"<th>{escape(rows[i])}</th>" if i < len(rows) else "<th></th>"
        lines.append(f"<tr>{name}{''.join(f'<td>{number:.4f}</td>' for number in row[:most])}</tr>")
    more = f"<small>the first {most} of each side</small>" if max(value.shape) > most else ""
    return f'<div style="overflow-x:auto"><table>{"".join(lines)}</table>{more}</div>'


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
        numbers = " ".join(f"{float(number):8.4f}" for number in value[i, :most])
        lines.append(label + numbers + (" ..." if columns > most else ""))
    if rows > most:
        lines.append(f"  ... {rows - most} more rows")
    return "\n".join(lines)
