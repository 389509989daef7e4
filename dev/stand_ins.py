"""What LayoutLMv2 takes from detectron2, a package that cannot be installed: for `families.py`.

Its attention is transformers' own code, and runs over any features of a picture.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn


@contextmanager
def stand_ins(family: str, homes: list[Any]) -> Generator[None]:
    """Within the block, a family's modules find what they would import."""
    with ExitStack() as stack:
        for home in homes:
            for name, part in _PARTS.get(family, {}).items():
                stack.enter_context(patch.object(home, name, part, create=True))
        yield


class _Pictures(nn.Module):
    """In place of a feature pyramid: a picture as `b n c`."""

    cfg = SimpleNamespace(MODEL=SimpleNamespace(PIXEL_MEAN=[0.0] * 3, PIXEL_STD=[1.0] * 3))

    def __init__(self, config: Any) -> None:
        super().__init__()
        *size, channels = config.image_feature_pool_shape
        self.pixel_mean, self.pixel_std = (nn.Buffer(torch.zeros(3, 1, 1)) for _ in range(2))
        self.project, self.pool = nn.Conv2d(3, channels, 1), nn.AdaptiveAvgPool2d(tuple(size))

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.project(images)).flatten(2).transpose(1, 2)


def _nothing(*_: object) -> None:
    """In place of the check that a package is installed."""


_PARTS: dict[str, dict[str, Any]] = {
    "layoutlmv2": {
        "LayoutLMv2VisualBackbone": _Pictures,
        "detectron2": SimpleNamespace(layers=SimpleNamespace(FrozenBatchNorm2d=nn.BatchNorm2d)),
        "requires_backends": _nothing,
    },
}
