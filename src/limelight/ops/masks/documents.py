"""Packed sequences: `documents(lengths, inside=mask)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from limelight.errors import ShapeError
from limelight.ops.masks.counts import counts
from limelight.ops.masks.mask import Lowered, Mask, StoredMask, as_mask, check_depth
from limelight.ops.masks.region import Extent, Region


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
    rows = counts("documents length", lengths)
    columns = rows if key_lengths is None else counts("documents key length", key_lengths)
    if len(rows) != len(columns):
        raise ShapeError(
            f"documents has {len(columns)} key lengths, expected {len(rows)} as lengths"
        )
    return Documents(rows, columns, None if inside is None else as_mask(inside))


@dataclass(frozen=True, eq=False)
class Documents(Mask, kind="documents", code=7):
    """Packed sequences: document t's queries see document t's keys, under the mask `inside`.

    `inside` applies in each document's own coordinates, as if the document stood alone.
    """

    lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    inside: Mask | None = None
    bounds: Tensor = field(init=False, repr=False)
    """Where each document starts and ends: `2 (documents + 1)`, queries then keys."""
    depth: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        starts = torch.zeros(2, len(self.lengths) + 1, dtype=torch.int64)
        starts[0, 1:] = torch.tensor(self.lengths, dtype=torch.int64).cumsum(0)
        starts[1, 1:] = torch.tensor(self.key_lengths, dtype=torch.int64).cumsum(0)
        object.__setattr__(self, "bounds", starts)
        inner = () if self.inside is None else (self.inside,)
        object.__setattr__(self, "depth", check_depth(*inner))

    def check(self, extent: Extent) -> None:
        for letter, lengths, size in (
            ("i", self.lengths, extent.i),
            ("j", self.key_lengths, extent.j),
        ):
            if sum(lengths) != size:
                raise ShapeError(
                    f"documents has lengths that sum to {sum(lengths)}, expected {letter} = {size}"
                )
        if self.inside is not None:
            for rows, columns in zip(self.lengths, self.key_lengths, strict=True):
                self.inside.check(Extent(extent.b, extent.h, rows, columns))

    def allowed(self, region: Region) -> Tensor:
        bounds = self.bounds.to(region.rows.device)
        starts, key_starts = bounds
        document = torch.searchsorted(starts, region.rows, right=True) - 1
        owner = torch.searchsorted(key_starts, region.keys, right=True) - 1
        together = (document[:, None] == owner)[None, None]
        if self.inside is None:
            return together
        # The inner mask is evaluated for all documents at once: each query and each key counts
        # within its own. What it says across documents means nothing, and `together` drops it.
        lengths, key_lengths = bounds.diff()
        rows, keys = region.rows - starts[document], region.keys - key_starts[owner]
        positions = rows + (key_lengths - lengths)[document]
        following = key_lengths[owner] - 1 - keys
        inner = Region(region.batches, region.heads, rows, positions, keys, following, rows, keys)
        return together & self.inside.allowed(inner)

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        if self.inside is None:
            return self
        return Documents(self.lengths, self.key_lengths, self.inside.part(heads=heads, row=row))

    def tensors(self) -> Iterator[Tensor]:
        return iter(()) if self.inside is None else self.inside.tensors()

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        program, tables = (
            (self.code, first_table, int(self.inside is not None)),
            (self.bounds,),
        )
        if self.inside is not None:
            longest = max(self.lengths, default=0), max(self.key_lengths, default=0)
            document = Extent(extent.b, extent.h, *longest)
            inner = self.inside.lower(document, device, first_table + 1)
            program, tables = program + inner.program, tables + inner.tables
        return Lowered(program, tuple(table.to(device) for table in tables))

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        inside = None if self.inside is None else self.inside.to_json(f"{name}.inside", tensors)
        return {"lengths": self.lengths, "key_lengths": self.key_lengths, "inside": inside}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        inside = None if stored["inside"] is None else stored.mask("inside")
        return documents(stored["lengths"], stored["key_lengths"], inside)

    def natural_extent(self) -> Extent | None:
        inner = None if self.inside is None else self.inside.natural_extent()
        b, h = (1, 1) if inner is None else (inner.b, inner.h)
        return Extent(b, h, sum(self.lengths), sum(self.key_lengths))

    def name(self) -> str:
        keys = "" if self.key_lengths == self.lengths else f", {list(self.key_lengths)}"
        inside = "" if self.inside is None else f", inside={self.inside.name()}"
        return f"documents({list(self.lengths)}{keys}{inside})"
