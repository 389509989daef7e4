"""The Transformer: an encoder reads a source, a decoder writes a target and attends to the source.

State dict, with the names inside a stack as in stack.py:

    embedding.*             one table for source and target
    encoder.blocks.t.*  [encoder.norm.*]  [encoder.relative.table]
    decoder.blocks.t.*  [decoder.norm.*]  [decoder.relative.table]
    decoder.blocks.t.cross.inputs.weight, .output.weight, …; decoder.blocks.t.cross_norm.*
    [target_embedding.*]       positions and norm of the target: target_embedding="own"
    [head.weight]              vocabulary m     tied=False
    [logit_bias]               1 vocabulary     logit_bias
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.checks import check_tensor, shape_text
from limelight.errors import OptionError, ShapeError
from limelight.fields import check_value
from limelight.layers.cache import Cache
from limelight.models.config import Config
from limelight.models.inputs import Inputs, causal_reach, full_reach, prepare_inputs
from limelight.models.stack import (
    Embedding,
    PositionalEmbedding,
    Stack,
    check_cache,
    init_weights,
)
from limelight.models.tokens import Tokens
from limelight.ops.masks.mask import Mask
from limelight.ops.masks.padding import padding
from limelight.ops.project import project


class Memory(NamedTuple):
    """The encoder's output for a batch of sources."""

    hidden: Tensor
    """b j m"""
    mask: Mask | None
    """excludes padding; None where there is none"""

    def select(self, rows: Tensor, lengths: Sequence[int]) -> Memory:
        """These rows of the batch, whose sources have these lengths (for beam search)."""
        mask = _padding_mask(lengths, self.hidden.shape[1])
        return Memory(self.hidden.index_select(0, rows), mask)


class Transformer(nn.Module):
    """Reads a source, writes a target (the 2017 Transformer).

        memory = encoder(embed(source))                    `b j` → `b j m`
        logits = decoder(embed(target), memory) · headᵀ    `b i` → `b i v`

    >>> import torch, limelight as ll
    >>> model = ll.Transformer(
    ...     ll.Config.transformer2017(vocabulary=100, width=16, layers=2, heads=2)
    ... )
    >>> source, target = torch.randint(100, (2, 9)), torch.randint(100, (2, 6))
    >>> model(source, target, source_lengths=[9, 5]).shape
    torch.Size([2, 6, 100])
    """

    tokens: Tokens | None = None
    """the tokenizer it was loaded with"""
    name: str = ""
    """the name it was loaded by"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        check_value("config", config, Config)
        if config.kind != "transformer":
            raise OptionError(
                f"Transformer needs a config of kind 'transformer', found {config.kind!r}"
            )
        self.config = config
        self.embedding = Embedding(config)
        own = config.target_embedding == "own"
        self.target_embedding = PositionalEmbedding(config) if own else None
        self.encoder = Stack(config, config.layers, causal=False)
        self.decoder_layers = config.decoder_layers or config.layers
        self.decoder = Stack(config, self.decoder_layers, causal=True, cross=True)
        self.head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        bias = torch.zeros(1, config.vocabulary) if config.logit_bias else None
        self.logit_bias = None if bias is None else nn.Parameter(bias)
        init_weights(self, config)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_lengths: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Logits of the next target token at every position of the target.

        Args:
            source: tokens `b j`.
            target: tokens `b i`, those before the ones to predict.
            source_lengths: real tokens of each source row; all unless given. Padding at the end of
                a target row needs no mask: no earlier token sees it.

        Returns:
            `b i v`.
        """
        memory = self.encode(source, lengths=source_lengths)
        return self.logits(self.decode(target, memory))

    def encode(self, source: Tensor, *, lengths: Sequence[int] | Tensor | None = None) -> Memory:
        """Read a source `b j`."""
        check_tensor("source", source)
        if source.ndim != 2:
            raise ShapeError(f"source has shape {shape_text(source)}, expected (b, j)")
        inputs = prepare_inputs(source, lengths, reach=full_reach(self.config.window))
        hidden = self.encoder(self.embedding(inputs), inputs)
        return Memory(hidden, None if lengths is None else _padding_mask(lengths, source.shape[1]))

    def decode(self, target: Tensor, memory: Memory, *, cache: Cache | None = None) -> Tensor:
        """Hidden states `b i m` of the target tokens `b i`, which follow those of the cache."""
        check_tensor("target", target)
        if target.ndim != 2 or target.shape[0] != memory.hidden.shape[0]:
            b = memory.hidden.shape[0]
            raise ShapeError(f"target has shape {shape_text(target)}, expected (b = {b}, i)")
        if cache is not None:
            check_cache(cache, self.config, self.decoder_layers)
        inputs = prepare_inputs(target, None, reach=causal_reach(self.config.window), cache=cache)
        return self.decoder(
            self._embed_target(inputs), inputs,
            memory=memory.hidden, memory_mask=memory.mask, cache=cache,
        )  # fmt: skip

    def _embed_target(self, inputs: Inputs) -> Tensor:
        if self.target_embedding is None:
            return self.embedding(inputs)
        return self.target_embedding.add_positions(self.embedding.look_up(inputs.tokens), inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        """`… m` → `… v`."""
        weight = self.embedding.tokens.weight if self.head is None else self.head.weight
        config = self.config
        if config.logit_scale != 1:
            hidden = hidden * config.logit_scale
        logits = project(hidden, weight)
        if self.logit_bias is not None:
            logits = logits + self.logit_bias
        cap = config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def new_cache(self, capacity: int = 64) -> Cache:
        """An empty cache that fits the decoder."""
        return Cache(self.decoder_layers, window=self.config.cache_window, capacity=capacity)


def _padding_mask(lengths: Sequence[int] | Tensor, columns: int) -> Mask | None:
    values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return None if min(values, default=columns) == columns else padding(values)
