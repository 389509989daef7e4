"""The structural rules: bands, steps, padding, anchors, blocks, documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from limelight.ops.mask import Code, Extent, Lowered, Mask
from limelight.shapes import ShapeError

FAR = 1 << 62
"""Stands for "no limit" in a band."""


def _positions(extent: Extent, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions of the queries (a column) and of the keys (a row) on the keys' own axis."""
    rows = torch.arange(extent.i, device=device)[:, None] + (extent.j - extent.i)
    return rows, torch.arange(extent.j, device=device)[None, :]


@dataclass(frozen=True)
class Band(Mask):
    """Keys at p - left ... p + right, p the query's position; None is no limit.

    `diagonal` moves the band: None puts the last query on the last key (p = i + J - I), a number
    puts query i at p = i + diagonal (0 is PyTorch's upper-left alignment).
    """

    left: int | None
    right: int | None
    diagonal: int | None = None

    def allowed(self, extent: Extent, device: torch.device) -> Tensor:
        rows, columns = _positions(extent, device)
        if self.diagonal is not None:
            rows = rows - (extent.j - extent.i) + self.diagonal
        distance = columns - rows
        inside = torch.ones_like(distance, dtype=torch.bool)
        if self.left is not None:
            inside &= distance >= -self.left
        if self.right is not None:
            inside &= distance <= self.right
        return inside[None, None]

    def program(self) -> tuple[int, ...]:
        low = -FAR if self.left is None else -self.left
        high = FAR if self.right is None else self.right
        aligned, shift = (1, 0) if self.diagonal is None else (0, self.diagonal)
        return (Code.BAND, low, high, aligned, shift)

    def name(self) -> str:
        if self.left is None and self.right == 0:
            return "causal()" if self.diagonal is None else f"causal(diagonal={self.diagonal})"
        return f"window({self.left}, {self.right})"


@dataclass(frozen=True)
class Dilated(Mask):
    """Every `step`-th key around the query: p - left·step, ..., p, ..., p + right·step."""

    step: int
    left: int | None
    right: int | None

    def allowed(self, extent: Extent, device: torch.device) -> Tensor:
        rows, columns = _positions(extent, device)
        distance = columns - rows
        inside = distance % self.step == 0
        if self.left is not None:
            inside &= distance >= -self.left * self.step
        if self.right is not None:
            inside &= distance <= self.right * self.step
        return inside[None, None]

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
    longest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Known from the start: a check that read the tensor could not be traced by torch.compile.
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        object.__setattr__(self, "longest", longest)

    def check(self, extent: Extent) -> None:
        if len(self.lengths) != extent.b:
            raise ShapeError(f"padding has {len(self.lengths)} lengths, expected b = {extent.b}")
        if self.longest > extent.j:
            raise ShapeError(
                f"padding has a length of {self.longest}, expected at most j = {extent.j}"
            )

    def _spans(self, extent: Extent, device: torch.device) -> tuple[Tensor, Tensor]:
        lengths = self.lengths.to(device)
        if self.side == "right":
            return torch.zeros_like(lengths), lengths
        return extent.j - lengths, torch.full_like(lengths, extent.j)

    def allowed(self, extent: Extent, device: torch.device) -> Tensor:
        start, end = self._spans(extent, device)
        columns = torch.arange(extent.j, device=device)
        inside = (columns >= start[:, None]) & (columns < end[:, None])
        return inside[:, None, None, :]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        at_end = int(self.side == "left")
        return Lowered((Code.SPAN, first_table, at_end), (self.lengths.to(device),))

    def natural_extent(self) -> Extent | None:
        return Extent(len(self.lengths), 1, self.longest, self.longest)

    def name(self) -> str:
        return f"padding({self.lengths.tolist()})"


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

    def _flags(self, extent: Extent, device: torch.device) -> Tensor:
        flags = torch.zeros(extent.j, dtype=torch.bool, device=device)
        flags[list(self.tokens)] = True
        return flags

    def allowed(self, extent: Extent, device: torch.device) -> Tensor:
        flags = self._flags(extent, device)
        rows, _ = _positions(extent, device)
        query = flags[rows.clamp_min(0)] & (rows >= 0) if extent.j else rows.bool() & False
        return (query | flags[None, :])[None, None]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        counts = torch.zeros(extent.j + 1, dtype=torch.int64, device=device)
        counts[1:] = self._flags(extent, device).cumsum(0)
        return Lowered((Code.ANCHORS, first_table), (counts,))

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

    def allowed(self, extent: Extent, device: torch.device) -> Tensor:
        layout = self.layout.to(device)
        rows = torch.arange(extent.i, device=device) // self.size[0]
        columns = torch.arange(extent.j, device=device) // self.size[1]
        return layout[:, rows[:, None], columns[None, :]][None]

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        layout = self.layout.to(device).contiguous()
        return Lowered((Code.BLOCKS, first_table, *self.size), (layout,))

    def natural_extent(self) -> Extent | None:
        heads, rows, columns = self.layout.shape
        return Extent(1, heads, rows * self.size[0], columns * self.size[1])

    def name(self) -> str:
        return f"blocks({self.layout.shape[1]} x {self.layout.shape[2]}, {self.size})"


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

    def allowed(self, extent: Extent, device: torch.device) -> Tensor:
        result = torch.zeros(1, 1, extent.i, extent.j, dtype=torch.bool, device=device)
        rows, columns = self.bounds.tolist()
        for t in range(len(self.lengths)):
            i, j = self.lengths[t], self.key_lengths[t]
            inner = torch.ones(1, 1, i, j, dtype=torch.bool, device=device)
            if self.inside is not None:
                inner = self.inside.allowed(Extent(extent.b, extent.h, i, j), device)
            if inner.shape[0] > result.shape[0] or inner.shape[1] > result.shape[1]:
                lead = torch.broadcast_shapes(inner.shape[:2], result.shape[:2])
                result = result.expand(*lead, -1, -1).clone()
            result[:, :, rows[t] : rows[t] + i, columns[t] : columns[t] + j] = inner
        return result

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
        return Extent(1, 1, sum(self.lengths), sum(self.key_lengths))

    def name(self) -> str:
        inside = "" if self.inside is None else f", inside={self.inside.name()}"
        return f"documents({list(self.lengths)}{inside})"
