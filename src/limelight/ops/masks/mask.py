"""What a mask is: a value that says its rule at any place, and tells the kernel of it.

The rules themselves are in `mask_rules`; here is what all of them share, the bool tensor as a mask,
and what `&` and `|` make of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from limelight.checks import shape_text
from limelight.errors import DtypeError, OptionError, ShapeError
from limelight.ops.masks.drawing import draw

LISTED = 16
"""A bool tensor of more elements is not written out."""


class Code:
    """What the kernel calls each rule (csrc/mask_node.h has the same numbers)."""

    BAND, STRIDE, SPAN, ANCHORS, BLOCKS, DENSE, DOCUMENTS, AND, OR, NOT, LINKS = range(1, 12)


class Lowered(NamedTuple):
    """A mask as the kernel takes it: the rules in prefix order, and the tables they read."""

    program: tuple[int, ...]
    tables: tuple[Tensor, ...]


class Extent(NamedTuple):
    """The sizes a mask is asked for: batch, query heads, queries, keys."""

    b: int
    h: int
    i: int
    j: int


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Which part of `b h i j` is meant: runs of batch rows and heads, any queries and keys.

    A query and a key say all that a rule needs to know of them, so that each may belong to a
    document of its own size.
    """

    batches: slice
    heads: slice
    rows: Tensor
    """r, int64: the queries' numbers, i"""
    positions: Tensor
    """r: where the queries stand among the keys, p_i = i + J − I"""
    keys: Tensor
    """c, int64: the keys' numbers, j"""
    following: Tensor
    """c: how many keys come after each, J − 1 − j"""

    @classmethod
    def at(cls, extent: Extent, batches: slice, heads: slice, rows: Tensor, keys: Tensor) -> Place:
        """These queries and keys of a call of this extent."""
        positions, following = rows + (extent.j - extent.i), extent.j - 1 - keys
        return cls(batches, heads, rows, positions, keys, following)

    @classmethod
    def whole(cls, extent: Extent, device: torch.device) -> Place:
        """All of `b h i j`."""
        rows, keys = (torch.arange(size, device=device) for size in (extent.i, extent.j))
        return cls.at(extent, slice(0, extent.b), slice(0, extent.h), rows, keys)

    @property
    def behind(self) -> Tensor:
        """How far each key lies behind its query, p_i − j: `r c`."""
        return self.positions[:, None] - self.keys

    def cut(self, table: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to `b h i j`; axes of size 1 stay so."""
        table = table[(None,) * (4 - table.ndim)]
        for axis, chosen in enumerate((self.batches, self.heads, self.rows, self.keys)):
            if table.shape[axis] != 1:
                table = table[(slice(None),) * axis + (chosen,)]
        return table


USUAL = 8
"""Queries and keys of the drawing of a mask that fits any number of them."""


class Mask:
    """A rule for which keys each query may see. Make one with `causal()`, `window(...)`, ..."""

    def __and__(self, other: Mask | Tensor) -> Mask:
        return Both(self, as_mask(other))

    def __rand__(self, other: Tensor) -> Mask:
        return Both(as_mask(other), self)

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Either(self, as_mask(other))

    def __ror__(self, other: Tensor) -> Mask:
        return Either(as_mask(other), self)

    def __invert__(self) -> NoReturn:
        # The opposite of a rule is in general no rule, and its table of n² places would be made in
        # silence, for one extent only: as `inside` of documents it would be wrong.
        raise OptionError(
            f"{self.name()} has no opposite as a mask value: combine masks of what may be seen "
            "with & and |, or take ~mask.dense(i, j), a bool tensor, which may stand for a mask"
        )

    def check(self, extent: Extent) -> None:
        """Raise a LimelightError unless the mask fits a call of this extent."""

    def allowed(self, place: Place) -> Tensor:
        """Which keys at `place` the queries there may see: a bool tensor, broadcasts to `b h r c`.

        Nothing is read back from tensors, so that torch.compile can trace it.
        """
        raise NotImplementedError

    def program(self) -> tuple[int, ...] | None:
        """The rule for the kernel, if it is the same for every call and reads no table."""
        return None

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        """The rule for the kernel; its own tables are numbered from `first_table`."""
        program = self.program()
        assert program is not None  # a rule that reads tables lowers itself
        return Lowered(program, ())

    def natural_extent(self) -> Extent | None:
        """The extent that the mask itself implies, or None if it fits any that is drawn."""
        return None

    def dense(
        self,
        i: int,
        j: int | None = None,
        *,
        b: int = 1,
        h: int = 1,
        device: str | torch.device = "cpu",
    ) -> Tensor:
        """The mask as a bool tensor `b h i j`, every place filled in.

        >>> import limelight as ll
        >>> ll.causal().dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        extent = Extent(b, h, i, i if j is None else j)
        self.check(extent)
        return self.allowed(Place.whole(extent, torch.device(device))).expand(extent)

    def draw(self, i: int | None = None, j: int | None = None) -> str:
        """The mask of the first batch row and head as text, pooled when it is large."""
        natural = self.natural_extent() or Extent(1, 1, USUAL, USUAL)
        rows = natural.i if i is None else i
        columns = (natural.j if i is None else rows) if j is None else j
        return draw(self.dense(rows, columns, b=natural.b, h=natural.h)[0, 0], self.name())

    def name(self) -> str:
        """The expression that makes this mask, for messages and drawings.

        Only a large bool tensor is told by its shape instead.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return self.draw()


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A bool tensor that broadcasts to `b h i j`."""

    tensor: Tensor

    def check(self, extent: Extent) -> None:
        try:
            fits = torch.broadcast_shapes(self.tensor.shape, extent) == tuple(extent)
        except RuntimeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"mask has shape {shape_text(self.tensor)}, "
                f"expected one that broadcasts to (b, h, i, j) = {tuple(extent)}"
            )

    def allowed(self, place: Place) -> Tensor:
        return place.cut(self.tensor.to(place.rows.device))

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        return Lowered((Code.DENSE, first_table), (self.tensor.to(device).expand(extent),))

    def natural_extent(self) -> Extent | None:
        return Extent(*(1,) * (4 - self.tensor.ndim), *self.tensor.shape)

    def name(self) -> str:
        return table_text(self.tensor)


@dataclass(frozen=True)
class _Pair(Mask):
    first: Mask
    second: Mask
    sign = "?"
    code = 0

    def check(self, extent: Extent) -> None:
        self.first.check(extent)
        self.second.check(extent)

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        one = self.first.lower(extent, device, first_table)
        two = self.second.lower(extent, device, first_table + len(one.tables))
        return Lowered((self.code, *one.program, *two.program), one.tables + two.tables)

    def program(self) -> tuple[int, ...] | None:
        one, two = self.first.program(), self.second.program()
        return None if one is None or two is None else (self.code, *one, *two)

    def natural_extent(self) -> Extent | None:
        one, two = self.first.natural_extent(), self.second.natural_extent()
        if one is None or two is None:
            return one or two
        return Extent(*(max(sizes) for sizes in zip(one, two, strict=True)))

    def name(self) -> str:
        return f"({self.first.name()} {self.sign} {self.second.name()})"


@dataclass(frozen=True)
class Both(_Pair):
    """What both masks allow."""

    sign = "&"
    code = Code.AND

    def allowed(self, place: Place) -> Tensor:
        return self.first.allowed(place) & self.second.allowed(place)


@dataclass(frozen=True)
class Either(_Pair):
    """What at least one of the masks allows."""

    sign = "|"
    code = Code.OR

    def allowed(self, place: Place) -> Tensor:
        return self.first.allowed(place) | self.second.allowed(place)


def table_text(table: Tensor) -> str:
    """A small bool tensor as the expression that makes it, a larger one by its shape."""
    if 0 < table.numel() <= LISTED:
        return f"torch.tensor({table.tolist()})"
    return f"bool tensor {shape_text(table)}"


def as_mask(value: Mask | Tensor) -> Mask:
    """A mask value, or a bool tensor made into one."""
    if isinstance(value, Mask):
        return value
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"mask must be a mask value or a bool tensor, found {type(value).__name__}"
        )
    if value.dtype != torch.bool:
        raise DtypeError(
            f"mask is {value.dtype}, expected bool (True = may attend); "
            "numbers to add to the scores go into bias="
        )
    if value.ndim > 4:
        raise ShapeError(f"mask has shape {shape_text(value)}, expected at most 4 axes (b h i j)")
    return Dense(value)
