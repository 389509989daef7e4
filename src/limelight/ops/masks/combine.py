"""Combinations of masks: `&`, `|` and `~`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from limelight.ops.masks.mask import Lowered, Mask, StoredMask, check_depth
from limelight.ops.masks.region import Extent, Region


@dataclass(frozen=True)
class _Chain(Mask):
    """Two masks or more under one associative operator."""

    masks: tuple[Mask, ...]
    depth: int = field(init=False, repr=False, compare=False)
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", check_depth(*self.masks))

    @classmethod
    def of(cls, *masks: Mask) -> Mask:
        """The chain of these masks; the masks of chains of the same kind become its own."""
        parts = (mask.masks if isinstance(mask, cls) else (mask,) for mask in masks)
        return cls(tuple(mask for part in parts for mask in part))

    def check(self, extent: Extent) -> None:
        for mask in self.masks:
            mask.check(extent)

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        return type(self)(tuple(mask.part(heads=heads, row=row) for mask in self.masks))

    def tensors(self) -> Iterator[Tensor]:
        for mask in self.masks:
            yield from mask.tensors()

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        programs: list[tuple[int, ...]] = []
        tables: tuple[Tensor, ...] = ()
        for mask in self.masks:
            lowered = mask.lower(extent, device, first_table + len(tables))
            programs.append(lowered.program)
            tables += lowered.tables
        return Lowered(_balanced(self.code, programs), tables)

    def program(self) -> tuple[int, ...] | None:
        programs = [mask.program() for mask in self.masks]
        known = [program for program in programs if program is not None]
        return _balanced(self.code, known) if len(known) == len(programs) else None

    def natural_extent(self) -> Extent | None:
        natural = [mask.natural_extent() for mask in self.masks]
        known = [extent for extent in natural if extent is not None]
        return Extent(*map(max, zip(*known, strict=True))) if known else None

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        masks = [mask.to_json(f"{name}.{n}", tensors) for n, mask in enumerate(self.masks)]
        return {"masks": masks}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return cls.of(*stored.masks("masks"))

    def name(self) -> str:
        return f"({f' {self.sign} '.join(mask.name() for mask in self.masks)})"


class And(_Chain, kind="and", code=8):
    """What all of the masks allow."""

    sign = "&"

    def allowed(self, region: Region) -> Tensor:
        return reduce(torch.logical_and, (mask.allowed(region) for mask in self.masks))


class Or(_Chain, kind="or", code=9):
    """What at least one of the masks allows."""

    sign = "|"

    def allowed(self, region: Region) -> Tensor:
        return reduce(torch.logical_or, (mask.allowed(region) for mask in self.masks))


@dataclass(frozen=True)
class Not(Mask, kind="not", code=10):
    """What the mask forbids.

    Inside documents it applies in each document's own coordinates, as every rule does: what the
    mask forbids there, and never a link to another document.
    """

    mask: Mask
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", check_depth(self.mask))

    def __invert__(self) -> Mask:
        return self.mask

    def check(self, extent: Extent) -> None:
        self.mask.check(extent)

    def allowed(self, region: Region) -> Tensor:
        return ~self.mask.allowed(region)

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        return Not(self.mask.part(heads=heads, row=row))

    def tensors(self) -> Iterator[Tensor]:
        return self.mask.tensors()

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        program, tables = self.mask.lower(extent, device, first_table)
        return Lowered((self.code, *program), tables)

    def program(self) -> tuple[int, ...] | None:
        program = self.mask.program()
        return None if program is None else (self.code, *program)

    def natural_extent(self) -> Extent | None:
        return self.mask.natural_extent()

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"mask": self.mask.to_json(f"{name}.not", tensors)}

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        return ~stored.mask("mask")

    def name(self) -> str:
        return f"~{self.mask.name()}"


def _balanced(code: int, programs: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The programs under a binary operator, in a balanced tree: its depth is their log2."""
    if len(programs) == 1:
        return programs[0]
    middle = len(programs) // 2
    return (code, *_balanced(code, programs[:middle]), *_balanced(code, programs[middle:]))
