"""The one place where layers call attention, and how to look in.

Every attention layer calls `attend` through `run`. Within `with observing(observer):` the observer
is called in its place, with everything the layer hands over, and gives back the output:

    def observer(call):
        output, seen = call.attend(lens=lens)
        kept.append((call.layer, seen))
        return output

Nothing is patched and nothing is left behind; other threads and tasks do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limelight.ops.attend import attend
from limelight.ops.bias import Alibi
from limelight.ops.mask import Mask


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One attention call of a layer, before it is made."""

    layer: nn.Module
    query: Tensor
    """b h i d, positions already turned in"""
    key: Tensor
    """b g j d, those of the cache included"""
    value: Tensor
    """b g j e"""
    mask: Mask | Tensor | None
    bias: Tensor | Alibi | None
    scale: float | None
    dropout: float

    def attend(self, **options: Any) -> Any:
        """`ll.attend` on this call; `options` such as `lens=` or `impl=` go along."""
        return attend(
            self.query, self.key, self.value,
            mask=self.mask, bias=self.bias, scale=self.scale, dropout=self.dropout, **options,
        )  # fmt: skip


Observer = Callable[[Call], Tensor]

_observer: ContextVar[Observer | None] = ContextVar("limelight_observer", default=None)


@contextmanager
def observing(observer: Observer) -> Generator[None]:
    """Within the block, attention layers call `observer(call)` and use the output it returns.

    >>> import torch, limelight as ll
    >>> shapes = []
    >>> def look(call):
    ...     shapes.append(tuple(call.query.shape))
    ...     return call.attend()
    >>> with ll.observing(look):
    ...     _ = ll.Attention(8, heads=2)(torch.randn(1, 5, 8))
    >>> shapes
    [(1, 2, 5, 4)]
    """
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def run(
    layer: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None,
    bias: Tensor | Alibi | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attention for `layer`: the operation, or the observer in its place.

    A compiled layer is not observed: there is no Python to call when it runs.
    """
    observer = None if torch.compiler.is_compiling() else _observer.get()
    if observer is None:
        return attend(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)
    return observer(Call(layer, query, key, value, mask, bias, scale, dropout))
