"""The decoder: a causal language model.

State dict: see stack.py, and

    [head.weight]     vocabulary m     tied=False
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from limelight.errors import OptionError
from limelight.fields import check_value
from limelight.layers.cache import Cache
from limelight.models.config import Config
from limelight.models.inputs import causal_reach, prepare_inputs
from limelight.models.stack import Embedding, Stack, check_cache, init_weights
from limelight.models.tokens import Tokens
from limelight.ops.project import project


class Decoder(nn.Module):
    """Each token sees those before it and predicts the next one (GPT-2, Llama and the like).

        x = embed(tokens);  x = block(x) for each block;  logits = x · headᵀ     `b n` → `b n v`

    >>> import torch, limelight as ll
    >>> model = ll.Decoder(ll.Config.llama(vocabulary=100, width=16, layers=2, heads=4, kv_heads=2))
    >>> model(torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 100])

    Packed prompts of different lengths fill a cache; then all rows continue together:

    >>> cache = model.new_cache()
    >>> with torch.inference_mode():
    ...     packed = model.hidden(torch.arange(9), lengths=[4, 5], cache=cache)
    ...     step = model(torch.tensor([[7], [8]]), cache=cache)
    ...     alone = model(torch.tensor([[0, 1, 2, 3, 7]]))
    >>> torch.allclose(step[0, 0], alone[0, -1], atol=1e-6)
    True
    """

    tokens: Tokens | None = None
    """the tokenizer it was loaded with"""
    name: str = ""
    """the name it was loaded by"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        check_value("config", config, Config)
        if config.kind != "decoder":
            raise OptionError(f"Decoder needs a config of kind 'decoder', found {config.kind!r}")
        self.config = config
        self.embedding = Embedding(config)
        self.stack = Stack(config, config.layers, causal=True)
        self.head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        init_weights(self, config)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits of the next token at every position: `b n v`, or `total v` when packed.

        Args:
            tokens: `b n`, or packed `total` with `lengths`.
            lengths: tokens of each text: real ones of each padded row, or of each packed text.
            cache: the tokens read so far; `tokens` follow them and are appended.
        """
        return self.logits(self.hidden(tokens, lengths=lengths, cache=cache))

    def hidden(
        self,
        tokens: Tensor,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Hidden states after the last block and norm: `b n m`, or `total m` when packed."""
        if cache is not None:
            check_cache(cache, self.config, self.config.layers)
        config = self.config
        mixed = bool(config.global_layers)
        inputs = prepare_inputs(
            tokens, lengths, cache=cache,
            reach=causal_reach(config.cache_window),
            local=causal_reach(config.window) if mixed else None,
        )  # fmt: skip
        x = self.stack(self.embedding(inputs), inputs, cache=cache)
        return x if inputs.packed is None else x[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """`… m` → `… v`."""
        weight = self.embedding.tokens.weight if self.head is None else self.head.weight
        config = self.config
        if config.logit_scale != 1:
            hidden = hidden * config.logit_scale
        logits = project(hidden, weight)
        cap = config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def new_cache(self, capacity: int = 64) -> Cache:
        """An empty cache that fits this model, with memory for `capacity` tokens at first."""
        return Cache(self.config.layers, window=self.config.cache_window, capacity=capacity)
