"""The encoder: every token of a text sees all of it.

State dict: see stack.py; nothing is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from limelight.errors import OptionError
from limelight.fields import check_value
from limelight.models.config import Config
from limelight.models.embedding.pooling import Pooling
from limelight.models.inputs import full_reach, prepare_inputs
from limelight.models.stack import Embedding, Stack, init_weights
from limelight.models.tokens import Tokens


class Encoder(nn.Module):
    """Tokens in, one vector per token out, in the context of the whole text (BERT and the like).

        x = embed(tokens);  x = block(x) for each block     `b n` → `b n m`

    >>> import torch, limelight as ll
    >>> encoder = ll.Encoder(ll.Config.bert(vocabulary=100, width=16, layers=2, heads=2))
    >>> encoder(torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 16])

    Texts of different lengths, packed without padding, give the same vectors as each by itself:

    >>> packed = encoder(torch.arange(9), lengths=[4, 5])
    >>> torch.allclose(packed[:4], encoder(torch.arange(4)[None])[0], atol=1e-6)
    True
    """

    tokens: Tokens | None = None
    """the tokenizer it was loaded with"""
    name: str = ""
    """the name it was loaded by"""
    pooling: Pooling = Pooling()
    """how `embed` turns a text into one vector"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        check_value("config", config, Config)
        if config.kind != "encoder":
            raise OptionError(f"Encoder needs a config of kind 'encoder', found {config.kind!r}")
        self.config = config
        self.embedding = Embedding(config)
        self.stack = Stack(config, config.layers, causal=False)
        init_weights(self, config)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the last block.

        Args:
            tokens: `b n`, or packed `total` with `lengths`.
            lengths: tokens of each text: real ones of each padded row, or of each packed text.
            segments: the segment of each token, in the shape of `tokens`; 0 unless given.

        Returns:
            `b n m`, or `total m` when packed.
        """
        inputs = prepare_inputs(tokens, lengths, reach=full_reach(self.config.window))
        x = self.stack(self.embedding(inputs, segments), inputs)
        return x if inputs.packed is None else x[0]

    def embed(self, texts: str | Sequence[str], *, progress: bool | None = None) -> Tensor:
        """One vector for each text, pooled by `pooling`: `b m`, or `m` for a single text.

        Texts are sorted by length and packed without padding; the result is in the order given.

        Args:
            texts: one or many; longer ones are truncated to `pooling.limit` tokens.
            progress: whether to show a progress bar; unless given, for long input on a terminal.

        >>> import limelight as ll
        >>> vectors = ll.load("minilm").embed(["A cat sat.", "A kitten sat.", "Stocks fell."])
        >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
        True
        """
        from limelight.models.embedding.embed import embed

        return embed(self, texts, progress=progress)
