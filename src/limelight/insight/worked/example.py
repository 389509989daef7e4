"""A worked example as a value: tokens, matrices, and the printed numbers of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.layers.attention import Attention
from limelight.layers.linear import Linear
from limelight.ops.masks.mask import Mask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from limelight.insight.worked.audit import Audit
    from limelight.insight.worked.steps import WorkedStep

HEAD_STEPS = ("query", "key", "value", "scores", "scaled", "masked", "weights", "head")
"""What each head computes, in order; "head" is weights · V."""
LAYER_STEPS = ("concatenation", "output", "sum")
"""What a layer computes from its heads."""


@dataclass(frozen=True, eq=False)
class Printed:
    """A printed table: the numbers, and how far the rounding of each may be off."""

    words: tuple[tuple[str, ...], ...]
    """the text of each cell; empty where it is still to be filled in"""
    table: Tensor
    """NaN where a cell is empty"""
    half_digit: Tensor
    """half of the last digit of each cell"""


@dataclass(frozen=True, eq=False)
class HeadMatrices:
    """The matrices of one head."""

    w_query: Tensor
    w_key: Tensor
    w_value: Tensor
    printed: Mapping[str, Printed] = field(default_factory=dict[str, Printed])


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer: its heads, and what comes before and after them."""

    heads: tuple[HeadMatrices, ...]
    w_output: Tensor | None = None
    mask: Mask | Tensor | None = None
    mask_name: str = ""
    scale: float | None = None
    """1/√d unless given; 1 leaves the scores as they are"""
    residual: bool = False
    """whether the layer's input is added to its output"""
    printed: Mapping[str, Printed] = field(default_factory=dict[str, Printed])

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        size = self.heads[0].w_query.shape[1]
        return 1 / math.sqrt(size) if self.scale is None else self.scale

    def module(self) -> Attention:
        """The same layer as Limelight runs it, in float64."""
        first = self.heads[0]
        width, size = first.w_query.shape
        layer = Attention(
            width,
            heads=len(self.heads),
            head_size=size,
            value_size=first.w_value.shape[1],
            bias="none",
            output=False,
            scale=self.factor,
        ).double()
        named = [
            [getattr(head, name) for head in self.heads] for name in ("w_query", "w_key", "w_value")
        ]
        weights = torch.cat([matrix.T for matrices in named for matrix in matrices])
        layer.inputs.weight = nn.Parameter(weights, requires_grad=False)
        if self.w_output is not None:
            rows, columns = self.w_output.shape
            layer.output = Linear(rows, columns, bias=False).double()
            layer.output.weight = nn.Parameter(self.w_output.T.contiguous(), requires_grad=False)
        return layer.eval()


@dataclass(frozen=True, eq=False)
class Worked(Result):
    """A worked example: attention small enough to follow by hand.

    >>> from limelight.insight.worked.parsing import worked
    >>> example = worked("apple-phones")
    >>> example.steps()[-1].table[0]
    tensor([0.9172, 1.3309], dtype=torch.float64)
    >>> len(example.audit().mismatches)
    15
    """

    title: str
    tokens: tuple[str, ...]
    x: Tensor
    layers: tuple[Layer, ...]
    memory_tokens: tuple[str, ...] = ()
    memory: Tensor | None = None
    """what is looked at, in cross-attention; X itself unless given"""

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """The tokens that keys and values belong to: the memory's, or the tokens themselves."""
        return self.tokens if self.memory is None else self.memory_tokens

    @property
    def is_printed(self) -> bool:
        """Whether anything is printed that can be audited."""
        return any(
            layer.printed or any(head.printed for head in layer.heads) for layer in self.layers
        )

    def steps(self) -> list[WorkedStep]:
        """Every step from X to the output, in float64, as the layers compute them."""
        from limelight.insight.worked.steps import steps_of

        return steps_of(self)

    def audit(self) -> Audit:
        """Which printed numbers do not follow from X, the matrices and those printed before."""
        from limelight.insight.worked.audit import audit

        return audit(self)

    def table(self) -> Table:
        """The attention weights of every head, a row for each query."""
        several = len(self.layers) > 1 or any(len(layer.heads) > 1 for layer in self.layers)
        rows = [
            (*((step.where, token) if several else (token,)), *row, sum(row))
            for step in self.steps()
            if step.name == "weights"
            for token, row in zip(self.tokens, step.table.tolist(), strict=True)
        ]
        head = ("where", "token") if several else ("token",)
        return Table((*head, *self.key_tokens, "sum"), rows, self.title)

    def figure(self) -> Figure:
        """The weights of every head as heat maps with their numbers."""
        from limelight.insight.worked.slides import overview

        return overview(self)

    def values(self) -> Mapping[str, Any]:
        """The tokens, every step, and the audit where something is printed."""
        steps = [
            {
                "layer": step.layer,
                "head": step.head,
                "name": step.name,
                "formula": step.formula,
                "rows": step.rows,
                "columns": step.columns,
                "table": step.table,
            }
            for step in self.steps()
        ]
        audited = self.audit().values() if self.is_printed else None
        return {
            "title": self.title,
            "tokens": self.tokens,
            "memory_tokens": self.memory_tokens,
            "steps": steps,
            "audit": audited,
        }
