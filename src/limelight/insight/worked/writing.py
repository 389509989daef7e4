"""A worked example as TOML, the form it is read from: blank to fill in, or with every number."""

from __future__ import annotations

import json
from collections.abc import Iterable

from torch import Tensor

from limelight.insight.worked.example import HEAD_STEPS, LAYER_STEPS, Layer, Worked
from limelight.insight.worked.steps import WorkedStep, digits, number
from limelight.ops.masks.band import causal


def toml(example: Worked, *, blank: bool = False, decimals: int = 3, note: str = "") -> str:
    """The example with the correct numbers in [printed]; or with `_` in each cell to fill in."""
    steps = example.steps()
    lines = [f"# {line}" for line in note.splitlines()]
    lines += [f"title = {_quoted(example.title)}", f"tokens = {_words(example.tokens)}"]
    lines.append(f"x = {_rows(example.x)}")
    if example.memory is not None:
        lines += [f"memory_tokens = {_words(example.memory_tokens)}"]
        lines += [f"memory = {_rows(example.memory)}"]
    several = len(example.layers) > 1
    for layer_number, layer in enumerate(example.layers, 1):
        own_steps = [step for step in steps if step.layer == (layer_number if several else None)]
        lines += [*(["", "[[layers]]"] if several else []), *_layer(layer)]
        prefix = "layers." if several else ""
        if len(layer.heads) == 1:
            lines += ["", f"[{prefix}printed]"]
            lines += _printed(own_steps, (*HEAD_STEPS, *LAYER_STEPS), blank, decimals)
            continue
        for head in range(len(layer.heads)):
            lines += ["", f"[[{prefix}heads]]", *_matrices(layer, head)]
            head_steps = [step for step in own_steps if step.head == head + 1]
            printed = _printed(head_steps, HEAD_STEPS, blank, decimals)
            lines += [f"[{prefix}heads.printed]", *printed]
        layer_steps = [step for step in own_steps if step.head is None]
        lines += ["", f"[{prefix}printed]", *_printed(layer_steps, LAYER_STEPS, blank, decimals)]
    return "\n".join(lines) + "\n"


def _layer(layer: Layer) -> list[str]:
    lines = _matrices(layer, 0) if len(layer.heads) == 1 else []
    if layer.w_output is not None:
        lines.append(f"w_output = {_rows(layer.w_output)}")
    if isinstance(layer.mask, Tensor):
        lines.append(f"mask = {_rows(layer.mask.double())}")
    elif layer.mask is not None:
        assert layer.mask == causal()
        lines.append('mask = "causal"')
    if layer.scale is not None:
        lines.append("scale = false" if layer.scale == 1 else f"scale = {layer.scale!r}")
    return [*lines, "residual = true"] if layer.residual else lines


def _matrices(layer: Layer, head: int) -> list[str]:
    names = ("w_query", "w_key", "w_value")
    return [f"{name} = {_rows(getattr(layer.heads[head], name))}" for name in names]


def _printed(
    steps: Iterable[WorkedStep], names: tuple[str, ...], blank: bool, decimals: int
) -> list[str]:
    lines: list[str] = []
    for step in steps:
        if step.name not in names:
            continue
        count = digits(step.table, decimals)
        rows = [
            " ".join("_" if blank else number(value, count) for value in row)
            for row in step.table.tolist()
        ]
        lines += [f"{step.name} = [", *(f"  {_quoted(row)}," for row in rows), "]"]
    return lines


def _rows(table: Tensor) -> str:
    count = digits(table, 12)
    rows = (", ".join(f"{value:.{count}f}" for value in row) for row in table.tolist())
    return "[" + ", ".join(f"[{row}]" for row in rows) + "]"


def _words(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(_quoted, words)) + "]"


def _quoted(text: str) -> str:
    """A text quoted as in TOML: as in JSON, and DEL escaped too, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
