"""A block: attention, then the feed-forward layer, with norms and residual connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from limelight.checks import check_probability, check_tensor, shape_text
from limelight.errors import OptionError, ShapeError
from limelight.fields import check_value
from limelight.layers.attention import Attention
from limelight.layers.cache import BlockCache
from limelight.layers.feedforward import FeedForward
from limelight.layers.linear import check_input
from limelight.layers.norm import make_norm
from limelight.layers.rotary import Rotation
from limelight.ops.bias import Alibi
from limelight.ops.masks.mask import Mask

Order = Literal["pre", "post", "late", "sandwich"]

NormMaker = Callable[[int], nn.Module]


def _layer_norm(width: int) -> nn.Module:
    return make_norm("layer", width, 1e-5)


class Block(nn.Module):
    """One layer of a Transformer: `b n m` → `b n m`.

        pre     a = x + Attention(norm(x));    y = a + FFN(norm(a))
        post    a = norm(x + Attention(x));    y = norm(a + FFN(a))
        late    a = Attention(x);              y = norm(FFN(a) + a)
        sandwich    a = x + norm(Attention(norm(x)));    y = a + norm(FFN(norm(a)))

    With `cross`, attention to a memory comes between the two, in the same form.
    "late" is for stacks whose residual starts after attention: h = LayerNorm(FFN(A) + A).

    Args:
        attention: from the text to itself.
        feedforward: for each token by itself.
        order: where the norms are, as above.
        norm: makes a norm for a width; LayerNorm unless given.
        cross: from the text to the memory.
        dropout: the probability that a channel of a layer's output is dropped in training.

    >>> import torch, limelight as ll
    >>> block = ll.Block(ll.Attention(8, heads=2), ll.FeedForward(8), order="late")
    >>> x = torch.randn(1, 5, 8)
    >>> a = block.attention(x)
    >>> torch.allclose(block(x), block.feedforward_norm(block.feedforward(a) + a), atol=1e-6)
    True
    """

    def __init__(
        self,
        attention: Attention,
        feedforward: FeedForward,
        *,
        order: Order = "pre",
        norm: NormMaker = _layer_norm,
        cross: Attention | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if order not in ("pre", "post", "late", "sandwich"):
            raise OptionError(f"order must be 'pre', 'post', 'late' or 'sandwich', found {order!r}")
        if order == "sandwich" and cross is not None:
            raise OptionError("order='sandwich' cannot be combined with cross")
        check_value("attention", attention, Attention)
        check_value("feedforward", feedforward, FeedForward)
        check_value("cross", cross, Attention | None)
        if not callable(norm):
            raise OptionError(f"norm must be a function of a width, found {norm!r}")
        width = attention.width
        if feedforward.width != width or (cross is not None and cross.width != width):
            raise OptionError(f"every layer of a block must have width {width} as its attention")
        for name, layer in (("attention", attention), ("cross", cross)):
            if (
                layer is not None
                and layer.output is None
                and layer.heads * layer.value_size != width
            ):
                raise OptionError(
                    f"{name} without output projection gives {layer.heads * layer.value_size} "
                    f"channels, expected width = {width}"
                )
        self.order, self.dropout = order, check_probability("dropout", dropout)
        self.attention = attention
        self.attention_norm = norm(width) if order != "late" else None
        self.cross = cross
        self.cross_norm = norm(width) if cross is not None and order != "late" else None
        self.feedforward = feedforward
        self.feedforward_norm = norm(width)
        self.attention_out_norm = self.feedforward_out_norm = None
        if order == "sandwich":
            self.attention_out_norm, self.feedforward_out_norm = norm(width), norm(width)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Alibi | None = None,
        rotation: Rotation | None = None,
        memory_mask: Mask | Tensor | None = None,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """`b n m` → `b n m`; mask, bias and rotation go to self-attention, memory_mask to cross."""
        check_tensor("x", x)
        if x.ndim != 3 or x.shape[-1] != self.attention.width:
            shape = f"(b, n, m = {self.attention.width})"
            raise ShapeError(f"x has shape {shape_text(x)}, expected {shape}")
        check_input(x, self.feedforward.up.weight)
        if cache is not None:
            check_value("cache", cache, BlockCache)
        self_cache, cross_cache = (None, None) if cache is None else cache
        attention = partial(
            self.attention, mask=mask, bias=bias, rotation=rotation, cache=self_cache
        )
        x = self._residual(x, self.attention_norm, attention, self.attention_out_norm)
        if self.cross is not None:
            if memory is None:
                raise OptionError("this block attends to a memory: memory must be given")
            cross = partial(self.cross, memory=memory, mask=memory_mask, cache=cross_cache)
            x = self._residual(x, self.cross_norm, cross)
        return self._residual(x, self.feedforward_norm, self.feedforward, self.feedforward_out_norm)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention is run on: the tokens, normalised where `order` says so."""
        norm = self.attention_norm if self.order in ("pre", "sandwich") else None
        return x if norm is None else norm(x)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output, from the input and that of self-attention: `… m`, `… m` → `… m`.

        >>> import torch, limelight as ll
        >>> block, x = ll.Block(ll.Attention(8, heads=2), ll.FeedForward(8)), torch.randn(1, 5, 8)
        >>> attended = block.attention(block.attention_input(x))
        >>> torch.allclose(block.finish(x, attended), block(x), atol=1e-6)
        True
        """
        if self.cross is not None:
            raise OptionError("finish is for blocks without attention to a memory")
        x = self._residual(x, self.attention_norm, lambda _: attended, self.attention_out_norm)
        return self._residual(x, self.feedforward_norm, self.feedforward, self.feedforward_out_norm)

    def _residual(
        self,
        x: Tensor,
        norm: nn.Module | None,
        layer: Callable[[Tensor], Tensor],
        out_norm: nn.Module | None = None,
    ) -> Tensor:
        """A layer with its residual connection, and the norm where `order` puts it."""
        if norm is None:  # "late": attention has no residual connection
            return self._drop(layer(x))
        if self.order == "pre":
            return x + self._drop(layer(norm(x)))
        if out_norm is not None:
            return x + self._drop(out_norm(layer(norm(x))))
        return norm(x + self._drop(layer(x)))

    def _drop(self, y: Tensor) -> Tensor:
        return F.dropout(y, self.dropout) if self.dropout and self.training else y
