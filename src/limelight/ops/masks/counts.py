"""Checks of the whole numbers in masks: positions, lengths, limits."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from limelight.checks import check_tensor, check_whole
from limelight.errors import OptionError

FAR = 1 << 60
"""No position is farther: the sum of a few such numbers still fits the kernel's 64 bits."""
UNLIMITED = 1 << 62
"""Stands for "no limit" in the kernel's bands."""


def count(name: str, value: int, least: int = 0) -> int:
    """The value, a whole number that a position or a length can be."""
    return check_whole(name, value, least, FAR)


def limit(name: str, value: int | None) -> int | None:
    """The same, or None for no limit."""
    return None if value is None else count(name, value)


def counts(name: str, values: Iterable[int] | Tensor) -> tuple[int, ...]:
    """The same of a sequence or a tensor of one axis."""
    if isinstance(values, Tensor):
        check_tensor(name, values)
    try:
        numbers = list(values.tolist() if isinstance(values, Tensor) else values)
    except (TypeError, RuntimeError):  # not a sequence, or a tensor without values
        raise OptionError(
            f"each {name} must be a whole number in a sequence or a tensor, found {values!r}"
        ) from None
    return tuple(count(name, number) for number in numbers)
