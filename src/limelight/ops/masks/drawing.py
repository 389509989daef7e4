"""A mask as a picture in text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from limelight.checks import shape_text

LARGEST = 32
"""Rows and columns of marks."""
FULL, PART, EMPTY = "■", "▒", "·"
LISTED = 16
"""A bool tensor of more elements is not written out."""


def draw(strip: Callable[[slice], Tensor], rows: int, columns: int, title: str) -> str:
    """A bool matrix `i j` as rows of marks; beyond 32 a mark stands for a pooled block.

    Args:
        strip: gives some rows of the matrix, which is never held as a whole.
        rows: i.
        columns: j.
        title: what the matrix is.
    """
    lines = [f"{title}: {rows} queries (down) x {columns} keys (across)"]
    if rows > LARGEST or columns > LARGEST:
        lines[0] += f", {PART} = partly allowed"
    if not rows or not columns:
        return lines[0]
    edges, key_edges = _edges(rows), _edges(columns)
    sizes = torch.tensor(key_edges).diff()
    step = max(1, (1 << 22) // columns)
    for first, last in pairwise(edges):
        total = torch.zeros(len(sizes), dtype=torch.int64)
        for start in range(first, last, step):
            counted = strip(slice(start, min(start + step, last))).sum(0)
            total += torch.stack([part.sum() for part in counted.split(sizes.tolist())])
        whole = sizes * (last - first)
        marks = zip(total.tolist(), whole.tolist(), strict=True)
        lines.append(" ".join(FULL if n == of else PART if n else EMPTY for n, of in marks))
    return "\n".join(lines)


def _edges(size: int) -> list[int]:
    """Where the cells of a drawing begin, and where the last one ends."""
    cells = min(size, LARGEST)
    return [size * cell // cells for cell in range(cells + 1)]


def table_text(table: Tensor) -> str:
    """A small bool tensor as the expression that makes it, a larger one by its shape."""
    if 0 < table.numel() <= LISTED:
        return f"torch.tensor({table.tolist()})"
    return f"bool tensor {shape_text(table)}"
