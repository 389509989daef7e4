"""What all models share: the embedding, the stack of blocks, and their initial weights.

Names in the state dict (t counts blocks from 0; whether those in brackets exist depends on the
config):

    embedding.tokens.weight                  vocabulary m
    [embedding.positions.weight]             context m                  positions="learned"
    [embedding.segments.weight]              segments m
    [embedding.norm.weight, .bias]           m                          embedding="[scaled_]normed"
    [embedding.up.weight, .bias]             m c                        embedding_width=c
    stack.blocks.t.attention.inputs.weight   h·d + 2·g·d  m             Q rows, K rows, V rows
                                             h 3·d m/h                  heads_see="slice"
    [stack.blocks.t.attention.inputs.bias]
    [stack.blocks.t.attention.value_up.weight]  g·d r                   value_rank=r; V rows are r
    [stack.blocks.t.attention.query_norm.weight, .key_norm.weight]  d   head_norm
    stack.blocks.t.attention.output.weight   m h·d
    [stack.blocks.t.attention.output.bias]
    [stack.blocks.t.attention_norm.weight, .bias]                       not with order="late"
    stack.blocks.t.feedforward.up.weight     f m; gated: 2f m, gate rows first
    stack.blocks.t.feedforward.down.weight   m f
    [stack.blocks.t.feedforward.up.bias, .down.bias]
    stack.blocks.t.feedforward_norm.weight, [.bias]
    [stack.blocks.t.attention_out_norm.weight, .feedforward_out_norm.weight]  order="sandwich"
    [stack.norm.weight, .bias]               m                          order="pre", "sandwich"
    [stack.relative.table]                   buckets h                  positions="relative"
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.checks import check_tensor, shape_text
from limelight.errors import DtypeError, OptionError, ShapeError
from limelight.fields import check_value
from limelight.layers.attention import Attention, Biases, HeadLinear, HeadsSee
from limelight.layers.block import Block
from limelight.layers.cache import Cache
from limelight.layers.feedforward import FeedForward
from limelight.layers.linear import Linear
from limelight.layers.norm import make_norm
from limelight.layers.positions import RelativeBias, sinusoidal
from limelight.layers.rotary import Rotary
from limelight.models.config import Config
from limelight.models.inputs import Inputs
from limelight.ops.bias import Alibi, alibi
from limelight.ops.masks.mask import Mask

_ATTENTION_BIAS: dict[str, Biases] = {
    "none": "none",
    "inputs": "inputs",
    "attention": "all",
    "all": "all",
}


class PositionalEmbedding(nn.Module):
    """Everything in an embedding but the token table: positions, segments, norm, dropout."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.up = None
        self._add_tables(config.width)

    def _add_tables(self, width: int) -> None:
        config = self.config
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.context, width) if learned else None
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        normed = config.embedding in ("normed", "scaled_normed")
        self.norm = make_norm(config.norm, width, config.norm_eps) if normed else None

    def add_positions(self, x: Tensor, inputs: Inputs, segments: Tensor | None = None) -> Tensor:
        """Token vectors → the input of the first block: `b n m` → `b n m`."""
        if self.config.embedding in ("scaled", "scaled_normed"):
            x = x * math.sqrt(self.config.width)
        if self.positions is not None:
            if inputs.last >= self.config.context:
                raise ShapeError(
                    f"tokens reach position {inputs.last}, "
                    f"expected at most {self.config.context - 1}: the model has "
                    f"{self.config.context} learned positions"
                )
            x = x + self.positions(inputs.positions)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoidal(inputs.positions, x.shape[-1]).to(x.dtype)
        x = self._add_segments(x, inputs, segments)
        if self.norm is not None:
            x = self.norm(x)
        dropout = self.config.dropout
        x = F.dropout(x, dropout) if dropout and self.training else x
        return x if self.up is None else self.up(x)

    def _add_segments(self, x: Tensor, inputs: Inputs, segments: Tensor | None) -> Tensor:
        if self.segments is None:
            if segments is not None:
                raise OptionError("segments must be None: this model has no segment embeddings")
            return x
        if segments is None:
            return x + self.segments.weight[0]
        check_tensor("segments", segments)
        if segments.dtype not in (torch.int64, torch.int32):
            raise DtypeError(f"segments is {segments.dtype}, expected int64 or int32")
        if segments.shape != inputs.tokens.shape and segments[None].shape != inputs.tokens.shape:
            raise ShapeError(
                f"segments has shape {shape_text(segments)}, "
                f"expected {shape_text(inputs.tokens)}, the shape of tokens"
            )
        return x + self.segments(segments.view(inputs.tokens.shape))


class Embedding(PositionalEmbedding):
    """Token ids → vectors: `b n` → `b n m`.

    x = scale · tokens[token] + positions[p] + segments[segment], then norm and dropout
    """

    def __init__(self, config: Config) -> None:
        nn.Module.__init__(self)
        self.config = config
        width = config.width
        inner = width if config.embedding_width is None else config.embedding_width
        self.up = None if inner == width else Linear(inner, width)
        self.tokens = nn.Embedding(config.vocabulary, inner)
        self._add_tables(inner)

    def forward(self, inputs: Inputs, segments: Tensor | None = None) -> Tensor:
        return self.add_positions(self.look_up(inputs.tokens), inputs, segments)

    def look_up(self, tokens: Tensor) -> Tensor:
        """The rows of the token table: `b n` → `b n m`."""
        try:
            return self.tokens(tokens)
        except IndexError as error:
            low, high = (int(end) for end in torch.aminmax(tokens))
            raise OptionError(
                f"tokens go from {low} to {high}, expected 0 to {self.config.vocabulary - 1}"
            ) from error


class Stack(nn.Module):
    """Blocks one after the other, and what they share: `b n m` → `b n m`.

    Rotations and position biases are computed once per pass, not once per block.
    """

    def __init__(self, config: Config, layers: int, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([make_block(config, cross=cross) for _ in range(layers)])
        unnormed = config.order in ("pre", "sandwich")  # what the last block returns
        self.norm = make_norm(config.norm, config.width, config.norm_eps) if unnormed else None
        self.rotary = self.local_rotary = self.relative = None
        self._global = frozenset(config.global_layers)
        self._alibi: Alibi | None = None
        if config.positions == "rotary":
            self.rotary = Rotary(
                config.head_size, base=config.rotary_base, scaling=config.rotary_scaling,
                pairs=config.rotary_pairs,
            )  # fmt: skip
            if config.window_base is not None:
                self.local_rotary = Rotary(
                    config.head_size, base=config.window_base, pairs=config.rotary_pairs
                )
                if not config.global_layers:  # every layer has the window
                    self.rotary = self.local_rotary
        elif config.positions == "relative":
            self.relative = RelativeBias(config.heads, both_ways=not causal)
        elif config.positions == "alibi":
            self._alibi = alibi(config.heads)

    def forward(
        self,
        x: Tensor,
        inputs: Inputs,
        *,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        new = x.shape[1]
        rotation = None if self.rotary is None else self.rotary(inputs.positions)
        local = rotation if self.local_rotary is None else self.local_rotary(inputs.positions)
        bias: Tensor | Alibi | None = self._alibi
        if self.relative is not None:
            # Packed tokens are the first of their cache: they see no others.
            keys = new if cache is None or inputs.packed is not None else cache.visible(new)
            bias = self.relative(new, keys)
        for index, block in enumerate(self.blocks):
            is_global = inputs.local is None or index in self._global
            x = block(
                x, memory,
                mask=inputs.mask if is_global else inputs.local, bias=bias,
                rotation=rotation if is_global else local, memory_mask=memory_mask,
                cache=None if cache is None else cache.blocks[index],
            )  # fmt: skip
        if cache is not None:
            if inputs.packed is None:
                cache.advance(new)
            else:
                cache.advance_packed(inputs.packed)
        return x if self.norm is None else self.norm(x)


def make_block(config: Config, *, cross: bool = False) -> Block:
    """One block as the config describes it."""
    return Block(
        _make_attention(config, heads_see=config.heads_see),
        FeedForward(
            config.width, config.hidden, activation=config.activation, bias=config.bias == "all"
        ),
        order=config.order,
        norm=lambda width: make_norm(config.norm, width, config.norm_eps),
        # heads_see is about self-attention: every head reads the whole memory.
        cross=_make_attention(config, heads_see="all") if cross else None,
        dropout=config.dropout,
    )


def _make_attention(config: Config, *, heads_see: HeadsSee) -> Attention:
    return Attention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        value_rank=config.value_rank,
        bias=_ATTENTION_BIAS[config.bias],
        heads_see=heads_see,
        scale=config.scale,
        softcap=config.softcap,
        head_norm=config.norm_eps if config.head_norm else None,
        dropout=config.dropout,
    )


def check_cache(cache: Cache, config: Config, layers: int) -> None:
    """Raise unless the cache was made for a model of this config."""
    check_value("cache", cache, Cache)
    if len(cache.blocks) != layers or cache.window != config.cache_window:
        raise OptionError(
            f"cache has {len(cache.blocks)} layers and window {cache.window}, "
            f"expected {layers} and {config.cache_window}: make it with new_cache()"
        )


@torch.no_grad()
def init_weights(model: nn.Module, config: Config) -> None:
    """Draw the initial weights.

    As in GPT-2: normal with a standard deviation of 0.02, or 0.02/√(2·layers) for matrices that
    write to the residual stream. With a scaled embedding as in the 2017 paper: Glorot's uniform
    initialisation for matrices, and a standard deviation of 1/√m for tokens.
    """
    scaled = config.embedding in ("scaled", "scaled_normed")
    residual = 0.02 / math.sqrt(2 * config.layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | HeadLinear):
            if scaled:
                # Glorot's bound depends on a matrix's sides; a HeadLinear has a matrix per head.
                for matrix in module.weight.view(-1, *module.weight.shape[-2:]):
                    nn.init.xavier_uniform_(matrix)
            else:
                last = name.rpartition(".")[2]
                nn.init.normal_(module.weight, std=residual if last in ("output", "down") else 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.width**-0.5 if scaled else 0.02)
