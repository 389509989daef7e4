"""The input of an attention layer, its matrices, and its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.layers.attention import Attention
from limelight.layers.rotary import Rotation


class Formulas(NamedTuple):
    """The formulas of a layer's Q, K, V and output."""

    query: str
    key: str
    value: str
    output: str
    unrotated_query: str = ""
    """Q before its rotation by position; empty where there is none"""
    unrotated_key: str = ""


UNKNOWN = Formulas(
    "X · W_Q, with bias and positions where the layer has them",
    "X · W_K, with bias and positions where the layer has them",
    "X · W_V, with bias where the layer has one",
    "the output of the layer",
)
"""The formulas where the input was not recorded."""


class Projection(NamedTuple):
    """A linear map of a layer, x · weight + bias."""

    weight: Tensor
    bias: Tensor | None

    def of_head(self, head: int) -> Projection:
        """Of one head, where there is one for each."""
        return Projection(self.weight[head], None if self.bias is None else self.bias[head])


class Projections(NamedTuple):
    """The projections of a layer to Q, K, V and output; their matrices are the model's own."""

    query: Projection
    """h m d and h d"""
    key: Projection
    """g m d and g d"""
    value: Projection
    """g m e and g e"""
    output: Projection | None
    """h·e m and m"""
    rotation: Rotation | None
    """cos and sin, `n d` each"""

    def kv_head(self, head: int) -> int:
        """The key/value head that a query head attends with."""
        return head // (self.query.weight.shape[0] // self.key.weight.shape[0])


@dataclass(frozen=True, eq=False)
class Flow:
    """The input and output of an attention layer for one text."""

    x: Tensor
    """i m: the tokens that attend"""
    memory: Tensor | None
    """j m: the tokens attended to, or None where these are x"""
    output: Tensor | None
    """i m: the output of the layer; None where not all heads that make it up are recorded"""
    formulas: Formulas = UNKNOWN
    projections: Projections | None = None
    """None for a recording read from a file: the matrices stay with the model"""


def flow_of(
    layer: Attention,
    x: Tensor,
    memory: Tensor | None,
    output: Tensor,
    rotation: Rotation | None,
) -> Flow:
    """The flow of one text, `1 i m`, through a layer, without gradients."""
    return Flow(
        x.detach()[0],
        None if memory is None else memory.detach()[0],
        output.detach()[0],
        _formulas(layer, memory, rotation),
        _projections(layer, rotation),
    )


@torch.no_grad()
def _projections(layer: Attention, rotation: Rotation | None) -> Projections:
    output = None
    if layer.output is not None:
        bias = layer.output.bias
        bias = None if bias is None else bias.detach()
        output = Projection(layer.output.weight.detach().T, bias)
    if rotation is not None:
        rotation = rotation._replace(cos=rotation.cos[0, :, 0], sin=rotation.sin[0, :, 0])
    return Projections(*input_projections(layer), output, rotation)


@torch.no_grad()
def input_projections(layer: Attention) -> tuple[Projection, Projection, Projection]:
    """The projections to Q, K, V of each head: weights `h m d`, `g m d`, `g m e`, biases `h d` ….

    With heads_see="slice" m is the m/h channels of the head's own slice; V_down·V_up is multiplied
    out where the value projection is low-rank.
    """
    weight, bias = layer.inputs.weight.detach(), layer.inputs.bias
    bias = None if bias is None else bias.detach()
    h, g, d, e = layer.heads, layer.kv_heads, layer.head_size, layer.value_size
    if isinstance(layer.inputs, nn.Linear):
        sizes = (h * d, g * d, weight.shape[0] - (h + g) * d)
        weights = list(weight.split(sizes))
        biases = _parts(bias, sizes)
        if layer.value_up is not None:
            weights[2] = layer.value_up.weight @ weights[2]
            biases[2] = None if biases[2] is None else layer.value_up.weight @ biases[2]
        weights = [w.view(n, -1, weight.shape[1]) for w, n in zip(weights, (h, g, g), strict=True)]
    else:
        weights = list(weight.split((d, d, e), dim=1))
        biases = _parts(bias, (d, d, e))
    query, key, value = (
        Projection(w.mT, None if b is None else b.view(w.shape[:2]))
        for w, b in zip(weights, biases, strict=True)
    )
    return query, key, value


def _parts(bias: Tensor | None, sizes: tuple[int, int, int]) -> list[Tensor | None]:
    return [None, None, None] if bias is None else [*bias.split(sizes, dim=-1)]


def _formulas(layer: Attention, memory: Tensor | None, rotation: Rotation | None) -> Formulas:
    x = "X" if layer.heads_see == "all" else "X of the head"
    keys_of = x if memory is None else "memory"

    def projection(inputs: str, which: str) -> str:
        formula = f"{inputs} · W_{which}" + ("" if layer.inputs.bias is None else f" + b_{which}")
        normed = which != "V" and layer.query_norm is not None
        return f"RMSNorm({formula})" if normed else formula

    output = "concatenation"
    if layer.output is not None:
        output += " · W_O" if layer.output.bias is None else " · W_O + b_O"
    plain = Formulas(projection(x, "Q"), projection(keys_of, "K"), projection(keys_of, "V"), output)
    if rotation is None:
        return plain
    if layer.query_norm is not None:
        # The steps compute Q before its rotation as X · W_Q + b_Q, without a norm.
        return plain._replace(query=f"rotated({plain.query})", key=f"rotated({plain.key})")
    return plain._replace(
        query=_rotated("Q unrotated", rotation),
        key=_rotated("K unrotated", rotation),
        unrotated_query=plain.query,
        unrotated_key=plain.key,
    )


def _rotated(name: str, rotation: Rotation) -> str:
    what = "the halves of each row" if rotation.pairs == "halves" else "neighbouring channels"
    return f"{name} ∘ cos + swap({name}) ∘ sin, where swap exchanges {what}"
