"""Numbers packed small enough to travel inside a page, and exact enough to be read off it."""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

import torch
from torch import Tensor

_STEPS = 65535
_SMALL = 0.03
_FAINT = 1e-4
_ALONE = 255


class Packed(NamedTuple):
    """Weights as a page takes them; a weight is (code / 65535)²."""

    levels: list[int]
    """codes that many small weights share"""
    data: str
    """for each weight a byte, which names a level or, as 255, says that its code stands alone;
    then the low bytes of these codes, then their high bytes"""


def packed_weights(weights: Tensor, parts: int = 0) -> Packed:
    """Weights in [0, 1] as 16-bit square roots, which keep the digits of small weights.

    A code moves by one where that is needed to keep the weight on its side of a rounding boundary,
    so that a reader who prints three decimals prints those of the original.

    Of a long text nearly all weights are small, and there are many. With `parts`, half a thousandth
    is cut into so many, and the small weights that fall into the same part are told by their mean:
    by a byte each, which deflates well. With 0 all codes stand alone.

    >>> import torch
    >>> levels, data = packed_weights(torch.tensor([0.0, 0.25]))
    >>> levels, unpacked(data)  # two that stand alone: 0 and 0x8000
    ([], b'\\xff\\xff\\x00\\x00\\x00\\x80')
    """
    exact = weights.detach().double().cpu().clamp(0, 1).flatten()
    small = exact < (min(_SMALL, 250 * 0.0005 / parts) if parts else -1.0)
    told = exact.masked_scatter(small, _means(exact[small], parts))
    codes = (told.sqrt() * _STEPS).round()
    printed = _thousandths(exact)
    (wrong,) = (_thousandths((codes / _STEPS) ** 2) != printed).nonzero(as_tuple=True)
    up = _thousandths(((codes[wrong] + 1) / _STEPS) ** 2) == printed[wrong]
    codes[wrong] += torch.where(up, 1.0, -1.0)
    codes = codes.clamp(0, _STEPS).to(torch.int32)
    levels, places = codes[small].unique(return_inverse=True)
    names = torch.full(codes.shape, _ALONE, dtype=torch.uint8)
    names[small] = places.to(torch.uint8)
    alone = codes[~small]
    lows, highs = (alone & 255).to(torch.uint8), (alone >> 8).to(torch.uint8)
    return Packed(levels.tolist(), packed(torch.cat([names, lows, highs])))


def _means(small: Tensor, parts: int) -> Tensor:
    """Each weight as the mean of those in its part of half a thousandth; nothing stays nothing."""
    if not small.numel():
        return small
    thousandths = _thousandths(small)
    within = ((small * 1000 + 0.5 - thousandths) * 2 * parts).floor()
    places = (thousandths * 2 * parts + within).long() + 2
    # logarithmic colours begin at the faint ones: these are told apart from the rest
    places[small < _FAINT] = 1
    places[small == 0] = 0
    return (places.bincount(small) / places.bincount().clamp(min=1))[places]


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
    # numbers repeat by value rather than in runs, which is what Z_FILTERED is for
    deflate = zlib.compressobj(6, strategy=zlib.Z_FILTERED)
    data = deflate.compress(numbers.contiguous().numpy().tobytes()) + deflate.flush()
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    """The bytes that `packed` took."""
    return zlib.decompress(base64.b64decode(text))
