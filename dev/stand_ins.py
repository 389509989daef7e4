"""Stand-ins, for `families.py`, for what LayoutLMv2 imports from detectron2.

That package cannot be installed. The model's attention is transformers' own code and runs on any
image features.
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
def stand_ins(family: str, source_modules: list[Any]) -> Generator[None]:
    """Patch a family's modules with its stand-ins within the block."""
    with ExitStack() as stack:
        for source_module in source_modules:
            for name, part in _PARTS.get(family, {}).items():
                stack.enter_context(patch.object(source_module, name, part, create=True))
        yield


class _Backbone(nn.Module):
    """In place of a feature pyramid network: an image as features `b n c`."""

    cfg = SimpleNamespace(MODEL=SimpleNamespace(PIXEL_MEAN=[0.0] * 3, PIXEL_STD=[1.0] * 3))

    def __init__(self, config: Any) -> None:
        super().__init__()
        *size, channels = config.image_feature_pool_shape
        self.pixel_mean, self.pixel_std = (nn.Buffer(torch.zeros(3, 1, 1)) for _ in range(2))
        self.project, self.pool = nn.Conv2d(3, channels, 1), nn.AdaptiveAvgPool2d(tuple(size))

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.project(images)).flatten(2).transpose(1, 2)


def _no_check(*_: object) -> None:
    """In place of the check that a package is installed."""


_PARTS: dict[str, dict[str, Any]] = {
    "layoutlmv2": {
        "LayoutLMv2VisualBackbone": _Backbone,
        "detectron2": SimpleNamespace(layers=SimpleNamespace(FrozenBatchNorm2d=nn.BatchNorm2d)),
        "requires_backends": _no_check,
    },
}
