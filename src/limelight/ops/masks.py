"""Masks as values: which key positions a query may attend to. True = may attend.

A mask says its rule, not its n² answers, so the kernel can skip whole tiles. Masks combine:
`a & b` allows what both allow, `a | b` what either does; a bool tensor may stand on either side.

The position of query i among the keys is `i + (J - I)`: the last query sits on the last key, so a
prompt in one piece, in chunks, or token by token gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from limelight.ops.mask import Mask
from limelight.ops.mask_rules import Anchors, Band, Blocks, Dilated, Documents, Padding
from limelight.shapes import OptionError, ShapeError, shape_text


def _count(name: str, value: int | None, least: int = 0) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or int(value) != value or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, found {value}")
    return int(value)


def _lengths(name: str, lengths: Sequence[int] | Tensor) -> tuple[int, ...]:
    values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    for value in values:
        _count(name, value)
    return tuple(int(value) for value in values)


def causal(diagonal: int | None = None) -> Mask:
    """Each query sees the keys up to its own position.

    >>> print(causal())
    causal(): 8 queries (down) x 8 keys (across)
    ■ · · · · · · ·
    ■ ■ · · · · · ·
    ■ ■ ■ · · · · ·
    ■ ■ ■ ■ · · · ·
    ■ ■ ■ ■ ■ · · ·
    ■ ■ ■ ■ ■ ■ · ·
    ■ ■ ■ ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■ ■ ■ ■

    With fewer queries than keys the last query sees the last key. `diagonal=0` gives PyTorch's
    `is_causal` instead, where the first query sees only the first key.
    """
    return Band(None, 0, diagonal)


def window(left: int | None, right: int | None = 0) -> Mask:
    """Query at position p sees keys p - left ... p + right (None: no limit on that side).

    >>> print(window(2, 1).draw(5))
    window(2, 1): 5 queries (down) x 5 keys (across)
    ■ ■ · · ·
    ■ ■ ■ · ·
    ■ ■ ■ ■ ·
    · ■ ■ ■ ■
    · · ■ ■ ■
    """
    return Band(_count("window left", left), _count("window right", right))


def dilated(step: int, left: int | None = None, right: int | None = None) -> Mask:
    """Every `step`-th key before and after the query; `left` and `right` count steps.

    >>> print(dilated(2, left=1, right=0).draw(5))
    dilated(2, 1, 0): 5 queries (down) x 5 keys (across)
    ■ · · · ·
    · ■ · · ·
    ■ · ■ · ·
    · ■ · ■ ·
    · · ■ · ■
    """
    checked = _count("dilated step", step, least=1)
    assert checked is not None
    return Dilated(checked, _count("dilated left", left), _count("dilated right", right))


def padding(lengths: Sequence[int] | Tensor, side: Literal["right", "left"] = "right") -> Mask:
    """Row b of the batch holds `lengths[b]` real keys; the rest is padding, on the given side."""
    if side not in ("right", "left"):
        raise OptionError(f"padding side must be 'right' or 'left', found {side!r}")
    return Padding(torch.tensor(_lengths("padding length", lengths), dtype=torch.int64), side)


def documents(
    lengths: Sequence[int] | Tensor,
    key_lengths: Sequence[int] | Tensor | None = None,
    inside: Mask | None = None,
) -> Mask:
    """Packed sequences: no document sees another. `inside` masks each as if it stood alone.

    >>> print(documents([2, 3]))
    documents([2, 3]): 5 queries (down) x 5 keys (across)
    ■ ■ · · ·
    ■ ■ · · ·
    · · ■ ■ ■
    · · ■ ■ ■
    · · ■ ■ ■
    """
    rows = _lengths("documents length", lengths)
    columns = rows if key_lengths is None else _lengths("documents key length", key_lengths)
    if len(rows) != len(columns):
        raise ShapeError(
            f"documents has {len(columns)} key lengths, expected {len(rows)} as lengths"
        )
    return Documents(rows, columns, inside)


def blocks(layout: Tensor | Sequence[Sequence[bool]], size: int | tuple[int, int]) -> Mask:
    """Block-sparse: query i sees key j where `layout[..., i // size, j // size]` is True.

    `layout` is `rows columns`, or `h rows columns` with a layout for each head.
    """
    table = torch.as_tensor(layout, dtype=torch.bool)
    if table.ndim not in (2, 3):
        raise ShapeError(f"blocks layout must have 2 or 3 axes, found {shape_text(table)}")
    sizes = (size, size) if isinstance(size, int) else size
    rows, columns = (_count("blocks size", value, least=1) for value in sizes)
    assert rows is not None
    assert columns is not None
    return Blocks(table if table.ndim == 3 else table[None], (rows, columns))


def anchors(tokens: int | Iterable[int]) -> Mask:
    """Global tokens, as in Longformer: they see every key and every query sees them.

    >>> print((anchors(0) | window(1)).draw(5))
    (anchors([0]) | window(1, 0)): 5 queries (down) x 5 keys (across)
    ■ ■ ■ ■ ■
    ■ ■ · · ·
    ■ ■ ■ · ·
    ■ · ■ ■ ·
    ■ · · ■ ■
    """
    chosen = [tokens] if isinstance(tokens, int) else list(tokens)
    for token in chosen:
        _count("anchors token", token)
    return Anchors(tuple(sorted({int(token) for token in chosen})))
