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

from limelight.checks import check_table, check_whole, shape_text
from limelight.errors import OptionError, ShapeError
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.masks.rules import Anchors, Band, Blocks, Dilated, Documents, Padding

_FAR = 1 << 60
"""No position is farther: the sum of a few such numbers still fits the kernel's 64 bits."""


def _count(name: str, value: int, least: int = 0) -> int:
    return check_whole(name, value, least, _FAR)


def _limit(name: str, value: int | None) -> int | None:
    return None if value is None else _count(name, value)


def _counts(name: str, values: Iterable[int] | Tensor) -> tuple[int, ...]:
    try:
        found = list(values.tolist() if isinstance(values, Tensor) else values)
    except (TypeError, NotImplementedError):  # not a sequence, or a tensor without numbers
        raise OptionError(
            f"each {name} must be a whole number in a sequence or a tensor, found {values!r}"
        ) from None
    return tuple(_count(name, value) for value in found)


def _traced(lengths: Tensor) -> Tensor:
    """The tensor as the rule takes it, without a look at its numbers."""
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ShapeError(
            f"padding lengths must be whole numbers in one axis, found {lengths.dtype} of shape "
            f"{shape_text(lengths)}"
        )
    return lengths.to(torch.int64)


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
    if diagonal is not None:
        diagonal = _count("causal diagonal", diagonal, least=-_FAR)
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
    return Band(_limit("window left", left), _limit("window right", right))


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
    step = _count("dilated step", step, least=1)
    left, right = _limit("dilated left", left), _limit("dilated right", right)
    _limit("dilated left in keys", left and left * step)
    _limit("dilated right in keys", right and right * step)
    return Dilated(step, left, right)


def padding(lengths: Sequence[int] | Tensor, side: Literal["right", "left"] = "right") -> Mask:
    """Row b of the batch holds `lengths[b]` real keys; the rest is padding, on the given side.

    A tensor of lengths that torch.compile traces has no numbers yet: the kernel checks them.
    """
    if side not in ("right", "left"):
        raise OptionError(f"padding side must be 'right' or 'left', found {side!r}")
    if torch.compiler.is_compiling() and isinstance(lengths, Tensor):
        return Padding(_traced(lengths), side)
    return Padding(torch.tensor(_counts("padding length", lengths), dtype=torch.int64), side)


def documents(
    lengths: Sequence[int] | Tensor,
    key_lengths: Sequence[int] | Tensor | None = None,
    inside: Mask | Tensor | None = None,
) -> Mask:
    """Packed sequences: no document sees another. `inside` masks each as if it stood alone.

    A bool tensor as `inside` must fit every document, so all are of one length where it has one.

    >>> print(documents([2, 3]))
    documents([2, 3]): 5 queries (down) x 5 keys (across)
    ■ ■ · · ·
    ■ ■ · · ·
    · · ■ ■ ■
    · · ■ ■ ■
    · · ■ ■ ■
    """
    rows = _counts("documents length", lengths)
    columns = rows if key_lengths is None else _counts("documents key length", key_lengths)
    if len(rows) != len(columns):
        raise ShapeError(
            f"documents has {len(columns)} key lengths, expected {len(rows)} as lengths"
        )
    return Documents(rows, columns, None if inside is None else as_mask(inside))


def blocks(layout: Tensor | Sequence[Sequence[bool]], size: int | tuple[int, int]) -> Mask:
    """Block-sparse: query i sees key j where `layout[..., i // size, j // size]` is True.

    `layout` is `rows columns`, or `h rows columns` with a layout for each head.
    """
    table = check_table("blocks layout", layout, torch.bool)
    if table.ndim not in (2, 3):
        raise ShapeError(f"blocks layout must have 2 or 3 axes, found {shape_text(table)}")
    sizes = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sizes) != 2:
        raise OptionError(f"blocks size must be one number or two (rows, columns), found {size!r}")
    rows, columns = (_count("blocks size", value, least=1) for value in sizes)
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
    chosen = [tokens] if isinstance(tokens, int) else tokens
    return Anchors(tuple(sorted(set(_counts("anchors token", chosen)))))
