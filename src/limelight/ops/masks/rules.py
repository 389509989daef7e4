"""The structural rules: bands, steps, padding, anchors, blocks, documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from limelight.errors import ShapeError
from limelight.ops.masks.mask import USUAL, Code, Extent, Lowered, Mask, Place, table_text

FAR = 1 << 62
"""Stands for "no limit" in a band."""


def _between(behind: Tensor, left: int | None, right: int | None) -> Tensor:
    inside = torch.ones_like(behind, dtype=torch.bool)
    if left is not None:
        inside &= behind <= left
    if right is not None:
        inside &= behind >= -right
    return inside


@dataclass(frozen=True)
class Band(Mask):
    """Keys at p - left ... p + right, p the query's position; None is no limit.

    `diagonal` moves the band: None puts the last query on the last key (p = i + J - I), a number
    puts query i at p = i + diagonal (0 is PyTorch's upper-left alignment).
    """

    left: int | None
    right: int | None
    diagonal: int | None = None

    def allowed(self, place: Place) -> Tensor:
        behind = place.behind
        if self.diagonal is not None:
            behind = (place.rows + self.diagonal)[:, None] - place.keys
        return _between(behind, self.left, self.right)[None, None]

    def program(self) -> tuple[int, ...]:
        low = -FAR if self.left is None else -self.left
        high = FAR if self.right is None else self.right
        aligned, shift = (1, 0) if self.diagonal is None else (0, self.diagonal)
        return (Code.BAND, low, high, aligned, shift)

    def name(self) -> str:
        if self.left is None and self.right == 0:
            return "causal()" if self.diagonal is None else f"causal(diagonal={self.diagonal})"
        # Only `causal` takes a diagonal; other bands that have one come from Hugging Face's masks.
        return f"window({self.left}, {self.right})" if self.diagonal is None else repr(self)


@dataclass(frozen=True)
class Dilated(Mask):
    """Every `step`-th key around the query: p - left·step, ..., p, ..., p + right·step."""

    step: int
    left: int | None
    right: int | None

    def allowed(self, place: Place) -> Tensor:
        behind = place.behind
        left = None if self.left is None else self.left * self.step
        right = None if self.right is None else self.right * self.step
        return (_between(behind, left, right) & (behind % self.step == 0))[None, None]

    def program(self) -> tuple[int, ...]:
        low = -FAR if self.left is None else -self.left * self.step
        high = FAR if self.right is None else self.right * self.step
        return (Code.STRIDE, self.step, low, high)

    def name(self) -> str:
        return f"dilated({self.step}, {self.left}, {self.right})"


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Row b of the batch holds `lengths[b]` real keys, at its start or (side="left") at its end."""

    lengths: Tensor
    side: Literal["right", "left"]
    longest: int | None = field(init=False, repr=False)
    """of the lengths; None while torch.compile traces them, when they have no numbers yet"""

    def __post_init__(self) -> None:
        # Known from the start: a check that read the tensor could not be traced by torch.compile.
        longest = None
        if not torch.compiler.is_compiling():
            longest = int(self.lengths.max()) if len(self.lengths) else 0
        object.__setattr__(self, "longest", longest)

    def check(self, extent: Extent) -> None:
        if len(self.lengths) != extent.b:
            raise ShapeError(f"padding has {len(self.lengths)} lengths, expected b = {extent.b}")
        if self.longest is not None and self.longest > extent.j:
            raise ShapeError(
                f"padding has a length of {self.longest}, expected at most j = {extent.j}"
            )

    def allowed(self, place: Place) -> Tensor:
        lengths = self.lengths.to(place.keys.device)[place.batches, None]
        from_real_side = place.keys if self.side == "right" else place.following
        return (from_real_side < lengths)[:, None, None, :]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        at_end = int(self.side == "left")
        return Lowered((Code.SPAN, first_table, at_end), (self.lengths.to(device),))

    def natural_extent(self) -> Extent | None:
        if self.longest is None:
            return None
        return Extent(len(self.lengths), 1, self.longest, self.longest)

    def name(self) -> str:
        side = "" if self.side == "right" else f', side="{self.side}"'
        return f"padding({self.lengths.tolist()}{side})"


@dataclass(frozen=True)
class Anchors(Mask):
    """Global tokens: the anchors see every key, and every query sees the anchors."""

    tokens: tuple[int, ...]

    def check(self, extent: Extent) -> None:
        beyond = [token for token in self.tokens if token >= extent.j]
        if beyond:
            raise ShapeError(
                f"anchors names token {beyond[0]}, expected tokens below j = {extent.j}"
            )

    def _among(self, positions: Tensor) -> Tensor:
        tokens = torch.tensor(self.tokens, dtype=torch.int64, device=positions.device)
        return torch.isin(positions, tokens)

    def allowed(self, place: Place) -> Tensor:
        return (self._among(place.positions)[:, None] | self._among(place.keys))[None, None]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        counts = torch.zeros(extent.j + 1, dtype=torch.int64, device=device)
        counts[1:] = self._among(torch.arange(extent.j, device=device)).cumsum(0)
        return Lowered((Code.ANCHORS, first_table), (counts,))

    def natural_extent(self) -> Extent | None:
        needed = max(self.tokens, default=0) + 1
        return Extent(1, 1, needed, needed) if needed > USUAL else None

    def name(self) -> str:
        return f"anchors({list(self.tokens)})"


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """Block sparsity: query i sees key j where `layout[i // size, j // size]` is True."""

    layout: Tensor
    size: tuple[int, int]

    def check(self, extent: Extent) -> None:
        heads, rows, columns = self.layout.shape
        if heads != 1 and heads != extent.h:
            raise ShapeError(f"blocks has a layout for {heads} heads, expected 1 or h = {extent.h}")
        need = (-(-extent.i // self.size[0]), -(-extent.j // self.size[1]))
        if rows != need[0] or columns != need[1]:
            raise ShapeError(
                f"blocks has a layout of {rows} x {columns} "
                f"blocks of {self.size[0]} x {self.size[1]}, "
                f"expected {need[0]} x {need[1]} to cover i = {extent.i}, j = {extent.j}"
            )

    def allowed(self, place: Place) -> Tensor:
        layout = self.layout.to(place.rows.device)
        if layout.shape[0] != 1:
            layout = layout[place.heads]
        rows, columns = place.rows // self.size[0], place.keys // self.size[1]
        return layout[:, rows[:, None], columns][None]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        layout = self.layout.to(device).contiguous()
        return Lowered((Code.BLOCKS, first_table, *self.size), (layout,))

    def natural_extent(self) -> Extent | None:
        heads, rows, columns = self.layout.shape
        return Extent(1, heads, rows * self.size[0], columns * self.size[1])

    def name(self) -> str:
        shared = len(self.layout) == 1
        return f"blocks({table_text(self.layout[0] if shared else self.layout)}, {self.size})"


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Packed sequences: document t's queries see document t's keys, under the mask `inside`.

    `inside` is asked in each document's own coordinates, as if the document stood alone.
    """

    lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    inside: Mask | None = None
    bounds: Tensor = field(init=False, repr=False)
    """Where each document starts and ends: `2 (documents + 1)`, queries then keys."""

    def __post_init__(self) -> None:
        starts = torch.zeros(2, len(self.lengths) + 1, dtype=torch.int64)
        starts[0, 1:] = torch.tensor(self.lengths, dtype=torch.int64).cumsum(0)
        starts[1, 1:] = torch.tensor(self.key_lengths, dtype=torch.int64).cumsum(0)
        object.__setattr__(self, "bounds", starts)

    def check(self, extent: Extent) -> None:
        for what, lengths, size in (
            ("i", self.lengths, extent.i),
            ("j", self.key_lengths, extent.j),
        ):
            if sum(lengths) != size:
                raise ShapeError(
                    f"documents has lengths that sum to {sum(lengths)}, expected {what} = {size}"
                )
        if self.inside is not None:
            for rows, columns in zip(self.lengths, self.key_lengths, strict=True):
                self.inside.check(Extent(extent.b, extent.h, rows, columns))

    def allowed(self, place: Place) -> Tensor:
        bounds = self.bounds.to(place.rows.device)
        starts, key_starts = bounds
        document = torch.searchsorted(starts, place.rows, right=True) - 1
        owner = torch.searchsorted(key_starts, place.keys, right=True) - 1
        together = (document[:, None] == owner)[None, None]
        if self.inside is None:
            return together
        # The inner mask is asked for all documents at once: each query and each key counts within
        # its own. What it says across documents means nothing, and `together` drops it.
        lengths, key_lengths = bounds.diff()
        rows, keys = place.rows - starts[document], place.keys - key_starts[owner]
        positions = rows + (key_lengths - lengths)[document]
        following = key_lengths[owner] - 1 - keys
        own = Place(place.batches, place.heads, rows, positions, keys, following)
        return together & self.inside.allowed(own)

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        program, tables = (
            (Code.DOCUMENTS, first_table, int(self.inside is not None)),
            (self.bounds,),
        )
        if self.inside is not None:
            longest = max(self.lengths, default=0), max(self.key_lengths, default=0)
            own = Extent(extent.b, extent.h, *longest)
            inner = self.inside.lower(own, device, first_table + 1)
            program, tables = program + inner.program, tables + inner.tables
        return Lowered(program, tuple(table.to(device) for table in tables))

    def natural_extent(self) -> Extent | None:
        inner = None if self.inside is None else self.inside.natural_extent()
        b, h = (1, 1) if inner is None else (inner.b, inner.h)
        return Extent(b, h, sum(self.lengths), sum(self.key_lengths))

    def name(self) -> str:
        keys = "" if self.key_lengths == self.lengths else f", {list(self.key_lengths)}"
        inside = "" if self.inside is None else f", inside={self.inside.name()}"
        return f"documents({list(self.lengths)}{keys}{inside})"
