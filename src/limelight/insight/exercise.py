"""A fresh worked example with friendly numbers: a sheet to fill in, and its solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from limelight.checks import check_whole
from limelight.errors import OptionError
from limelight.fields import checked
from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.insight.worked.example import HeadMatrices, Layer, Worked
from limelight.insight.worked.writing import toml
from limelight.ops.masks.band import causal
from limelight.rng import generator_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MaskName = Literal["none", "causal"]

_WORDS = (
    ("birds", "sing", "at", "dawn", "while", "we", "still", "sleep"),
    ("the", "old", "clock", "stopped", "when", "snow", "fell", "again"),
    ("she", "reads", "every", "letter", "twice", "before", "it", "burns"),
    ("rivers", "carry", "sand", "to", "the", "sea", "each", "spring"),
)
_TRIES = 200
_CANDIDATES = 256
"""Matrices that are drawn at once."""


@dataclass(frozen=True, eq=False)
class Exercise(Result):
    """A fresh worked example, as a sheet and as its solution."""

    example: Worked
    name: str

    def sheet(self) -> str:
        """The TOML to fill in, with `_` for each number."""
        note = (
            f"Fill in each _ and check with: limelight worked {self.name}.toml --check\n"
            "Q = X·W_query, K = X·W_key, V = X·W_value; scores = Q·Kᵀ; scaled = scores / √d;\n"
            "weights = softmax of each row; output = weights·V. Three decimals are enough."
        )
        return toml(self.example, blank=True, note=note)

    def solution(self) -> str:
        """The same TOML with every number."""
        return toml(self.example, note=f"The solution of {self.name}.")

    def table(self) -> Table:
        """The weights of the correct solution."""
        return self.example.table()

    def figure(self) -> Figure:
        """The weights of the correct solution, as heat maps."""
        return self.example.figure()

    def values(self) -> Mapping[str, Any]:
        """The sheet, its solution and every step."""
        return {
            "name": self.name,
            "sheet": self.sheet(),
            "solution": self.solution(),
            **self.example.values(),
        }


@checked
def exercise(
    tokens: int = 3, size: int = 2, seed: int = 0, *, heads: int = 1, mask: MaskName = "none"
) -> Exercise:
    """A new exercise with friendly numbers: one decimal, no ties, clearly different weights.

    Numbers are drawn from the seed until each row of scores has a clear winner, no two scores of a
    row are equal, and no row of weights is nearly uniform.

    Args:
        tokens: 2 to 8.
        size: channels of a token and of a head, 1 to 6.
        seed: the same seed gives the same exercise.
        heads: 1 to 4; their outputs are concatenated.
        mask: "none" or "causal".

    >>> birds = exercise(tokens=3, size=2, seed=7)
    >>> birds.example.tokens, birds.example.x.shape
    (('birds', 'sing', 'at'), torch.Size([3, 2]))
    """
    for option, value, least, most in (
        ("tokens", tokens, 2, 8),
        ("size", size, 1, 6),
        ("heads", heads, 1, 4),
    ):
        if not least <= check_whole(option, value) <= most:
            raise OptionError(f"{option} must be {least} to {most}, found {value}")
    if mask not in ("none", "causal"):
        raise OptionError(f"mask must be 'none' or 'causal', found {mask!r}")
    rng = generator_for(seed, tokens, size, heads, mask == "causal")
    words = _WORDS[int(torch.randint(len(_WORDS), (), generator=rng))][:tokens]
    rule = causal() if mask == "causal" else None
    for _ in range(_TRIES):
        x = torch.randint(0, 13, (tokens, size), generator=rng).double() / 10
        matrices: list[HeadMatrices] = []
        while len(matrices) < heads and (head := _draw_head(x, rng)) is not None:
            matrices.append(head)
        if len(matrices) < heads:
            continue
        layer = Layer(tuple(matrices), mask=rule, mask_name="causal: no token sees a later one")
        shape = f"{tokens}x{size}" + (f"x{heads}" if heads > 1 else "")
        name = f"exercise-{shape}{'-causal' if rule else ''}-{seed}"
        return Exercise(Worked(" ".join(words), words, x, (layer,)), name)
    raise OptionError(
        f"no friendly numbers for tokens = {tokens}, size = {size}, seed = {seed}: try another seed"
    )


def _draw_head(x: Tensor, rng: torch.Generator) -> HeadMatrices | None:
    """Random matrices that give these tokens friendly numbers; None if no candidate does."""
    size = x.shape[1]
    w_query, w_key, w_value = (_integer_matrices(size, rng) for _ in range(3))
    scores = (x @ w_query) @ (x @ w_key).mT
    weights = torch.softmax(scores / size**0.5, dim=-1)
    # scores less than 0.05 apart look tied, and a weight of 0.000 looks like a mistake
    friendly = (scores.sort(dim=-1).values.diff(dim=-1) > 0.045).all(-1).all(-1)
    friendly &= (weights.amax(-1) > 1.3 * weights.amin(-1)).all(-1)
    friendly &= (weights >= 0.001).all(-1).all(-1)
    for matrix in (w_query, w_key, w_value):
        friendly &= torch.linalg.det(matrix).abs() > 0.5
    if not bool(friendly.any()):
        return None
    first = int(friendly.int().argmax())
    return HeadMatrices(w_query[first], w_key[first], w_value[first])


def _integer_matrices(size: int, rng: torch.Generator) -> Tensor:
    """Square matrices of small whole numbers: permutations, with ±1 added to some cells."""
    order = torch.rand(_CANDIDATES, size, generator=rng).argsort(-1)
    permutations = torch.nn.functional.one_hot(order, size).double()
    signs = torch.tensor([-1.0, 1, 1], dtype=torch.float64)[
        torch.randint(3, (_CANDIDATES, size, size), generator=rng)
    ]
    return permutations + signs * (torch.rand(_CANDIDATES, size, size, generator=rng) < 1 / size)
