"""Numbers packed small enough to travel inside a page, and exact enough to be read off it."""

from __future__ import annotations

import base64
import zlib

import torch
from torch import Tensor

_STEPS = 65535


def packed_weights(weights: Tensor) -> str:
    """Weights in [0, 1] as 16-bit square roots, deflated, in base64.

        weight ≈ (code / 65535)²

    The square root keeps the digits of small weights. A code moves by one where that is needed
    to keep the weight on its side of a rounding boundary, so that a reader who prints three
    decimals prints those of the original.

    >>> import torch
    >>> codes = torch.frombuffer(bytearray(unpacked(packed_weights(torch.tensor([0.0, 0.25])))),
    ...                          dtype=torch.uint16)
    >>> codes.tolist()
    [0, 32768]
    """
    exact = weights.detach().double().cpu().clamp(0, 1).flatten()
    codes = (exact.sqrt() * _STEPS).round()
    printed = _thousandths(exact)
    (wrong,) = (_thousandths((codes / _STEPS) ** 2) != printed).nonzero(as_tuple=True)
    up = _thousandths(((codes[wrong] + 1) / _STEPS) ** 2) == printed[wrong]
    codes[wrong] += torch.where(up, 1.0, -1.0)
    return packed(codes.clamp(0, _STEPS).to(torch.uint16))


def _thousandths(values: Tensor) -> Tensor:
    """The three decimals that are printed; halves go up, as in the page's own printing."""
    return (values * 1000 + 0.5).floor()


def packed_channels(parts: list[Tensor]) -> tuple[str, list[float]]:
    """Vectors of either sign as 16-bit shares of the largest magnitude of their part."""
    peaks = [float(part.abs().max()) if part.numel() else 0.0 for part in parts]
    codes = [
        (part.detach().double().cpu() / (peak or 1.0) * 32767).round().to(torch.int16).flatten()
        for part, peak in zip(parts, peaks, strict=True)
    ]
    return packed(torch.cat(codes)), peaks


def packed(numbers: Tensor) -> str:
    """The numbers' own bytes (little-endian), deflated, in base64."""
    # numpy has no byte order of its own here: every platform torch runs on is little-endian
    return base64.b64encode(zlib.compress(numbers.contiguous().numpy().tobytes(), 6)).decode()


def unpacked(text: str) -> bytes:
    """The bytes that `packed` took."""
    return zlib.decompress(base64.b64decode(text))
