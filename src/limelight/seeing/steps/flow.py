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


class Map(NamedTuple):
    """One of the layer's maps, x · weight + bias."""

    weight: Tensor
    bias: Tensor | None

    def of_head(self, head: int) -> Map:
        """Of one head, where there is one map for each."""
        return Map(self.weight[head], None if self.bias is None else self.bias[head])


class Maps(NamedTuple):
    """The maps to a layer's Q, K, V and output; their matrices are the model's own."""

    query: Map
    """h m d and h d"""
    key: Map
    """g m d and g d"""
    value: Map
    """g m e and g e"""
    output: Map | None
    """h·e m and m"""
    rotation: Rotation | None
    """cos and sin, `n d` each"""

    def owner(self, head: int) -> int:
        """The key/value head that a query head shares."""
        return head // (self.query.weight.shape[0] // self.key.weight.shape[0])


@dataclass(frozen=True, eq=False)
class Flow:
    """What an attention layer did with one text."""

    x: Tensor
    """i m: the tokens that attend"""
    memory: Tensor | None
    """j m: the tokens attended to, or None where these are x"""
    output: Tensor | None
    """i m: the output of the layer; None where not all heads that make it up are recorded"""
    formulas: Formulas = UNKNOWN
    maps: Maps | None = None
    """None for a recording read from a file: the matrices stay with the model"""


def flow_of(
    layer: Attention,
    x: Tensor,
    memory: Tensor | None,
    output: Tensor,
    rotation: Rotation | None,
) -> Flow:
    """What a layer did with one text, `1 i m`, kept without gradients."""
    return Flow(
        x.detach()[0],
        None if memory is None else memory.detach()[0],
        output.detach()[0],
        _formulas(layer, memory, rotation),
        _maps(layer, rotation),
    )


@torch.no_grad()
def _maps(layer: Attention, rotation: Rotation | None) -> Maps:
    output = None
    if layer.output is not None:
        bias = layer.output.bias
        output = Map(layer.output.weight.detach().T, None if bias is None else bias.detach())
    if rotation is not None:
        rotation = rotation._replace(cos=rotation.cos[0, :, 0], sin=rotation.sin[0, :, 0])
    return Maps(*input_maps(layer), output, rotation)


@torch.no_grad()
def input_maps(layer: Attention) -> tuple[Map, Map, Map]:
    """The maps to Q, K and V of each head: weights `h m d`, `g m d`, `g m e`, biases `h d` ….

    With heads_see="slice" m is the m/h channels of the head's own slice; V_down·V_up is multiplied
    out where the value map is low-rank.
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
        Map(w.mT, None if added is None else added.view(w.shape[:2]))
        for w, added in zip(weights, biases, strict=True)
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
        # A norm stands between the matrix and the rotation: they are not two steps of one formula.
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
