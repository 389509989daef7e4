"""The feed-forward layer, which maps each token by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.checks import check_tensor, check_whole, shape_text
from limelight.errors import OptionError, ShapeError
from limelight.layers.linear import Linear
from limelight.ops.activations import gelu, gelu_tanh, swiglu

Activation = Literal["relu", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh"]

CHUNK = 1024
"""Tokens at a time where no gradient needs the hidden activations."""

GATED = ("swiglu", "geglu", "geglu_tanh")
"""Activations of two matrices, gate and up."""


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "swiglu": swiglu,
    "geglu": lambda x: _gated(x, gelu),
    "geglu_tanh": lambda x: _gated(x, gelu_tanh),
}


def _gated(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return activation(gate) * up


class FeedForward(nn.Module):
    """Up-projection, activation, down-projection: `b n m` → `b n f` → `b n m`.

        relu, silu, gelu, …      y = act(x·W_up) · W_down
        swiglu                   y = (silu(x·W_gate) ⊙ x·W_up) · W_down
        geglu, geglu_tanh        y = (gelu(x·W_gate) ⊙ x·W_up) · W_down

    Where there is a gate, its matrix and the up matrix are stored as one, gate first: `up.weight`
    is `2f m`.
    Shazeer 2020, https://arxiv.org/abs/2002.05202

    >>> import torch, limelight as ll
    >>> ll.FeedForward(8, 32, activation="swiglu", bias=False)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            kinds = ", ".join(map(repr, ACTIVATIONS))
            raise OptionError(f"activation must be one of {kinds}, found {activation!r}")
        self.width = check_whole("width", width)
        hidden = 4 * width if hidden is None else hidden
        check_whole("hidden", hidden)
        self.up = Linear(width, 2 * hidden if activation in GATED else hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.activation = activation
        self._activate = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """`… m` → `… m`, each token by itself."""
        check_tensor("x", x)
        if not x.ndim or x.shape[-1] != self.width:
            raise ShapeError(f"x has shape {shape_text(x)}, expected m = {self.width} as last axis")
        rows = x.shape[:-1].numel()
        if rows <= CHUNK or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.down(self._activate(self.up(x)))
        # Tokens are independent: in chunks, only some take the memory of `f` channels at a time.
        chunks = x.reshape(rows, -1).split(CHUNK)
        return torch.cat([self.down(self._activate(self.up(chunk))) for chunk in chunks]).view(
            x.shape
        )
