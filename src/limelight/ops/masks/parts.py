"""What a mask is made of: its part for some heads or one row of the batch, and its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from limelight.ops.masks.mask import Both, Dense, Either, Mask
from limelight.ops.masks.rules import Blocks, Documents, Padding


def part_of(mask: Mask, *, heads: list[int] | None = None, row: int | None = None) -> Mask:
    """The mask for these heads (all unless given) and this row of the batch (all unless given).

    >>> import limelight as ll
    >>> print(part_of(ll.padding([3, 1]), row=1).name())
    padding([1])
    """
    if isinstance(mask, Both | Either):
        first = part_of(mask.first, heads=heads, row=row)
        return type(mask)(first, part_of(mask.second, heads=heads, row=row))
    if isinstance(mask, Documents) and mask.inside is not None:
        inside = part_of(mask.inside, heads=heads, row=row)
        return Documents(mask.lengths, mask.key_lengths, inside)
    if isinstance(mask, Padding) and row is not None:
        return replace(mask, lengths=mask.lengths[row : row + 1])
    if isinstance(mask, Blocks) and heads is not None and mask.layout.shape[0] != 1:
        return replace(mask, layout=mask.layout[heads])
    if isinstance(mask, Dense):
        return Dense(part_of_table(mask.tensor, heads=heads, row=row))
    return mask


def part_of_table(
    table: Tensor, *, heads: list[int] | None = None, row: int | None = None
) -> Tensor:
    """The same of a tensor that broadcasts to `b h i j`; axes of size 1 stay so."""
    if heads is not None and table.ndim >= 3 and table.shape[-3] != 1:
        table = table[..., heads, :, :]
    if row is not None and table.ndim == 4 and table.shape[0] != 1:
        table = table[row : row + 1]
    return table


def tensors_in(mask: Mask) -> Iterator[Tensor]:
    """The tensors that a call's own must live with.

    What comes from lists lives on the CPU and goes wherever it is needed: that is not among them.
    """
    if isinstance(mask, Both | Either):
        yield from tensors_in(mask.first)
        yield from tensors_in(mask.second)
    elif isinstance(mask, Documents) and mask.inside is not None:
        yield from tensors_in(mask.inside)
    elif isinstance(mask, Dense):
        yield mask.tensor
    elif isinstance(mask, Blocks) and mask.layout.device.type != "cpu":
        yield mask.layout
