"""What a mask is: a rule that says, for any region, which keys the queries there may see.

A mask holds its rule, not n² values, so the kernel can skip whole tiles. True = may attend.
Masks combine: `a & b` allows what both allow, `a | b` what either does, `~a` what `a` forbids;
either operand may be a bool tensor.

The position of query i among the keys is `i + (J - I)`: the last query is at the last key, so a
prompt in one piece, in chunks, or token by token gives the same rows.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_device, check_whole
from limelight.errors import DtypeError, OptionError
from limelight.ops.masks.counts import FAR
from limelight.ops.masks.drawing import draw
from limelight.ops.masks.region import Extent, Region

DRAWN = 8
"""Queries and keys in the drawing of a mask that fits any number of them."""
DEPTH = 128
"""How deep masks may nest: rules are evaluated by recursion, here and in the kernel."""


class Lowered(NamedTuple):
    """A mask as the kernel takes it: the rules in prefix order, and the tables they read."""

    program: tuple[int, ...]
    tables: tuple[Tensor, ...]


class Mask:
    """A rule for which keys each query may see. Make one with `causal()`, `window(...)`, ..."""

    kind: ClassVar[str]
    """the name of the rule in files"""
    code: ClassVar[int]
    """its number in the kernel, the same as in csrc/masks/rules.h"""
    depth: int = 1
    """how many masks are nested in one another"""
    kinds: ClassVar[dict[str, type[Mask]]] = {}
    """all rules, by kind"""

    def __init_subclass__(cls, *, kind: str | None = None, code: int | None = None) -> None:
        if kind is None and code is None:  # a base that rules share
            return
        if kind is None or code is None:
            raise TypeError(f"{cls.__name__} has kind {kind!r} and code {code}, expected both")
        for rule in Mask.kinds.values():
            reloaded = (rule.__module__, rule.__name__) == (cls.__module__, cls.__name__)
            if not reloaded and (kind == rule.kind or code == rule.code):
                raise TypeError(
                    f"{cls.__name__} has kind {kind!r} and code {code}, "
                    f"but {rule.__name__} has kind {rule.kind!r} and code {rule.code}"
                )
        cls.kind, cls.code = kind, code
        Mask.kinds[kind] = cls

    # --- algebra ----------------------------------------------------------------------------------

    def __and__(self, other: Mask | Tensor) -> Mask:
        from limelight.ops.masks.combine import And

        return And.of(self, as_mask(other))

    def __rand__(self, other: Tensor) -> Mask:
        return as_mask(other) & self

    def __or__(self, other: Mask | Tensor) -> Mask:
        from limelight.ops.masks.combine import Or

        return Or.of(self, as_mask(other))

    def __ror__(self, other: Tensor) -> Mask:
        return as_mask(other) | self

    def __invert__(self) -> Mask:
        from limelight.ops.masks.combine import Not

        return Not(self)

    # --- what a rule implements -------------------------------------------------------------------

    def check(self, extent: Extent) -> None:
        """Raise a LimelightError unless the mask fits a call of this extent."""

    def allowed(self, region: Region) -> Tensor:
        """Which keys of the region its queries may see: a bool tensor, broadcasts to `b h r c`.

        No value is read back from a tensor, so that torch.compile can trace it.
        """
        raise NotImplementedError

    def part(self, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
        """The mask for these heads and this row of the batch (all unless given).

        >>> import limelight as ll
        >>> ll.padding([3, 1]).part(row=1).name()
        'padding([1])'
        """
        del heads, row
        return self

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that must be on the device of the call's own.

        Not those made from lists, which are on the CPU and copied to where they are needed.
        """
        return iter(())

    def program(self) -> tuple[int, ...] | None:
        """The rule for the kernel, if it is the same for every call and reads no table."""
        return None

    def lower(self, extent: Extent, device: torch.device, first_table: int = 0) -> Lowered:
        """The rule for the kernel; its own tables are numbered from `first_table`."""
        program = self.program()
        assert program is not None  # a rule that reads tables lowers itself
        return Lowered(program, ())

    def to_json(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """The rule as JSON; the tensors it holds go among `tensors`, under `name`."""
        return {"kind": self.kind, **self._fields(name, tensors)}

    def _fields(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_stored(cls, stored: StoredMask) -> Mask:
        """The rule that `to_json` described."""
        raise NotImplementedError

    def natural_extent(self) -> Extent | None:
        """The extent that the mask itself implies, or None if it fits any that is drawn."""
        return None

    def name(self) -> str:
        """The expression that makes this mask, for messages and drawings.

        Only a large bool tensor is named by its shape instead.
        """
        raise NotImplementedError

    # --- what all rules share ---------------------------------------------------------------------

    def dense(
        self,
        i: int,
        j: int | None = None,
        *,
        b: int = 1,
        h: int = 1,
        device: str | torch.device = "cpu",
    ) -> Tensor:
        """The mask as a bool tensor `b h i j`.

        >>> import limelight as ll
        >>> ll.causal().dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        extent = _extent(b, h, i, i if j is None else j)
        self.check(extent)
        return self.allowed(Region.whole(extent, check_device(device))).expand(extent)

    def draw(self, i: int | None = None, j: int | None = None) -> str:
        """The mask of the first batch row and head as text, pooled when it is large."""
        natural = self.natural_extent() or Extent(1, 1, DRAWN, DRAWN)
        rows = natural.i if i is None else i
        columns = (natural.j if i is None else rows) if j is None else j
        extent = _extent(natural.b, natural.h, rows, columns)
        self.check(extent)
        first, every = slice(0, 1), slice(0, columns)

        def strip(run: slice) -> Tensor:
            region = Region.at(extent, first, first, run, every, torch.device("cpu"))
            return (
                self.allowed(region)
                .expand(1, 1, -1, columns)[0, 0]
                .expand(run.stop - run.start, columns)
            )

        return draw(strip, rows, columns, self.name())

    def __str__(self) -> str:
        return self.draw()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How IPython shows a mask: drawn, as under `print`."""
        printer.text(self.name() if cycle else self.draw())

    def _repr_html_(self) -> str:
        """How a notebook shows a mask: drawn, as under `print`."""
        return f'<pre style="line-height: 1.1">{html.escape(self.draw())}</pre>'


def _extent(*sizes: int) -> Extent:
    """The extent of these sizes: not checked inside a compiled function, where they are symbols."""
    if torch.compiler.is_compiling():
        return Extent(*sizes)
    names = Extent._fields
    return Extent(*(check_whole(n, size, 0, FAR) for n, size in zip(names, sizes, strict=True)))


def as_mask(value: Mask | Tensor) -> Mask:
    """A mask value, or a bool tensor made into one."""
    if isinstance(value, Mask):
        return value
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"mask must be a mask value or a bool tensor, found {type(value).__name__}"
        )
    from limelight.ops.masks.dense import of_tensor

    return of_tensor(value)


class StoredMask:
    """A mask as a file stores it: the fields of its JSON object, and the tensors they name."""

    def __init__(self, fields: object, tensors: dict[str, Tensor]) -> None:
        if not isinstance(fields, dict):
            raise OptionError(f"a stored mask must be an object, found {type(fields).__name__}")
        self.fields: dict[str, Any] = fields  # pyright: ignore[reportUnknownMemberType]
        self.tensors = tensors

    def __getitem__(self, name: str) -> Any:
        if name not in self.fields:
            raise OptionError(f"a stored mask of kind {self.fields.get('kind')!r} lacks {name!r}")
        return self.fields[name]

    def tensor(self, name: str) -> Tensor:
        """The tensor that a field names."""
        tensor = self.tensors.get(str(self[name]))
        if tensor is None:
            raise OptionError(f"a stored mask names the tensor {self[name]!r}, which is missing")
        return tensor

    def mask(self, name: str) -> Mask:
        """The mask in a field."""
        return mask_from_json(self[name], self.tensors)

    def masks(self, name: str) -> list[Mask]:
        """The masks in a field that lists some."""
        if not isinstance(self[name], list) or not self[name]:
            raise OptionError(f"{name} of a stored mask must list masks, found {self[name]!r}")
        return [mask_from_json(member, self.tensors) for member in self[name]]


def mask_from_json(fields: object, tensors: dict[str, Tensor]) -> Mask:
    """The mask that `Mask.to_json` described, or an OptionError that says what is wrong with it.

    >>> import limelight as ll
    >>> mask_from_json((ll.causal() & ~ll.window(2)).to_json("mask", {}), {}).name()
    '(causal() & ~window(2, 0))'
    """
    stored = StoredMask(fields, tensors)
    rule = Mask.kinds.get(stored["kind"]) if isinstance(stored["kind"], str) else None
    if rule is None:
        known = ", ".join(sorted(Mask.kinds))
        raise OptionError(f"a stored mask is of kind {stored['kind']!r}, expected one of {known}")
    try:
        return rule.from_stored(stored)
    except RecursionError:
        raise OptionError(f"a stored mask nests deeper than {DEPTH} levels") from None


def check_depth(*inner: Mask) -> int:
    """The depth of a mask that combines these, or an OptionError where that is too deep.

    The kernel combines them in a balanced tree.
    """
    tree = max(len(inner) - 1, 1).bit_length()
    # In this form torch.compile can trace it.
    depth = tree + max(0, *[mask.depth for mask in inner], 0)
    if depth > DEPTH:
        raise OptionError(f"masks may nest at most {DEPTH} levels deep, found {depth}")
    return depth
