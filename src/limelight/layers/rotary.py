"""Rotary positions: query and key are rotated by an angle that grows with their position.

Channel t is paired with channel t + d/2 ("halves"), or channel 2t with 2t + 1 ("interleaved", as in
Meta's own Llama files); the pair at position p is rotated by p·θ_t:

    θ_t = base^(−2t/d)          t = 0 … d/2 − 1
    rotated = x · cos(pθ) + swap(x) · sin(pθ)        swap(x) = [−second half, first half]

so that query·key depends only on the distance between their positions.
Su et al. 2021, https://arxiv.org/abs/2104.09864

A scaling stretches the angles of a trained model to longer texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from limelight.checks import (
    check_number,
    check_positive,
    check_tensor,
    check_whole,
    shape_text,
)
from limelight.errors import OptionError, ShapeError
from limelight.fields import check_fields, check_value

Pairs = Literal["halves", "interleaved"]
"""Which two channels are rotated together: t and t + d/2, or 2t and 2t + 1."""


class Rotation(NamedTuple):
    """The rotation of queries and keys: both `b n 1 d`, or `1 n 1 d` for every row alike."""

    cos: Tensor
    sin: Tensor
    """with the minus sign of `swap` inside: −sin for the first channel of a pair"""
    pairs: Pairs = "halves"


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate `b n h d` by its positions; arithmetic in the rotation's float32, dtype as `x`."""
    if rotation.pairs == "halves":
        swapped = x.roll(x.shape[-1] // 2, -1)
    else:
        swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * rotation.cos, swapped, rotation.sin).to(x.dtype)


@dataclass(frozen=True)
class Scaling:
    """A rule that stretches the angles θ; `factor` says by how much."""

    kind: ClassVar[str] = "none"
    factor: float

    def __post_init__(self) -> None:
        check_fields(self, "rotary scaling ")
        check_number("rotary scaling factor", self.factor, "a number of at least 1", low=1.0)

    def angles(self, base: float, size: int, longest: int) -> Tensor:
        """θ for a head of `size` channels, in texts of up to `longest` tokens: `d/2`, float32."""
        raise NotImplementedError

    def amplitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Positions are divided by the factor: θ / factor."""

    kind: ClassVar[str] = "linear"

    def angles(self, base: float, size: int, longest: int) -> Tensor:
        return plain_angles(base, size) / self.factor


@dataclass(frozen=True)
class DynamicScaling(Scaling):
    """Beyond the trained length n₀ the base grows with the length n of the text (dynamic NTK):

    base' = base · (factor·n/n₀ − factor + 1)^(d/(d−2))
    """

    kind: ClassVar[str] = "dynamic"
    trained: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rotary scaling trained", self.trained)

    def angles(self, base: float, size: int, longest: int) -> Tensor:
        if size <= 2:
            raise OptionError(
                f"dynamic rotary scaling needs a head of over 2 channels, found {size}"
            )
        stretch = self.factor * max(longest, self.trained) / self.trained - (self.factor - 1)
        return plain_angles(base * stretch ** (size / (size - 2)), size)


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """Fast-turning channels stay, slow ones are stretched, with a ramp between.

    A channel that turns more than `fast` times within the trained length stays as it is, one that
    turns less than `slow` times is divided by the factor; cos and sin are multiplied by
    0.1·ln(factor) + 1 unless `attention` gives another number.
    Peng et al. 2023, https://arxiv.org/abs/2309.00071
    """

    kind: ClassVar[str] = "yarn"
    trained: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    whole: bool = True
    """whether the ends of the ramp are whole channel numbers"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rotary scaling trained", self.trained)
        check_positive("rotary scaling slow", self.slow)
        check_number(
            "rotary scaling fast", self.fast, f"at least slow = {self.slow}", low=self.slow
        )
        if self.attention is not None:
            check_positive("rotary scaling attention", self.attention)

    def angles(self, base: float, size: int, longest: int) -> Tensor:
        def channel(turns: float) -> float:
            return size * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = channel(self.fast), channel(self.slow)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        # A ramp of no width would divide by zero; any small width makes it a step.
        width = high - low or 0.001
        stretched = ((torch.arange(size // 2, device="cpu") - low) / width).clamp(0, 1)
        theta = plain_angles(base, size)
        return theta / self.factor * stretched + theta * (1 - stretched)

    def amplitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.attention is None else self.attention


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Long waves are stretched, short ones stay, with a smooth transition between (Llama 3.1).

    A wave is long when it is longer than trained/low, short when shorter than trained/high.
    """

    kind: ClassVar[str] = "llama3"
    trained: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rotary scaling trained", self.trained)
        if not 0 < self.low < self.high:
            raise OptionError(
                f"rotary scaling needs 0 < low < high, found low = {self.low}, high = {self.high}"
            )

    def angles(self, base: float, size: int, longest: int) -> Tensor:
        theta = plain_angles(base, size)
        turns = self.trained * theta / (2 * math.pi)
        unscaled = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - unscaled) * theta / self.factor + unscaled * theta


SCALINGS: dict[str, type[Scaling]] = {
    rule.kind: rule for rule in (LinearScaling, DynamicScaling, YarnScaling, Llama3Scaling)
}
"""Every rule by its name in a config file."""


def plain_angles(base: float, size: int) -> Tensor:
    """θ_t = base^(−2t/d): `d/2`, float32, on the CPU whatever the default device."""
    return 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size)


class Rotary(nn.Module):
    """Rotary position embedding: the rotations for given positions; has no weights.

    rotated_p = x · cos(pθ) + swap(x) · sin(pθ), θ_t = base^(−2t/d)

    >>> import torch, limelight as ll
    >>> from limelight.layers.rotary import rotate
    >>> rotary = ll.Rotary(4)
    >>> rotate(torch.tensor([1.0, 0, 0, 0]).expand(1, 3, 1, 4), rotary(torch.arange(3)))[0, :, 0]
    tensor([[ 1.0000,  0.0000,  0.0000,  0.0000],
            [ 0.5403,  0.0000,  0.8415,  0.0000],
            [-0.4161,  0.0000,  0.9093,  0.0000]])
    """

    def __init__(
        self,
        size: int,
        *,
        base: float = 10000.0,
        scaling: Scaling | None = None,
        pairs: Pairs = "halves",
    ) -> None:
        super().__init__()
        if pairs not in ("halves", "interleaved"):
            raise OptionError(f"pairs must be 'halves' or 'interleaved', found {pairs!r}")
        self.pairs: Pairs = pairs
        if check_whole("size", size, 1, 1 << 20) % 2:
            raise OptionError(f"rotary needs an even number of head channels, found {size}")
        base = check_number("rotary base", base, "above 1", above=1.0)
        check_value("scaling", scaling, Scaling | None)
        self.size, self.base, self.scaling = size, base, scaling
        # A plain attribute, not a buffer: model.to(torch.bfloat16) must not round the angles.
        self._angles = self._make_angles(0)

    def _make_angles(self, longest: int) -> Tensor:
        if self.scaling is None:
            return plain_angles(self.base, self.size)
        return self.scaling.angles(self.base, self.size, longest)

    def forward(self, positions: Tensor) -> Rotation:
        """The rotation of `positions`, whole numbers `b n` or `n`."""
        check_tensor("positions", positions)
        if positions.ndim not in (1, 2):
            raise ShapeError(f"positions has shape {shape_text(positions)}, expected (b, n) or (n)")
        if isinstance(self.scaling, DynamicScaling):
            theta = self._make_angles(int(positions.max()) + 1).to(positions.device)
        else:
            theta = self._angles = self._angles.to(positions.device)
        angles = positions.float()[..., None] * theta
        if angles.ndim == 2:
            angles = angles[None]
        amplitude = 1.0 if self.scaling is None else self.scaling.amplitude()
        cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
        join = torch.cat if self.pairs == "halves" else _interleaved
        return Rotation(
            join((cos, cos), dim=-1)[:, :, None], join((-sin, sin), dim=-1)[:, :, None], self.pairs
        )

    def extra_repr(self) -> str:
        return f"size={self.size}, base={self.base}, scaling={self.scaling}"


def _interleaved(parts: tuple[Tensor, Tensor], dim: int) -> Tensor:
    """The channels of both alternately: 2t from the first, 2t + 1 from the second."""
    return torch.stack(parts, dim=dim).flatten(dim - 1)
