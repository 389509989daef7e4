"""Activation patching: a clean run is cached, and only what a change affects is computed again.

A cut in layer t changes nothing in earlier layers, and in layer t only the row of the token that
looks. The input of every block is cached from the run without cuts. Only one row is computed of
layer t and of the last layer; in a decoder, whose earlier tokens do not see this one, of every
layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limelight.layers.block import Block
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.ops.attend import attend
from limelight.ops.calls import intercepted


@dataclass(frozen=True, eq=False)
class BlockInput:
    """The arguments of a block in the clean run."""

    block: Block
    x: Tensor
    """1 n m; in a decoder, where all tokens but the last are cached, 1 1 m"""
    rest: tuple[Any, ...]
    options: dict[str, Any]

    def run(self, x: Tensor, **changes: Any) -> Tensor:
        """The output of the block for other rows of the same text."""
        return self.block(x, *self.rest, **{**self.options, **changes})


def block_inputs(model: Encoder | Decoder, run: Callable[[], Tensor]) -> list[BlockInput]:
    """The arguments of every block during a run."""
    inputs: list[BlockInput] = []

    def record(block: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(block, Block)
        inputs.append(BlockInput(block, args[0], args[1:], options))

    hooks = [
        block.register_forward_pre_hook(record, with_kwargs=True) for block in model.stack.blocks
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


class EncoderPatcher:
    """The clean run of an encoder, patched to give the final vector of one token."""

    def __init__(self, model: Encoder, inputs: Tensor, place: int) -> None:
        self._model, self._place = model, place
        self._inputs = block_inputs(model, lambda: model(inputs[None]))

    def patch_heads(self, layer: int, heads: Tensor) -> Tensor:
        """The token's final vector if its heads in a layer give `b h e`: `b c`."""
        block_input = self._inputs[layer]
        row = _finish_block(block_input.block, block_input.x[:, self._place], heads)
        if layer + 1 == len(self._inputs):
            return self._normed(row)
        x = self._inputs[layer + 1].x.repeat(len(heads), 1, 1)
        x[:, self._place] = row
        return self._run_from(layer + 1, x)

    def rerun_from(self, layer: int, count: int) -> Tensor:
        """The token's final vector in `count` rows, run from a layer on: `b c`."""
        return self._run_from(layer, self._inputs[layer].x.expand(count, -1, -1))

    def _run_from(self, layer: int, x: Tensor) -> Tensor:
        for block_input in self._inputs[layer:-1]:
            x = block_input.run(x)
        return self._normed(self._row_of_last_block(x))

    def _row_of_last_block(self, x: Tensor) -> Tensor:
        """The token's row of the last block, whose other rows are not needed."""
        block_input, block = self._inputs[-1], self._inputs[-1].block
        options = block_input.options
        if intercepted() or options.get("mask") is not None or options.get("bias") is not None:
            return block_input.run(x)[:, self._place]
        attention, row = block.attention, slice(self._place, self._place + 1)
        normed = block.attention_input(x)
        query, key, value = attention.project(normed, rotation=options.get("rotation"))
        heads = attend(
            query[:, :, row], key, value, scale=attention.scale, softcap=attention.softcap
        )
        return _finish_block(block, x[:, self._place], heads[:, :, 0])

    def _normed(self, x: Tensor) -> Tensor:
        norm = self._model.stack.norm
        return x if norm is None else norm(x)


class DecoderPatcher:
    """The clean run of a decoder, patched to give the logits after its last token."""

    def __init__(self, model: Decoder, inputs: Tensor) -> None:
        self._model = model
        self._cache = model.new_cache(len(inputs))
        if len(inputs) > 1:
            model.hidden(inputs[None, :-1], cache=self._cache)
        own = copy.deepcopy(self._cache)
        self._inputs = block_inputs(model, lambda: model.hidden(inputs[None, -1:], cache=own))

    def patch_heads(self, layer: int, heads: Tensor) -> Tensor:
        """The logits if the last token's heads in a layer give `b h e`: `b c`."""
        block_input = self._inputs[layer]
        return self._run_from(
            layer + 1, _finish_block(block_input.block, block_input.x[:, 0], heads)[:, None]
        )

    def rerun(self, count: int) -> Tensor:
        """The logits in `count` rows: `b c`."""
        return self._run_from(0, self._inputs[0].x.expand(count, -1, -1))

    def _run_from(self, layer: int, x: Tensor) -> Tensor:
        rows = torch.zeros(len(x), dtype=torch.int64)
        for block_input, kept in zip(self._inputs[layer:], self._cache.blocks[layer:], strict=True):
            block_cache = copy.deepcopy(kept)
            block_cache.self_attention.select(rows)
            x = block_input.run(x, cache=block_cache)
        norm = self._model.stack.norm
        return self._model.logits((x if norm is None else norm(x))[:, 0])


def _finish_block(block: Block, x: Tensor, heads: Tensor) -> Tensor:
    """A token's vector after a block whose heads give `b h e` for it: `b m`."""
    concatenated = heads.flatten(1)
    output = block.attention.output
    attended = concatenated if output is None else output(concatenated)
    return block.finish(x.expand(len(heads), -1), attended)
