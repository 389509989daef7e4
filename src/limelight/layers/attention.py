"""The attention layer: input projections, attention in each head, output projection."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.checks import (
    check_flag,
    check_number,
    check_positive,
    check_probability,
    check_tensor,
    check_whole,
    shape_text,
)
from limelight.errors import OptionError, ShapeError
from limelight.fields import check_value
from limelight.layers.cache import KeyValues
from limelight.layers.linear import Linear
from limelight.layers.norm import make_norm
from limelight.layers.rotary import Rotation, rotate
from limelight.ops.attend import attend
from limelight.ops.bias import Alibi
from limelight.ops.calls import AttentionCall, intercepted, run
from limelight.ops.masks.mask import Mask
from limelight.ops.project import project

Biases = Literal["none", "inputs", "all"]
HeadsSee = Literal["all", "slice"]


class Attention(nn.Module):
    """Multi-head attention: each token gathers information from the others, in several heads.

        head_t = softmax(Q_t K_tᵀ / √d) V_t     Q_t = X W_t^Q,  K_t = M W_t^K,  V_t = M W_t^V
        output = concat(head_1 … head_h) · W^O

    M is X itself (self-attention) or a memory (cross-attention). The three input matrices are
    stored as one, `inputs.weight`: the rows of all query heads, then key heads, then value heads.

    Args:
        width: m, the channels of a token.
        heads: h, the query heads.
        kv_heads: g, the key/value heads; fewer than h share (GQA), h unless given.
        head_size: d, m/h unless given.
        value_size: e, the channels of a value, d unless given.
        value_rank: r makes the value map low-rank, V = X·V_down·V_up; V_down is the last r rows of
            `inputs.weight`, V_up is `value_up.weight`, `g·e r`.
        bias: which projections have one: "none", "inputs" (Q, K, V) or "all" (W^O too).
        output: whether there is a W^O; without it the output is the concatenated heads.
        heads_see: "all" of the input, or each its own "slice" of m/h channels, with W_t of
            `d m/h`; then `inputs.weight` is `h 2d+e m/h`.
        scale: 1/√d unless given.
        softcap: c caps the scores: c·tanh(scores/c), as in Gemma 2; no cap unless given.
        head_norm: the ε of an RMS norm over the channels of each query and key head, before they
            are rotated, as in Qwen 3 and Gemma 3; no norm unless given.
        dropout: the probability that a weight is dropped in training.

    One head without biases and W^O is softmax(QKᵀ/√d)V, with matrices of m × m:

    >>> import torch, limelight as ll
    >>> layer = ll.Attention(4, heads=1, bias="none", output=False)
    >>> x = torch.randn(1, 3, 4)
    >>> Q, K, V = (x @ w.T for w in layer.inputs.weight.chunk(3))
    >>> torch.allclose(layer(x), torch.softmax(Q @ K.mT / 4**0.5, dim=-1) @ V, atol=1e-6)
    True

    Many heads that share two key/value heads, causal:

    >>> ll.Attention(64, heads=8, kv_heads=2)(torch.randn(2, 10, 64), mask=ll.causal()).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_size: int | None = None,
        value_size: int | None = None,
        value_rank: int | None = None,
        bias: Biases = "all",
        output: bool = True,
        heads_see: HeadsSee = "all",
        scale: float | None = None,
        softcap: float | None = None,
        head_norm: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_size = _head_size(width, heads) if head_size is None else head_size
        self.value_size = self.head_size if value_size is None else value_size
        self.value_rank, self.heads_see = value_rank, heads_see
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self._check(bias)
        output = check_flag("output", output)
        q, k, v = self._sizes()
        self.inputs: nn.Linear | HeadLinear
        if heads_see == "slice":
            self.inputs = HeadLinear(width, heads, (q + k + v) // heads, bias=bias != "none")
        else:
            self.inputs = Linear(width, q + k + v, bias=bias != "none")
        gathered = self.kv_heads * self.value_size
        self.value_up = Linear(v, gathered, bias=False) if value_rank is not None else None
        concatenated = heads * self.value_size
        self.output = Linear(concatenated, width, bias=bias == "all") if output else None
        self.query_norm = self.key_norm = None
        if head_norm is not None:
            self.query_norm = make_norm("rms", self.head_size, head_norm)
            self.key_norm = make_norm("rms", self.head_size, head_norm)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Alibi | None = None,
        rotation: Rotation | None = None,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """`b i m` → `b i m` (without W^O: `b i h·e`).

        Args:
            x: the tokens that attend.
            memory: the tokens attended to, `b j m`; x itself unless given.
            mask: which tokens may see which, as in `attend`.
            bias: added to the scores, as in `attend`.
            rotation: rotates queries and keys by their positions (`Rotary`).
            cache: earlier keys and values, which the new ones are appended to. With a memory: the
                keys and values of the memory, projected by the first call and reused by the rest.
        """
        query, key, value = self.project(x, memory, rotation=rotation, cache=cache)
        dropout = self.dropout if self.training else 0.0
        if intercepted():
            heads = run(
                AttentionCall(
                    query, key, value,
                    mask=mask, bias=bias, scale=self.scale, softcap=self.softcap, dropout=dropout,
                    module=self,
                )
            )  # fmt: skip
        else:
            heads = attend(
                query, key, value,
                mask=mask, bias=bias, scale=self.scale, softcap=self.softcap, dropout=dropout,
            )  # fmt: skip
        concatenated = heads.transpose(1, 2).flatten(2)
        return concatenated if self.output is None else self.output(concatenated)

    def project(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        rotation: Rotation | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What attention is run on: query `b h i d`, key `b g j d`, value `b g j e`, as views."""
        self._check_tokens("x", x)
        if rotation is not None:
            check_value("rotation", rotation, Rotation)
        if cache is not None:
            check_value("cache", cache, KeyValues)
        if memory is not None:
            return self._project_memory(x, memory, rotation, cache)
        if self.heads_see == "slice":
            query, key, value = self.inputs(x).split(
                (self.head_size, self.head_size, self.value_size), -1
            )
            if rotation is not None:
                query, key = rotate(query, rotation), rotate(key, rotation)
        elif self.query_norm is not None and self.key_norm is not None:
            q, k, v = self.inputs(x).split(self._sizes(), dim=-1)
            query, key = self.query_norm(self._by_head(q)), self.key_norm(self._by_head(k))
            if rotation is not None:
                query, key = rotate(query, rotation), rotate(key, rotation)
            value = self._values(v)
        elif rotation is None:
            q, k, v = self.inputs(x).split(self._sizes(), dim=-1)
            query, key, value = self._by_head(q), self._by_head(k), self._values(v)
        else:
            # Queries and keys are adjacent, so that one pass rotates both.
            q, k, v = self._sizes()
            rotated, v = self.inputs(x).split((q + k, v), dim=-1)
            rotated = rotate(self._by_head(rotated), rotation)
            query, key = rotated.split((self.heads, self.kv_heads), dim=2)
            value = self._values(v)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if cache is not None:
            key, value = cache.append(key, value)
        return query, key, value

    def _project_memory(
        self, x: Tensor, memory: Tensor, rotation: Rotation | None, cache: KeyValues | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._check_tokens("memory", memory)
        if rotation is not None:
            raise OptionError(
                "rotation is relative to positions in one text: it cannot be used with a memory"
            )
        if not isinstance(self.inputs, nn.Linear):
            raise OptionError("heads_see='slice' is for self-attention: it cannot take a memory")
        q, k, v = self._sizes()
        bias = self.inputs.bias
        w_query, w_rest = self.inputs.weight.split((q, k + v))
        b_query, b_rest = (None, None) if bias is None else bias.split((q, k + v))
        query = self._by_head(project(x, w_query, b_query)).transpose(1, 2)
        if cache is not None and cache.length:
            return query, *cache.stored()
        rest = F.linear(memory, w_rest, b_rest)
        key, value = rest.split((k, v), dim=-1)
        key, value = self._by_head(key).transpose(1, 2), self._values(value).transpose(1, 2)
        if cache is not None:
            key, value = cache.append(key, value)
        return query, key, value

    def _sizes(self) -> tuple[int, int, int]:
        """Rows of `inputs.weight` for queries, keys and values."""
        values = self.kv_heads * self.value_size if self.value_rank is None else self.value_rank
        return self.heads * self.head_size, self.kv_heads * self.head_size, values

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size))

    def _values(self, x: Tensor) -> Tensor:
        if self.value_up is not None:
            x = self.value_up(x)
        return x.unflatten(-1, (self.kv_heads, self.value_size))

    def _check_tokens(self, name: str, x: Tensor) -> None:
        check_tensor(name, x)
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ShapeError(f"{name} has shape {shape_text(x)}, expected (b, n, m = {self.width})")

    def _check(self, bias: str) -> None:
        for name, size in (
            ("width", self.width), ("heads", self.heads), ("kv_heads", self.kv_heads),
            ("head_size", self.head_size), ("value_size", self.value_size),
            ("value_rank", 1 if self.value_rank is None else self.value_rank),
        ):  # fmt: skip
            check_whole(name, size)
        check_probability("dropout", self.dropout)
        if self.scale is not None:
            check_number("scale", self.scale, "a finite number")
        if self.softcap is not None:
            check_positive("softcap", self.softcap)
        if self.heads % self.kv_heads:
            raise OptionError(
                f"kv_heads must divide heads, "
                f"found kv_heads = {self.kv_heads}, heads = {self.heads}"
            )
        check_value("bias", bias, Biases)
        if self.heads_see not in ("all", "slice"):
            raise OptionError(f"heads_see must be 'all' or 'slice', found {self.heads_see!r}")
        if self.heads_see == "slice":
            if self.kv_heads != self.heads or self.value_rank is not None:
                raise OptionError("heads_see='slice' does not work with kv_heads or value_rank")
            _head_size(self.width, self.heads)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, head_size={self.head_size}"


class HeadLinear(nn.Module):
    """A linear map for each slice of the input: `b n (h c)` → `b n h o`.

    y_t = W_t x_t + b_t, with weight `h o c` and bias `h o`.
    """

    def __init__(self, width: int, heads: int, size: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(heads, size, width // heads))
        self.bias = nn.Parameter(torch.zeros(heads, size)) if bias else None
        bound = math.sqrt(heads / width)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bnhc,hoc->bnho", x.unflatten(-1, (self.heads, -1)), self.weight)
        return y if self.bias is None else y + self.bias


def _head_size(width: int, heads: int) -> int:
    if check_whole("width", width) % check_whole("heads", heads):
        raise OptionError(
            f"width must be a multiple of heads, found width = {width}, heads = {heads}; "
            "give head_size otherwise"
        )
    return width // heads
