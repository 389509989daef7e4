"""Short names for the stacks of layers in a model, derived from the paths of their modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|enc_attn", re.IGNORECASE)


def is_cross(path: str, model: nn.Module | None = None) -> bool:
    """Whether the attention at a path looks from one text at another.

    The names that models use say so; `nn.TransformerDecoderLayer` calls its own `multihead_attn`.
    """
    if _CROSS.search(path):
        return True
    parent, _, name = path.rpartition(".")
    if model is None or name != "multihead_attn":
        return False
    return isinstance(model.get_submodule(parent), nn.TransformerDecoderLayer)


def labelled(stacks: Iterable[str], cross: Iterable[str] = ()) -> dict[str, str]:
    """Stacks by short names; by the whole path where short ones would be the same.

    >>> labelled(["encoder.block.*.attention", "decoder.block.*.attention"])
    {'encoder': 'encoder.block.*.attention', 'decoder': 'decoder.block.*.attention'}
    """
    paths, crossing = list(stacks), set(cross)
    short: dict[str, list[str]] = {}
    for path in paths:
        label = "self"
        if path in crossing:
            label = "cross"
        elif len(paths) > 1:
            sides = [side for side in ("encoder", "decoder") if side in path.lower()]
            label = sides[0] if len(sides) == 1 else path
        short.setdefault(label, []).append(path)
    return {
        (label if len(same) == 1 else path): path for label, same in short.items() for path in same
    }
