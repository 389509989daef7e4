"""Prompts that a model continues together: all are read at once, then each grows token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.models.decoder import Decoder
from limelight.models.transformer import Transformer

GenerativeModel = Decoder | Transformer
"""A model that generates tokens: after a prompt, or a target for a source."""


@runtime_checkable
class GenerationBatch(Protocol):
    """Rows that are generated together, with the model's cache of what they hold so far."""

    def begin(self) -> Tensor:
        """Read the prompts; logits `b v` of the first new token of each row."""
        ...

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append a token to each row; logits `b v` of the next one."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with these rows, in this order; a row may be repeated."""
        ...


def generation_batch(
    model: GenerativeModel, prompts: list[list[int]], max_tokens: int
) -> GenerationBatch:
    """A batch of prompts (of a transformer: sources), each to grow by at most `max_tokens`."""
    if isinstance(model, Transformer):
        return _TransformerBatch(model, prompts)
    return _DecoderBatch(model, prompts, max_tokens)


def tokens_left(model: GenerativeModel, prompt: Sequence[int], max_tokens: int) -> int:
    """How many tokens a prompt can grow by: `max_tokens`, or what learned positions leave."""
    config = model.config
    if config.positions != "learned":
        return max_tokens
    if len(prompt) > config.context:
        raise OptionError(
            f"prompts has one of {len(prompt)} tokens, expected at most {config.context}, "
            "the number of learned positions"
        )
    used = 0 if isinstance(model, Transformer) else len(prompt) - 1
    return min(max_tokens, config.context - used)


class _DecoderBatch:
    """A decoder reads all prompts in one pass, packed where their lengths differ."""

    def __init__(self, model: Decoder, prompts: list[list[int]], max_tokens: int) -> None:
        self._model, self._prompts = model, prompts
        self._device = model.embedding.tokens.weight.device
        longest = max(len(prompt) for prompt in prompts)
        # Storage doubles when full, so a large limit that is seldom reached costs nothing.
        self._cache = model.new_cache(capacity=longest + min(max_tokens, 512))

    @torch.inference_mode()
    def begin(self) -> Tensor:
        model, device = self._model, self._device
        lengths = [len(prompt) for prompt in self._prompts]
        if len(set(lengths)) == 1:
            tokens = torch.tensor(self._prompts, device=device)
            hidden = model.hidden(tokens, cache=self._cache)[:, -1]
        else:
            tokens = torch.tensor([t for prompt in self._prompts for t in prompt], device=device)
            hidden = model.hidden(tokens, lengths=lengths, cache=self._cache)
            hidden = hidden[torch.tensor(lengths, device=device).cumsum(0) - 1]
        # Only of the last tokens: the logits of all prompt tokens would be most of the work.
        return _check_logits(model.logits(hidden))

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        new = torch.tensor(tokens, device=self._device)[:, None]
        return _check_logits(self._model.logits(self._model.hidden(new, cache=self._cache)[:, 0]))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        self._cache.select(torch.tensor(rows, device=self._device))


class _TransformerBatch:
    """A transformer reads the sources and starts each target with the begin token."""

    def __init__(self, model: Transformer, sources: list[list[int]]) -> None:
        if model.tokens is None or model.tokens.begin is None:
            raise OptionError("model needs a tokenizer with a begin token, which starts a target")
        self._model, self._begin = model, model.tokens.begin
        self._device = model.embedding.tokens.weight.device
        self._lengths = [len(source) for source in sources]
        self._sources = sources
        self._cache = model.new_cache()

    @torch.inference_mode()
    def begin(self) -> Tensor:
        longest = max(self._lengths)
        padded = [source + [0] * (longest - len(source)) for source in self._sources]
        source = torch.tensor(padded, device=self._device)
        self._memory = self._model.encode(source, lengths=self._lengths)
        return self.step([self._begin] * len(padded))

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        new = torch.tensor(tokens, device=self._device)[:, None]
        hidden = self._model.decode(new, self._memory, cache=self._cache)
        return _check_logits(self._model.logits(hidden[:, 0]))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        indices = torch.tensor(rows, device=self._device)
        self._lengths = [self._lengths[row] for row in rows]
        self._cache.select(indices)
        self._memory = self._memory.select(indices, self._lengths)


def _check_logits(logits: Tensor) -> Tensor:
    """The logits, if every row has a finite maximum: no token can be drawn from NaN."""
    if not bool(logits.amax(dim=-1).isfinite().all()):
        raise OptionError(
            "model gives logits that are not finite: it overflows or its weights hold NaN"
        )
    return logits
