"""The vision encoder: every patch of a picture sees the whole picture.

State dict, with the names inside a stack as in stack.py:

    embedding.patches.weight, .bias    m 3 p p    patch of p by p pixels → vector
    embedding.first                    1 1 m      [CLS]
    embedding.positions                1 n m      of [CLS] and the patches, row by row
    stack.*
    [classes.weight, .bias]            c m        vocabulary=c
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.checks import shape_text
from limelight.errors import OptionError, ShapeError
from limelight.fields import check_value
from limelight.models.config import Config
from limelight.models.inputs import Inputs
from limelight.models.stack import Stack, init_weights
from limelight.models.tokens import Tokens


class Normalisation(NamedTuple):
    """How pixels from 0 to 1 are normalised: (x − mean) / std for each colour channel."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


class VisionEncoder(nn.Module):
    """Pixels in, one vector for [CLS] and one per patch out (ViT).

        x = [first, patches] + positions;  x = block(x) for each block;  norm(x)
        `b 3 height width` → `b n m`,  n = 1 + patches

    >>> import torch, limelight as ll
    >>> config = ll.Config.vit(image=(32, 48), patch=16, width=16, layers=2, heads=2, vocabulary=10)
    >>> model = ll.VisionEncoder(config)
    >>> hidden = model(torch.randn(1, 3, 32, 48))
    >>> hidden.shape, model.logits(hidden).shape
    (torch.Size([1, 7, 16]), torch.Size([1, 10]))
    """

    tokens: Tokens | None = None
    """None: it reads pictures"""
    name: str = ""
    """the name it was loaded by"""
    normalisation: Normalisation = Normalisation()
    """applied to pixels before the model reads them"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        check_value("config", config, Config)
        if config.kind != "vision":
            raise OptionError(
                f"VisionEncoder needs a config of kind 'vision', found {config.kind!r}"
            )
        self.config = config
        self.embedding = PatchEmbedding(config)
        self.stack = Stack(config, config.layers, causal=False)
        self.classes = nn.Linear(config.width, config.vocabulary) if config.vocabulary else None
        init_weights(self, config)

    def forward(self, pixels: Tensor) -> Tensor:
        """Hidden states after the last norm.

        Args:
            pixels: `b 3 height width`, in the size of the config, normalised.

        Returns:
            `b n m`, [CLS] first.
        """
        x = self.embedding(pixels)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.stack(x, Inputs(positions, positions, x.shape[1] - 1, None, None))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the classes, from [CLS]: `b n m` → `b c`."""
        if self.classes is None:
            raise OptionError("this model has no classes: it was loaded without a classifier")
        return self.classes(hidden[:, 0])


class PatchEmbedding(nn.Module):
    """A picture as vectors, one for each patch: `b 3 height width` → `b n m`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.image is not None
        assert config.patch is not None
        self.image, side = config.image, config.patch
        self.patches = nn.Conv2d(3, config.width, side, side)
        self.first = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(torch.empty(1, config.context, config.width))
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.ndim != 4 or pixels.shape[1:] != (3, *self.image):
            height, width = self.image
            raise ShapeError(
                f"pixels has shape {shape_text(pixels)}, expected (b, 3, {height}, {width})"
            )
        x = self.patches(pixels).flatten(2).mT
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions
