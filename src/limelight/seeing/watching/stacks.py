"""The stacks of layers in a Hugging Face model, told from the paths of its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|enc_attn", re.IGNORECASE)


class Place(NamedTuple):
    """Where an attention module stands in its model."""

    stack: str
    """the path with its layer number left out, the same for all layers of a kind"""
    layer: int

    @property
    def cross(self) -> bool:
        """True where its queries look at another text than their own."""
        return is_cross(self.stack)


def is_cross(path: str) -> bool:
    """True for the path of attention from one text to another."""
    return bool(_CROSS.search(path))


def place_of(path: str) -> Place | None:
    """A module's place by its path: the first number in it counts the layers.

    >>> place_of("model.layers.3.self_attn")
    Place(stack='model.layers.*.self_attn', layer=3)
    """
    parts = path.split(".")
    number = next((one for one in parts if one.isdecimal()), None)
    if number is None:
        return None
    parts[parts.index(number)] = "*"
    return Place(".".join(parts), int(number))


def labelled(stacks: Iterable[str]) -> dict[str, str]:
    """Stacks by short names; by the whole path where short ones would be the same.

    >>> labelled(["encoder.block.*.attention", "decoder.block.*.attention"])
    {'encoder': 'encoder.block.*.attention', 'decoder': 'decoder.block.*.attention'}
    """
    paths = list(stacks)
    short: dict[str, list[str]] = {}
    for path in paths:
        label = "self"
        if is_cross(path):
            label = "cross"
        elif len(paths) > 1:
            sides = [side for side in ("encoder", "decoder") if side in path.lower()]
            label = sides[0] if len(sides) == 1 else path
        short.setdefault(label, []).append(path)
    return {
        (label if len(same) == 1 else path): path for label, same in short.items() for path in same
    }
