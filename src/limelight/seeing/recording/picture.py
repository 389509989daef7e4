"""The picture that a recording is of, and the grid of its patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.checks import check_whole, shape_text
from limelight.errors import OptionError, ShapeError


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture cut into patches, row by row; each patch is a token, after the leading ones.

    >>> picture = Picture(torch.zeros(32, 48, 3, dtype=torch.uint8), rows=2, columns=3, leading=1)
    >>> picture.names
    ('[CLS]', '0,0', '0,1', '0,2', '1,0', '1,1', '1,2')
    """

    pixels: Tensor
    """`height width 3`, whole numbers from 0 to 255"""
    rows: int
    columns: int
    leading: int = 0
    """tokens before the patches, such as [CLS]"""

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 3 or not self.pixels.numel():
            raise ShapeError(f"pixels must be (height, width, 3), found {shape_text(self.pixels)}")
        if self.pixels.dtype != torch.uint8:
            raise OptionError(f"pixels must be of torch.uint8, found {self.pixels.dtype}")
        check_whole("rows", self.rows, 1)
        check_whole("columns", self.columns, 1)
        check_whole("leading", self.leading, 0)

    @property
    def size(self) -> int:
        """The number of tokens: the leading ones and one for each patch."""
        return self.leading + self.rows * self.columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tokens: [CLS], then "row,column" of each patch."""
        first = ("[CLS]", *(f"[REG {n}]" for n in range(1, self.leading)))[: self.leading]
        return (*first, *(f"{r},{c}" for r in range(self.rows) for c in range(self.columns)))

    def grid(self, weights: Tensor) -> Tensor:
        """Of one number for each token, those of the patches: `rows columns`."""
        return weights[self.leading :].reshape(self.rows, self.columns)

    def patch(self, token: int) -> tuple[int, int] | None:
        """Row and column of a token; None for a leading one."""
        return None if token < self.leading else divmod(token - self.leading, self.columns)
