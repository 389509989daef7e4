"""The steps of a worked example, computed by the layers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from limelight.insight.worked.example import Layer, Worked
from limelight.seeing.steps.steps import steps as layer_steps

Operation = Literal["given", "product", "cells", "row", "beside"]
"""How a table is made from its sources: left · right, cell by cell, row by row, side by side."""

_SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class WorkedStep:
    """One step: its operation, and its numbers with the names of their rows and columns."""

    name: str
    symbol: str
    formula: str
    meaning: str
    table: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    operation: Operation = "given"
    sources: tuple[WorkedStep, ...] = ()
    transposed: bool = False
    """whether the right factor of a product is transposed: Q · Kᵀ"""
    layer: int | None = None
    """counted from 1, as slides do; None where there is only one"""
    head: int | None = None

    @property
    def where(self) -> str:
        """Which layer and head, where there are several."""
        parts = [] if self.layer is None else [f"layer {self.layer}"]
        return ", ".join(parts if self.head is None else [*parts, f"head {self.head}"])

    def factors(self) -> tuple[Tensor, Tensor]:
        """Left and right factor of a product, the right one transposed where it is used so."""
        left, right = self.sources
        return left.table, right.table.T if self.transposed else right.table

    def written(self, i: int, j: int, decimals: int = 3) -> str:
        """One cell written out: `1.2·1.1 + 0.6·0.7 = 1.74`; empty for what is given."""
        answer = number(float(self.table[i, j]), decimals)
        if self.operation == "product":
            left, right = self.factors()
            pairs = zip(left[i].tolist(), right[:, j].tolist(), strict=True)
            terms = [f"{_factor(a, decimals)}·{_factor(b, decimals)}" for a, b in pairs]
            return f"{_shortened(terms, ' + ')} = {answer}"
        if self.name == "scaled":
            score = number(float(self.sources[0].table[i, j]), decimals)
            return f"{score} {self.scaling} = {answer}"
        if self.name == "masked":
            kept = bool(torch.isfinite(self.table[i, j]))
            return f"allowed: stays {answer}" if kept else "not allowed: becomes −∞"
        if self.name == "sum":
            left, right = (number(float(part.table[i, j]), decimals) for part in self.sources)
            return f"{left} + {right} = {answer}"
        if self.operation == "row":
            scores = self.sources[0].table[i].tolist()
            powers = [f"e^{number(score, 2)}" for score in scores if score > float("-inf")]
            score = scores[j]
            top = f"e^{number(score, 2)}" if score > float("-inf") else "0"
            return f"{top} / ({_shortened(powers, ' + ')}) = {answer}"
        return ""

    @property
    def scaling(self) -> str:
        """What a scaled score is made with: `/ √2`, or `· 0.5` where the example says so."""
        return self.formula.partition("= ")[2].partition(" ")[2]


def number(value: float, decimals: int) -> str:
    """A number with so many decimals, −∞ by its sign, and never a minus before zero.

    >>> number(-0.0001, 2), number(float("-inf"), 2)
    ('0.00', '−∞')
    """
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{decimals}f}"
    return text.replace("-", "", 1) if float(text) == 0 else text.replace("-", "−")


def digits(table: Tensor, decimals: int) -> int:
    """The fewest decimals, up to `decimals`, that show every number of a table exactly."""
    finite = table[torch.isfinite(table)]
    for count in range(decimals):
        if torch.allclose(finite.round(decimals=count), finite, rtol=0, atol=1e-9):
            return count
    return decimals


def steps_of(example: Worked) -> list[WorkedStep]:
    """Every step from X to the output of the last layer."""
    columns = numbered("x", example.x.shape[1])
    x = WorkedStep("x", "X", "X", "the tokens' embeddings", example.x, example.tokens, columns)
    steps, memory = [x], None
    if example.memory is not None:
        rows = example.memory_tokens
        memory = WorkedStep("memory", "M", "M", "what is looked at", example.memory, rows, columns)
        steps.append(memory)
    for place, layer in enumerate(example.layers):
        made = _layer(example, layer, x, memory, place + 1 if len(example.layers) > 1 else None)
        steps += made
        x = made[-1]
    return steps


def _layer(
    example: Worked, layer: Layer, x: WorkedStep, memory: WorkedStep | None, place: int | None
) -> list[WorkedStep]:
    several = len(layer.heads) > 1
    made: list[WorkedStep] = []
    heads: list[WorkedStep] = []
    for head in range(len(layer.heads)):
        tables = _tables(example, layer, x, memory, head)
        made += _head(example, layer, x, memory, tables, place, head + 1 if several else None)
        heads.append(made[-1])
    tables = _tables(example, layer, x, memory, 0)
    last = heads[0]
    if several:
        columns = tuple(name for head in heads for name in _of_head(head))
        symbols = ", ".join(head.symbol for head in heads)
        last = WorkedStep(
            "concatenation",
            _symbol("C", place),
            f"{_symbol('C', place)} = [{symbols}]",
            "the heads side by side",
            tables["concatenation"],
            example.tokens,
            columns,
            "beside",
            tuple(heads),
            layer=place,
        )
        made.append(last)
    if layer.w_output is not None:
        matrix = WorkedStep(
            "w_output",
            _symbol("W_O", place),
            _symbol("W_O", place),
            "learned",
            layer.w_output,
            last.columns,
            numbered("x", layer.w_output.shape[1]),
            layer=place,
        )
        symbol = _symbol("O", place)
        last = WorkedStep(
            "output",
            symbol,
            f"{symbol} = {last.symbol} · {matrix.symbol}",
            "what the heads say, mixed and back at the width of the model",
            tables["output"],
            example.tokens,
            matrix.columns,
            "product",
            (last, matrix),
            layer=place,
        )
        made += [matrix, last]
    if layer.residual:
        symbol = _symbol("Y", place)
        last = WorkedStep(
            "sum",
            symbol,
            f"{symbol} = {x.symbol} + {last.symbol}",
            "the residual connection: the token keeps what it was",
            x.table + last.table,
            example.tokens,
            last.columns,
            "cells",
            (x, last),
            layer=place,
        )
        made.append(last)
    return made


def _tables(
    example: Worked, layer: Layer, x: WorkedStep, memory: WorkedStep | None, head: int
) -> dict[str, Tensor]:
    """What the layer itself computes, by the name of the step."""
    keys = None if memory is None else memory.table
    steps = layer_steps(
        layer.module(), x.table, head=head, memory=keys, mask=layer.mask, words=example.tokens
    )
    return {step.name: step.value for step in steps}


def _head(
    example: Worked,
    layer: Layer,
    x: WorkedStep,
    memory: WorkedStep | None,
    tables: dict[str, Tensor],
    place: int | None,
    head: int | None,
) -> list[WorkedStep]:
    """The steps of one head: its matrices, Q, K, V, scores to weights, weights · V."""
    source = x if memory is None else memory
    sizes = tables["Q"].shape[1], tables["V"].shape[1]
    at: dict[str, Any] = {"layer": place, "head": head}

    def matrix(name: str, letter: str) -> WorkedStep:
        symbol = _symbol(f"W_{letter}", place, head)
        columns = numbered("e" if letter == "V" else "d", sizes[letter == "V"])
        return WorkedStep(
            name, symbol, symbol, "learned", tables[f"W_{letter}"], x.columns, columns, **at
        )

    def projected(
        name: str, letter: str, left: WorkedStep, right: WorkedStep, meaning: str
    ) -> WorkedStep:
        symbol = _symbol(letter, place, head)
        return WorkedStep(
            name,
            symbol,
            f"{symbol} = {left.symbol} · {right.symbol}",
            meaning,
            tables[letter],
            left.rows,
            right.columns,
            "product",
            (left, right),
            **at,
        )

    def square(
        name: str, symbol: str, formula: str, meaning: str, table: Tensor, **options: Any
    ) -> WorkedStep:
        return WorkedStep(
            name,
            symbol,
            f"{symbol} = {formula}",
            meaning,
            table,
            example.tokens,
            example.key_tokens,
            **options,
            **at,
        )

    w_query, w_key, w_value = matrix("w_query", "Q"), matrix("w_key", "K"), matrix("w_value", "V")
    query = projected("query", "Q", x, w_query, "what each token looks for")
    key = projected("key", "K", source, w_key, "what each token offers to be found by")
    value = projected("value", "V", source, w_value, "what each token gives when found")
    last = square(
        "scores",
        _symbol("S", place, head),
        f"{query.symbol} · {key.symbol}ᵀ",
        "how well each query matches each key",
        tables["scores"],
        operation="product",
        sources=(query, key),
        transposed=True,
    )
    made = [w_query, w_key, w_value, query, key, value, last]
    if layer.factor != 1:
        size = sizes[0]
        by = f"/ √{size}" if layer.scale is None else f"· {layer.factor:g}"
        last = square(
            "scaled",
            _symbol("S", place, head) + "′",
            f"{last.symbol} {by}",
            "the spread kept near 1, whatever the size of a head",
            tables["scaled"],
            operation="cells",
            sources=(last,),
        )
        made.append(last)
    if layer.mask is not None:
        last = square(
            "masked",
            _symbol("S", place, head) + "″",
            f"{last.symbol} where allowed, −∞ elsewhere ({layer.mask_name})",
            "what a token may not see gets no weight",
            tables["masked"],
            operation="cells",
            sources=(last,),
        )
        made.append(last)
    weights = square(
        "weights",
        _symbol("A", place, head),
        f"softmax of each row of {last.symbol}",
        "shares that sum to 1",
        tables["weights"],
        operation="row",
        sources=(last,),
    )
    alone = head is None and layer.w_output is None
    symbol = _symbol("O" if alone else "H", place, head)
    mixed = WorkedStep(
        "output" if alone else "head",
        symbol,
        f"{symbol} = {weights.symbol} · {value.symbol}",
        "each token's mix of values",
        tables["weighted values"],
        example.tokens,
        value.columns,
        "product",
        (weights, value),
        **at,
    )
    return [*made, weights, mixed]


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """Names for columns: x1, x2, …"""
    return tuple(f"{letter}{place + 1}" for place in range(count))


def _of_head(step: WorkedStep) -> list[str]:
    return [f"{step.head}·{name}" for name in step.columns]


def _symbol(base: str, layer: int | None, head: int | None = None) -> str:
    low = "" if head is None else str(head).translate(_SUBSCRIPT)
    high = "" if layer is None else f"⁽{str(layer).translate(_SUPERSCRIPT)}⁾"
    return base + low + high


def _factor(value: float, decimals: int) -> str:
    """A factor with no more digits than it needs; a negative one in brackets."""
    text = number(value, digits(torch.tensor([value]), decimals))
    return f"({text})" if text.startswith("−") else text


def _shortened(terms: list[str], sign: str, most: int = 6) -> str:
    return sign.join(terms if len(terms) <= most else [*terms[: most - 1], "…"])
