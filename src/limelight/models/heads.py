"""Heads of an encoder: masked language model, classifier, mean pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.checks import check_whole, shape_text
from limelight.errors import ShapeError
from limelight.layers.norm import make_norm
from limelight.models.encoder import Encoder


def mean_pool(hidden: Tensor, lengths: Sequence[int] | Tensor) -> Tensor:
    """One vector per text: the mean of its real tokens.

        out_t = Σ hidden_n / length_t over the tokens n of text t

    Args:
        hidden: `b n m` padded, or `total m` packed.
        lengths: tokens of each text, at least 1.

    Returns:
        `b m`.

    >>> mean_pool(torch.tensor([[1.0], [3.0], [5.0]]), [2, 1])
    tensor([[2.],
            [5.]])
    """
    values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    counts = torch.tensor(values, device=hidden.device)
    if min(values, default=1) < 1:
        raise ShapeError(f"lengths are {values}, expected at least 1 token per text")
    if hidden.ndim == 2:
        if sum(values) != hidden.shape[0]:
            raise ShapeError(
                f"lengths sum to {sum(values)}, expected {hidden.shape[0]}, the rows of hidden"
            )
        return torch.segment_reduce(hidden, "mean", lengths=counts)
    if (
        hidden.ndim != 3
        or len(values) != hidden.shape[0]
        or max(values, default=0) > hidden.shape[1]
    ):
        raise ShapeError(
            f"hidden has shape {shape_text(hidden)} with lengths {values}, "
            "expected (b, n, m) with b lengths of at most n"
        )
    real = torch.arange(hidden.shape[1], device=hidden.device) < counts[:, None]
    return torch.where(real[..., None], hidden, 0).sum(1) / counts[:, None]


class MaskedLM(nn.Module):
    """Predicts the token at every position from the whole text (BERT's training task).

        logits = norm(gelu(hidden · W)) · tokensᵀ + bias     `b n` → `b n v`

    >>> import torch, limelight as ll
    >>> from limelight.models.heads import MaskedLM
    >>> encoder = ll.Encoder(ll.Config.bert(vocabulary=100, width=16, layers=2, heads=2))
    >>> MaskedLM(encoder)(torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 100])
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.transform = nn.Linear(config.width, config.width)
        self.norm = make_norm(config.norm, config.width, config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        _init_linear(self.transform)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Logits at every position; arguments as for `Encoder`."""
        hidden = self.encoder(tokens, lengths=lengths, segments=segments)
        hidden = self.norm(F.gelu(self.transform(hidden)))
        return F.linear(hidden, self.encoder.embedding.tokens.weight, self.bias)


class Classifier(nn.Module):
    """Predicts which of several classes a text belongs to, from its first token.

        logits = tanh(hidden_0 · W_pool) · W_classes     `b n` → `b classes`

    >>> import torch, limelight as ll
    >>> from limelight.models.heads import Classifier
    >>> encoder = ll.Encoder(ll.Config.bert(vocabulary=100, width=16, layers=2, heads=2))
    >>> Classifier(encoder, classes=3)(torch.randint(100, (2, 7))).shape
    torch.Size([2, 3])
    """

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        check_whole("classes", classes)
        width = encoder.config.width
        self.encoder = encoder
        self.pool = nn.Linear(width, width)
        self.classes = nn.Linear(width, classes)
        _init_linear(self.pool)
        _init_linear(self.classes)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Logits of the classes; arguments as for `Encoder`."""
        hidden = self.encoder(tokens, lengths=lengths, segments=segments)
        if hidden.ndim == 2:
            assert lengths is not None
            counts = torch.as_tensor(lengths, device=hidden.device)
            first = hidden[counts.cumsum(0) - counts]
        else:
            first = hidden[:, 0]
        pooled = torch.tanh(self.pool(first))
        dropout = self.encoder.config.dropout
        return self.classes(F.dropout(pooled, dropout, self.training))


@torch.no_grad()
def _init_linear(layer: nn.Linear) -> None:
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
