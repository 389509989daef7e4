"""What is recorded of a model: which layers and heads, and which statistics."""

from __future__ import annotations

from collections.abc import Sequence

from limelight.errors import OptionError
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.counts import counts

LENS = Lens(top=8, entropy=True, distance=True, received=True)
"""The default lens."""


def check_chosen(
    name: str, numbers: Sequence[int] | None, size: int | None
) -> tuple[int, ...] | None:
    """The chosen layers or heads, checked: different numbers, below `size` where that is known.

    None stands for all of them.
    """
    if numbers is None:
        return None
    chosen = counts(name.removesuffix("s"), numbers)
    if not chosen or len(set(chosen)) != len(chosen):
        raise OptionError(f"{name} must be one or more different numbers, found {list(chosen)}")
    for number in chosen:
        if size is not None and number >= size:
            raise OptionError(f"{name} names {number}, expected numbers from 0 to {size - 1}")
    return chosen
