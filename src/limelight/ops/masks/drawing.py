"""A mask as a picture in text."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

LARGEST = 32
FULL, PART, EMPTY = "■", "▒", "·"


def draw(allowed: Tensor, title: str) -> str:
    """The bool matrix `i j` as rows of marks; beyond 32 a mark stands for a pooled block."""
    rows, columns = allowed.shape
    lines = [f"{title}: {rows} queries (down) x {columns} keys (across)"]
    if rows and columns:
        share = allowed.double()[None]
        if rows > LARGEST or columns > LARGEST:
            share = adaptive_avg_pool2d(share, (min(rows, LARGEST), min(columns, LARGEST)))
            lines[0] += f", {PART} = partly allowed"
        for row in share[0].tolist():
            lines.append(" ".join(FULL if x == 1 else EMPTY if x == 0 else PART for x in row))
    return "\n".join(lines)
