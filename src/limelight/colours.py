"""The colours of every view: one table of numbers for terminal, figures and page.

In both palettes zero has the colour of the background and one the strongest contrast to it.
Lightness is linear in the value (in OKLab), so equal steps look equal and the order survives
colour blindness and grey printing; hue is secondary.
"""

from __future__ import annotations

from typing import NamedTuple

Rgb = tuple[int, int, int]


class Palette(NamedTuple):
    """The named colours of one scheme; `scale` and `signed` are evenly spaced anchors."""

    paper: str
    """the background"""
    raised: str
    """panels on the background"""
    ink: str
    muted: str
    line: str
    query: str
    """marks queries"""
    key: str
    """marks keys"""
    scale: tuple[Rgb, ...]
    """weights, 0 to 1"""
    signed: tuple[Rgb, ...]
    """numbers of either sign, −1 to 1"""


# fmt: off
LIGHT = Palette(
    paper="#f7f6f2", raised="#fdfcfa", ink="#1b2127", muted="#5d666f", line="#e2e0d8",
    query="#b4500a", key="#0b6b66",
    scale=(
        (250, 250, 247), (235, 239, 208), (217, 228, 170), (199, 216, 141), (179, 204, 112),
        (156, 193, 88), (129, 182, 87), (100, 170, 87), (69, 158, 87), (32, 145, 95),
        (7, 129, 99), (2, 114, 99), (5, 98, 94), (3, 83, 88), (0, 69, 80), (0, 56, 71),
        (1, 42, 62),
    ),
    signed=(
        (180, 87, 0), (201, 125, 77), (218, 165, 133), (233, 203, 186), (244, 243, 240),
        (189, 215, 225), (136, 187, 205), (78, 159, 185), (8, 129, 159),
    ),
)

DARK = Palette(
    paper="#0f1317", raised="#161b20", ink="#e9ecea", muted="#98a3ab", line="#2a3138",
    query="#f5ac55", key="#7fd8c4",
    scale=(
        (19, 24, 29), (24, 36, 45), (27, 49, 61), (28, 63, 77), (26, 78, 91), (23, 94, 103),
        (21, 110, 112), (25, 127, 119), (29, 144, 122), (46, 161, 121), (73, 177, 115),
        (101, 192, 104), (133, 206, 88), (168, 219, 61), (198, 230, 90), (223, 242, 124),
        (247, 254, 157),
    ),
    signed=(
        (250, 147, 78), (193, 118, 70), (139, 90, 61), (87, 64, 49), (39, 38, 36),
        (51, 74, 82), (62, 111, 128), (71, 151, 177), (77, 193, 229),
    ),
)
# fmt: on


def shade(value: float, scale: tuple[Rgb, ...] = LIGHT.scale) -> Rgb:
    """The colour of a value in [0, 1], between the two anchors that surround it.

    >>> shade(0.0), shade(1.0)
    ((250, 250, 247), (1, 42, 62))
    """
    position = min(max(value, 0.0), 1.0) * (len(scale) - 1)
    below = min(int(position), len(scale) - 2)
    fraction = position - below
    mixed = (a + (b - a) * fraction for a, b in zip(scale[below], scale[below + 1], strict=True))
    red, green, blue = (round(channel) for channel in mixed)
    return red, green, blue
