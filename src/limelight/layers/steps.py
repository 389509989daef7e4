"""Every step of an attention layer, from X to its output, with its name and its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from limelight.layers.attention import Attention
from limelight.layers.rotary import Rotation
from limelight.ops import reference
from limelight.ops.bias import Alibi
from limelight.ops.mask_rules import Mask
from limelight.ops.problem import check_problem


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The tensors of one pass through an attention layer, in the order they come about."""

    x: Tensor
    """b i m: the tokens that ask"""
    memory: Tensor
    """b j m: the tokens asked; x itself in self-attention"""
    w_query: Tensor
    """h m d (heads_see="slice": h m/h d): Q = X W of each head, without bias"""
    w_key: Tensor
    """g m d"""
    w_value: Tensor
    """g m e; V_down·V_up multiplied out where the map is low-rank"""
    query: Tensor
    """b h i d, bias and positions included"""
    key: Tensor
    """b g j d"""
    value: Tensor
    """b g j e"""
    scores: Tensor
    """b h i j: QKᵀ"""
    scaled: Tensor
    """b h i j: times the scale, 1/√d as a rule"""
    masked: Tensor
    """b h i j: with position bias added, −∞ where the mask forbids"""
    weights: Tensor
    """b h i j: softmax of the row; rows sum to one"""
    heads: Tensor
    """b h i e: weights · V of each head"""
    concatenated: Tensor
    """b i h·e: the heads side by side"""
    output: Tensor
    """b i m: concatenated · W^O, or concatenated itself where there is none"""


@torch.no_grad()
def attention_steps(
    layer: Attention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    rotation: Rotation | None = None,
) -> AttentionSteps:
    """The steps of `layer(x, memory, ...)`, computed by the reference: memory quadratic in n.

    >>> import torch, limelight as ll
    >>> steps = attention_steps(ll.Attention(4, heads=2), torch.randn(1, 3, 4))
    >>> steps.query.shape, steps.weights.sum(-1).round(decimals=4)
    (torch.Size([1, 2, 3, 2]), tensor([[[1., 1., 1.],
             [1., 1., 1.]]]))
    """
    query, key, value = layer.project(x, memory, rotation=rotation)
    problem = check_problem(query, key, value, mask=mask, bias=bias, scale=layer.scale)
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).mT
    masked = reference.scores(problem)
    weights, _ = reference.normalise(masked)
    values = value.to(weights.dtype).repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    heads = (weights @ values).to(x.dtype)
    concatenated = heads.transpose(1, 2).flatten(2)
    w_query, w_key, w_value = input_matrices(layer)
    return AttentionSteps(
        x=x, memory=x if memory is None else memory,
        w_query=w_query, w_key=w_key, w_value=w_value,
        query=query, key=key, value=value,
        scores=scores, scaled=scores * problem.scale, masked=masked, weights=weights,
        heads=heads, concatenated=concatenated,
        output=concatenated if layer.output is None else layer.output(concatenated),
    )  # fmt: skip


@torch.no_grad()
def input_matrices(layer: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """W^Q, W^K, W^V of each head, `h m d`, `g m d`, `g m e`, to be multiplied from the right."""
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
