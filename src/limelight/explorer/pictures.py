"""Pictures that a browser has decoded: from base64 to pixels."""

from __future__ import annotations

import base64
import binascii
import hashlib

import torch
from torch import Tensor

from limelight.errors import OptionError


def pixels_of(encoded: str, height: int, width: int) -> tuple[str, Tensor]:
    """A digest of the picture and its pixels, `h w 3` of bytes.

    >>> digest, pixels = pixels_of("/wAA", 1, 1)
    >>> len(digest), pixels.tolist()
    (16, [[[255, 0, 0]]])
    """
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise OptionError("pixels must be base64") from None
    if len(data) != 3 * height * width:
        raise OptionError(
            f"pixels must be {height} × {width} × 3 = {3 * height * width:,} bytes, "
            f"found {len(data):,}"
        )
    digest = hashlib.sha256(data + f"{height} {width}".encode()).hexdigest()[:16]
    return digest, torch.frombuffer(bytearray(data), dtype=torch.uint8).view(height, width, 3)
