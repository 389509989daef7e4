"""Numbers packed small enough to travel inside a page, and exact enough to be read off it."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch
from torch import Tensor

_STEPS = 65535
_ESCAPE = 255


def packed_weights(weights: Tensor, *, fine: bool = True) -> dict[str, Any]:
    """Weights in [0, 1], such that a reader who prints three decimals prints those of the original.

    Fine: as 16-bit square roots, (code / 65535)², which keep the digits of small weights; a code
    moves by one where that keeps the weight on its side of a rounding boundary. All low bytes, then
    all high bytes. Else: as thousandths, a byte each; 255 is an escape for a larger number, which
    follows after these bytes: all low bytes, then all high bytes. Nearly all weights of a long text
    are small, so this is a tenth of the size.

    >>> import torch
    >>> coarse = packed_weights(torch.tensor([0.0004, 0.0125, 0.9]), fine=False)
    >>> coarse["kind"], unpacked(coarse["data"])  # 0, 13, and 900 after an escape
    ('thousandths', b'\\x00\\r\\xff\\x84\\x03')
    """
    exact = weights.detach().double().cpu().clamp(0, 1).flatten()
    printed = _thousandths(exact)
    if not fine:
        thousandths = printed.to(torch.int32)
        large = thousandths[thousandths >= _ESCAPE]
        codes = thousandths.clamp(max=_ESCAPE).to(torch.uint8)
        return {"kind": "thousandths", "data": packed(torch.cat([codes, *_bytes(large)]))}
    codes = (exact.sqrt() * _STEPS).round()
    (wrong,) = (_thousandths((codes / _STEPS) ** 2) != printed).nonzero(as_tuple=True)
    up = _thousandths(((codes[wrong] + 1) / _STEPS) ** 2) == printed[wrong]
    codes[wrong] += torch.where(up, 1.0, -1.0)
    codes = codes.clamp(0, _STEPS).to(torch.int32)
    return {"kind": "fine", "data": packed(torch.cat(_bytes(codes)))}


def packed_shades(weights: Tensor) -> str:
    """Weights in [0, 1] as the nearest of 256 square roots: enough for a thumbnail."""
    return packed((weights.detach().cpu().clamp(0, 1).sqrt() * 255).round().to(torch.uint8))


def _bytes(codes: Tensor) -> list[Tensor]:
    """Low bytes and high bytes apart: similar bytes next to one another deflate better."""
    return [(codes & 255).to(torch.uint8), (codes >> 8).to(torch.uint8)]


def _thousandths(values: Tensor) -> Tensor:
    """The three decimals that are printed; halves go up, as in the page's own printing."""
    return (values * 1000 + 0.5).floor()


def packed_channels(parts: list[Tensor]) -> tuple[str, list[float]]:
    """Vectors of either sign as 16-bit shares of the largest magnitude of their part."""
    parts = [part.detach().double().cpu().nan_to_num(0.0, 0.0, 0.0) for part in parts]
    peaks = [float(part.abs().max()) if part.numel() else 0.0 for part in parts]
    codes = [
        (part / (peak or 1.0) * 32767).round().to(torch.int16).flatten()
        for part, peak in zip(parts, peaks, strict=True)
    ]
    return packed(torch.cat(codes)), peaks


def packed(numbers: Tensor) -> str:
    """The numbers' own bytes (little-endian on all our platforms), deflated, in base64."""
    # The fastest level for a long text: higher ones would take longer than the model itself.
    level = 6 if numbers.numel() < 1 << 15 else 1
    data = zlib.compress(numbers.contiguous().numpy().tobytes(), level)
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    """The bytes that `packed` took."""
    return zlib.decompress(base64.b64decode(text))
