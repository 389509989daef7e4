"""The steps of a worked example, computed by the layers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from limelight.insight.worked.example import Layer, Worked
from limelight.seeing.steps.steps import steps as layer_steps

Operation = Literal["given", "product", "cells", "row", "concatenation"]
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
        """Left and right factor of a product, the right one transposed where `transposed`."""
        left, right = self.sources
        return left.table, right.table.T if self.transposed else right.table

    def written(self, i: int, j: int, decimals: int = 3) -> str:
        """One cell written out: `1.2·1.1 + 0.6·0.7 = 1.74`; empty for inputs and matrices."""
        result = number(float(self.table[i, j]), decimals)
        if self.operation == "product":
            left, right = self.factors()
            pairs = zip(left[i].tolist(), right[:, j].tolist(), strict=True)
            terms = [f"{_factor(a, decimals)}·{_factor(b, decimals)}" for a, b in pairs]
            return f"{_shortened(terms, ' + ')} = {result}"
        if self.name == "scaled":
            score = number(float(self.sources[0].table[i, j]), decimals)
            return f"{score} {self.scaling} = {result}"
        if self.name == "masked":
            allowed = bool(torch.isfinite(self.table[i, j]))
            return f"allowed: stays {result}" if allowed else "not allowed: becomes −∞"
        if self.name == "sum":
            left, right = (number(float(source.table[i, j]), decimals) for source in self.sources)
            return f"{left} + {right} = {result}"
        if self.operation == "row":
            scores = self.sources[0].table[i].tolist()
            powers = [f"e^{number(score, 2)}" for score in scores if score > float("-inf")]
            score = scores[j]
            numerator = f"e^{number(score, 2)}" if score > float("-inf") else "0"
            return f"{numerator} / ({_shortened(powers, ' + ')}) = {result}"
        return ""

    @property
    def scaling(self) -> str:
        """How a score is scaled: `/ √2`, or `· 0.5` where the example sets it."""
        return self.formula.partition("= ")[2].partition(" ")[2]


def number(value: float, decimals: int) -> str:
    """A number with so many decimals; −∞ as a symbol, and never a minus before zero.

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
    several = len(example.layers) > 1
    for layer_number, layer in enumerate(example.layers, 1):
        location = _Location(layer_number if several else None)
        steps += _layer_steps(example, layer, x, memory, location)
        x = steps[-1]
    return steps


class _Location(NamedTuple):
    """The layer and head of a step, counted from 1; None where there is only one."""

    layer: int | None
    head: int | None = None

    def symbol(self, base: str) -> str:
        """The base with the head as its subscript and the layer as its superscript."""
        low = "" if self.head is None else str(self.head).translate(_SUBSCRIPT)
        high = "" if self.layer is None else f"⁽{str(self.layer).translate(_SUPERSCRIPT)}⁾"
        return base + low + high


def _layer_steps(
    example: Worked, layer: Layer, x: WorkedStep, memory: WorkedStep | None, location: _Location
) -> list[WorkedStep]:
    """The steps of one layer: its heads, their concatenation, W_O, the residual connection."""
    several = len(layer.heads) > 1
    tables = [_tables(example, layer, x, memory, head) for head in range(len(layer.heads))]
    steps: list[WorkedStep] = []
    heads: list[WorkedStep] = []
    for head_number, head_tables in enumerate(tables, 1):
        head_location = location._replace(head=head_number if several else None)
        steps += _head_steps(layer, x, memory, head_tables, head_location)
        heads.append(steps[-1])
    if several:
        steps.append(_concatenation(heads, tables[0]["concatenation"], location))
    if layer.w_output is not None:
        heads_output = steps[-1]
        matrix = _matrix("w_output", "W_O", layer.w_output, heads_output.columns, "x", location)
        meaning = "what the heads say, mixed and back at the width of the model"
        table = tables[0]["output"]
        output = _product("output", "O", heads_output, matrix, meaning, table, location)
        steps += [matrix, output]
    if layer.residual:
        steps.append(_residual_sum(x, steps[-1], location))
    return steps


def _tables(
    example: Worked, layer: Layer, x: WorkedStep, memory: WorkedStep | None, head: int
) -> dict[str, Tensor]:
    """What the layer itself computes, by the name of the step."""
    keys = None if memory is None else memory.table
    steps = layer_steps(
        layer.module(), x.table, head=head, memory=keys, mask=layer.mask, words=example.tokens
    )
    return {step.name: step.value for step in steps}


def _head_steps(
    layer: Layer,
    x: WorkedStep,
    memory: WorkedStep | None,
    tables: dict[str, Tensor],
    location: _Location,
) -> list[WorkedStep]:
    """The steps of one head: its matrices, Q, K, V, scores to weights, weights · V."""
    source = x if memory is None else memory
    w_query = _matrix("w_query", "W_Q", tables["W_Q"], x.columns, "d", location)
    w_key = _matrix("w_key", "W_K", tables["W_K"], x.columns, "d", location)
    w_value = _matrix("w_value", "W_V", tables["W_V"], x.columns, "e", location)
    meaning = "what each token looks for"
    query = _product("query", "Q", x, w_query, meaning, tables["Q"], location)
    meaning = "what each token offers to be found by"
    key = _product("key", "K", source, w_key, meaning, tables["K"], location)
    meaning = "what each token gives when found"
    value = _product("value", "V", source, w_value, meaning, tables["V"], location)
    scores_to_weights = _weight_steps(layer, query, key, tables, location)
    weights = scores_to_weights[-1]
    alone = location.head is None and layer.w_output is None
    name, symbol = ("output", "O") if alone else ("head", "H")
    meaning, table = "each token's mix of values", tables["weighted values"]
    mixed = _product(name, symbol, weights, value, meaning, table, location)
    return [w_query, w_key, w_value, query, key, value, *scores_to_weights, mixed]


def _weight_steps(
    layer: Layer,
    query: WorkedStep,
    key: WorkedStep,
    tables: dict[str, Tensor],
    location: _Location,
) -> list[WorkedStep]:
    """From scores to weights: scaled and masked where the layer does so, then softmax."""
    meaning = "how well each query matches each key"
    table = tables["scores"]
    scores = _product("scores", "S", query, key, meaning, table, location, transposed=True)
    steps = [scores]
    if layer.factor != 1:
        size = query.table.shape[1]
        by = f"/ √{size}" if layer.scale is None else f"· {layer.factor:g}"
        steps.append(
            _map(
                "scaled",
                location.symbol("S") + "′",
                f"{scores.symbol} {by}",
                "the spread kept near 1, whatever the size of a head",
                tables["scaled"],
                scores,
            )
        )
    if layer.mask is not None:
        steps.append(
            _map(
                "masked",
                location.symbol("S") + "″",
                f"{steps[-1].symbol} where allowed, −∞ elsewhere ({layer.mask_name})",
                "what a token may not see gets no weight",
                tables["masked"],
                steps[-1],
            )
        )
    steps.append(
        _map(
            "weights",
            location.symbol("A"),
            f"softmax of each row of {steps[-1].symbol}",
            "shares that sum to 1",
            tables["weights"],
            steps[-1],
            "row",
        )
    )
    return steps


def _matrix(
    name: str, base: str, table: Tensor, rows: tuple[str, ...], letter: str, location: _Location
) -> WorkedStep:
    """A learned matrix, whose columns are numbered after a letter."""
    symbol = location.symbol(base)
    columns = numbered(letter, table.shape[1])
    return WorkedStep(
        name, symbol, symbol, "learned", table, rows, columns,
        layer=location.layer, head=location.head,
    )  # fmt: skip


def _product(
    name: str,
    base: str,
    left: WorkedStep,
    right: WorkedStep,
    meaning: str,
    table: Tensor,
    location: _Location,
    *,
    transposed: bool = False,
) -> WorkedStep:
    """Left · right, or left · rightᵀ."""
    symbol = location.symbol(base)
    return WorkedStep(
        name,
        symbol,
        f"{symbol} = {left.symbol} · {right.symbol}{'ᵀ' * transposed}",
        meaning,
        table,
        left.rows,
        right.rows if transposed else right.columns,
        "product",
        (left, right),
        transposed,
        location.layer,
        location.head,
    )


def _map(
    name: str,
    symbol: str,
    formula: str,
    meaning: str,
    table: Tensor,
    source: WorkedStep,
    operation: Operation = "cells",
) -> WorkedStep:
    """A table made from one of the same shape, cell by cell or row by row."""
    return WorkedStep(
        name, symbol, f"{symbol} = {formula}", meaning, table, source.rows, source.columns,
        operation, (source,), layer=source.layer, head=source.head,
    )  # fmt: skip


def _concatenation(heads: list[WorkedStep], table: Tensor, location: _Location) -> WorkedStep:
    symbol = location.symbol("C")
    symbols = ", ".join(head.symbol for head in heads)
    columns = tuple(f"{head.head}·{name}" for head in heads for name in head.columns)
    return WorkedStep(
        "concatenation", symbol, f"{symbol} = [{symbols}]", "the heads side by side", table,
        heads[0].rows, columns, "concatenation", tuple(heads), layer=location.layer,
    )  # fmt: skip


def _residual_sum(x: WorkedStep, output: WorkedStep, location: _Location) -> WorkedStep:
    symbol = location.symbol("Y")
    return WorkedStep(
        "sum",
        symbol,
        f"{symbol} = {x.symbol} + {output.symbol}",
        "the residual connection: the token keeps what it was",
        x.table + output.table,
        output.rows,
        output.columns,
        "cells",
        (x, output),
        layer=location.layer,
    )


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """Names for columns: x1, x2, …"""
    return tuple(f"{letter}{column}" for column in range(1, count + 1))


def _factor(value: float, decimals: int) -> str:
    """A factor with no more digits than it needs; a negative one in brackets."""
    text = number(value, digits(torch.tensor([value]), decimals))
    return f"({text})" if text.startswith("−") else text


def _shortened(terms: list[str], sign: str, most: int = 6) -> str:
    return sign.join(terms if len(terms) <= most else [*terms[: most - 1], "…"])
