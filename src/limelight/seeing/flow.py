"""What an attention layer took in, what it multiplied with, and what it gave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.layers.attention import Attention
from limelight.layers.rotary import Rotation


class Formulas(NamedTuple):
    """How a layer came by its Q, K, V and output, in signs."""

    query: str
    key: str
    value: str
    output: str


UNKNOWN = Formulas(
    "X · W_Q, with bias and positions where the layer has them",
    "X · W_K, with bias and positions where the layer has them",
    "X · W_V, with bias where the layer has one",
    "what the layer gives out",
)
"""What can be said where nobody noted what entered: the numbers hold it."""


@dataclass(frozen=True, eq=False)
class Flow:
    """What an attention layer did with one text."""

    x: Tensor
    """i m: the tokens that ask"""
    memory: Tensor | None
    """j m: the tokens asked, or None where these are x"""
    output: Tensor
    """i m: what the layer gave out"""
    formulas: Formulas = UNKNOWN
    w_query: Tensor | None = None
    """h m d; the matrices stay with the model, so a recording read from a file has none"""
    w_key: Tensor | None = None
    """g m d"""
    w_value: Tensor | None = None
    """g m e"""
    w_output: Tensor | None = None
    """h·e m"""


def flow_of(
    layer: Attention,
    x: Tensor,
    memory: Tensor | None,
    output: Tensor,
    rotation: Rotation | None,
) -> Flow:
    """What a layer did with one text, `1 i m`, kept without gradients."""
    w_query, w_key, w_value = (matrix.detach() for matrix in input_matrices(layer))
    return Flow(
        x.detach()[0],
        None if memory is None else memory.detach()[0],
        output.detach()[0],
        _formulas(layer, memory, rotation),
        w_query,
        w_key,
        w_value,
        None if layer.output is None else layer.output.weight.detach().T,
    )


@torch.no_grad()
def input_matrices(layer: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """W^Q, W^K, W^V of each head, `h m d`, `g m d`, `g m e`, to be multiplied from the right.

    With heads_see="slice" m is the m/h channels of the head's own slice; V_down·V_up is multiplied
    out where the value map is low-rank.
    """
    d, e = layer.head_size, layer.value_size
    if not isinstance(layer.inputs, nn.Linear):
        query, key, value = layer.inputs.weight.split((d, d, e), dim=1)
        return query.mT, key.mT, value.mT
    h, g = layer.heads, layer.kv_heads
    weight = layer.inputs.weight
    query, key, value = weight.split((h * d, g * d, weight.shape[0] - (h + g) * d))
    if layer.value_up is not None:
        value = layer.value_up.weight @ value
    return query.view(h, d, -1).mT, key.view(g, d, -1).mT, value.reshape(g, e, -1).mT


def _formulas(layer: Attention, memory: Tensor | None, rotation: Rotation | None) -> Formulas:
    x = "X" if layer.heads_see == "all" else "the head's slice of X"
    asked = x if memory is None else "memory"
    bias = "" if layer.inputs.bias is None else " + bias"
    turned = "" if rotation is None else ", turned by position"
    output = "concatenation"
    if layer.output is not None:
        output += " · W_O" if layer.output.bias is None else " · W_O + bias"
    return Formulas(
        f"{x} · W_Q{bias}{turned}", f"{asked} · W_K{bias}{turned}", f"{asked} · W_V{bias}", output
    )
