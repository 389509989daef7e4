"""Attention over packed sequences: no padding, no document sees another."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from limelight.checks import check_rank
from limelight.ops.attend import Implementation, attend
from limelight.ops.bias import Alibi
from limelight.ops.masks.documents import documents
from limelight.ops.masks.mask import Mask


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int] | Tensor,
    *,
    key_lengths: Sequence[int] | Tensor | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    impl: Implementation = "auto",
) -> Tensor:
    """`attend` over concatenated sequences, each attending only within itself.

    Args:
        query: `total h d`, the queries of all sequences one after the other.
        key: `total g d`.
        value: `total g e`.
        lengths: how many queries each sequence has; they sum to the total.
        key_lengths: how many keys each sequence has, if not as many as queries.
        mask: applied within each sequence, as if it stood alone: `causal()`, `window(128)`, ..., or
            a bool tensor that broadcasts to `1 h i j` of every sequence.
        bias: `alibi(heads)`, or a tensor that broadcasts to `1 h total total`.
        scale: as in `attend`, and so are `softcap`, `dropout` and `impl`.

    Returns:
        `total h e`.

    >>> import torch, limelight as ll
    >>> q = k = v = torch.randn(7, 2, 8)
    >>> out = ll.attend_packed(q, k, v, [3, 4], mask=ll.causal())
    >>> alone = ll.attend_packed(q[:3], k[:3], v[:3], [3], mask=ll.causal())
    >>> torch.allclose(out[:3], alone, atol=1e-6)
    True
    """
    for name, tensor, letters in (
        ("query", query, "total h d"),
        ("key", key, "total g d"),
        ("value", value, "total g e"),
    ):
        check_rank(name, tensor, letters)
    output = attend(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        mask=documents(lengths, key_lengths, inside=mask),
        bias=bias,
        scale=scale,
        softcap=softcap,
        dropout=dropout,
        impl=impl,
    )
    return output[0].transpose(0, 1)
