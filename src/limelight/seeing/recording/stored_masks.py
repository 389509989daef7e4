"""Masks as JSON and tensors, for files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limelight.errors import LimelightError
from limelight.ops.masks.mask import Both, Dense, Either, Mask
from limelight.ops.masks.rules import Anchors, Band, Blocks, Dilated, Documents, Padding


def put_mask(name: str, mask: Mask, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A mask as JSON; what it holds of tensors goes among the tensors under `name`."""
    if isinstance(mask, Both | Either):
        kind = "both" if isinstance(mask, Both) else "either"
        first = put_mask(f"{name}.first", mask.first, tensors)
        return {
            "kind": kind,
            "first": first,
            "second": put_mask(f"{name}.second", mask.second, tensors),
        }
    if isinstance(mask, Documents):
        inside = None if mask.inside is None else put_mask(f"{name}.inside", mask.inside, tensors)
        return {
            "kind": "documents",
            "lengths": mask.lengths,
            "key_lengths": mask.key_lengths,
            "inside": inside,
        }
    if isinstance(mask, Band):
        return {"kind": "band", "left": mask.left, "right": mask.right, "diagonal": mask.diagonal}
    if isinstance(mask, Dilated):
        return {"kind": "dilated", "step": mask.step, "left": mask.left, "right": mask.right}
    if isinstance(mask, Padding):
        return {"kind": "padding", "lengths": mask.lengths.tolist(), "side": mask.side}
    if isinstance(mask, Anchors):
        return {"kind": "anchors", "tokens": mask.tokens}
    if isinstance(mask, Blocks):
        tensors[name] = mask.layout
        return {"kind": "blocks", "tensor": name, "size": mask.size}
    if isinstance(mask, Dense):
        tensors[name] = mask.tensor
        return {"kind": "dense", "tensor": name}
    raise LimelightError(f"a mask of kind {type(mask).__name__} cannot be written to a file")


def get_mask(stored: dict[str, Any], tensors: dict[str, Tensor]) -> Mask:
    """The mask that `put_mask` described."""

    def inner(name: str) -> Mask:
        return get_mask(stored[name], tensors)

    makers: dict[str, Callable[[], Mask]] = {
        "both": lambda: Both(inner("first"), inner("second")),
        "either": lambda: Either(inner("first"), inner("second")),
        "documents": lambda: Documents(
            tuple(stored["lengths"]),
            tuple(stored["key_lengths"]),
            None if stored["inside"] is None else inner("inside"),
        ),
        "band": lambda: Band(stored["left"], stored["right"], stored["diagonal"]),
        "dilated": lambda: Dilated(stored["step"], stored["left"], stored["right"]),
        "padding": lambda: Padding(torch.tensor(stored["lengths"]), stored["side"]),
        "anchors": lambda: Anchors(tuple(stored["tokens"])),
        "blocks": lambda: Blocks(tensors[stored["tensor"]], tuple(stored["size"])),
        "dense": lambda: Dense(tensors[stored["tensor"]]),
    }
    return makers[stored["kind"]]()
