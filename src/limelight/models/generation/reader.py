"""A model that writes, with what it has read so far: prompts once, then a token a row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.models.decoder import Decoder
from limelight.models.transformer import Transformer

Writer = Decoder | Transformer
"""A model that generates: after a prompt, or a target for a source."""


@runtime_checkable
class Reader(Protocol):
    """Rows that are generated together."""

    def begin(self) -> Tensor:
        """Logits `b v` of the first token of each row."""
        ...

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Logits `b v` after one more token a row."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with these rows, in this order; a row may be repeated."""
        ...


def read(model: Writer, prompts: list[list[int]], more: int) -> Reader:
    """A reader for prompts (of a transformer: sources), with room for `more` tokens a row."""
    if isinstance(model, Transformer):
        return _SourceReader(model, prompts)
    return _PromptReader(model, prompts, more)


def tokens_left(model: Writer, prompt: Sequence[int], most: int) -> int:
    """How many tokens can be written to a prompt: `most`, or what learned positions leave."""
    config = model.config
    if config.positions != "learned":
        return most
    if len(prompt) > config.context:
        raise OptionError(
            f"prompts has one of {len(prompt)} tokens, expected at most {config.context}, "
            "the positions that the model has learned"
        )
    return min(most, config.context - (0 if isinstance(model, Transformer) else len(prompt) - 1))


class _PromptReader:
    """A decoder reads all prompts in one pass, packed where their lengths differ."""

    def __init__(self, model: Decoder, prompts: list[list[int]], more: int) -> None:
        self._model, self._prompts = model, prompts
        self._device = model.embedding.tokens.weight.device
        longest = max(len(prompt) for prompt in prompts)
        # Storage doubles when full, so a limit that is seldom reached need not be paid for.
        self._cache = model.new_cache(capacity=longest + min(more, 512))

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
        # The logits of all other prompt tokens are never made: they are most of the work.
        return _numbers(model.logits(hidden))

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        new = torch.tensor(tokens, device=self._device)[:, None]
        return _numbers(self._model.logits(self._model.hidden(new, cache=self._cache)[:, 0]))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        self._cache.select(torch.tensor(rows, device=self._device))


class _SourceReader:
    """A transformer reads the sources and starts each target with the begin token."""

    def __init__(self, model: Transformer, sources: list[list[int]]) -> None:
        if model.tokens is None or model.tokens.begin is None:
            raise OptionError("model needs a tokenizer with a begin token, which opens a target")
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
        return _numbers(self._model.logits(hidden[:, 0]))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        chosen = torch.tensor(rows, device=self._device)
        self._lengths = [self._lengths[row] for row in rows]
        self._cache.select(chosen)
        self._memory = self._memory.select(chosen, self._lengths)


def _numbers(logits: Tensor) -> Tensor:
    """The logits, if each row has a likeliest token: among NaN there is none."""
    if not bool(logits.amax(dim=-1).isfinite().all()):
        raise OptionError(
            "model gives scores for the next token that are not numbers: it overflows or holds NaN"
        )
    return logits
