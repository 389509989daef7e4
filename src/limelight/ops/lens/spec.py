"""The lens: what to record about the weights while attention runs, without keeping the weights.

    out, seen = attend(q, k, v, lens=Lens(top=8, entropy=True, received=True, map=(128, 128)))

Everything is exact: equal to what the dense weights `b h i j` would give, in memory linear in the
sequence. The weights are those before dropout, which is noise added in training.

What an implementation returns
------------------------------
`attend_with_statistics(problem, fitted lens) -> (out, Statistics)` of a backend. With w = weights,
s = scores (with scale, softcap, bias and slopes applied; −∞ where masked) and p_i = i + J − I:

    always      lse          b h i     log Σ_j exp s_ij; −∞ in a row that may attend to nothing
                max_score    b h i     max_j s_ij; −∞ in such a row
    top=k       top          b h i k   the k keys of largest w_ij, largest first: weights and
                                       int64 indices. Equal weights may come in any order. A key
                                       without weight is no link: weight 0, index −1
    entropy     entropy      b h i     lse − Σ_j w_ij s_ij, in nats; 0 in an empty row
    distance    distance     b h i     Σ_j w_ij |p_i − j|
    columns     columns      b h i c   w_ij at each of the c chosen keys, in the order given
    band=n      band         b h i     Σ_j w_ij over |p_i − j| ≤ n
    received    received     b h j     Σ_i w_ij
    map=(R, C)  map          b h R C   w pooled: mean over each cell (masked links count as 0),
                                       and the largest weight in it
    value_top   value_top    b h i k   the k keys of largest w_ij·‖v_j‖ (v_j of the head's own
                                       group), largest first; without weight as above

Cells are disjoint and cover everything: row i lies in cell ⌊i·R/I⌋, so cell r starts at row
⌈r·I/R⌉; columns alike. `Lens.fit` makes R and C at most I and J, and at least 1; a map of no rows
or no columns is zeros. All floats are in the working type: float64 for float64 input, float32 for
all others; the statistics carry no gradient. Sizes of zero give tensors of those sizes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from torch import Tensor

from limelight.checks import check_whole
from limelight.errors import OptionError
from limelight.ops.masks.region import Extent

MOST_LINKS = 1 << 20
"""Links of a query: memory is allocated for all that are requested, however few keys there are."""


@dataclass(frozen=True, slots=True)
class Lens:
    """What to record about the weights of an attention call.

    Args:
        top: the number of strongest links to keep for each query.
        entropy: how spread out each query's weights are, in nats.
        distance: the mean distance |p_i − j| each query looks, p_i its position among the keys.
        columns: keys whose weight is recorded for each query, such as `(0,)` for the first token;
            negative ones count from the end.
        band: the share of each query that falls on keys at most this far from it.
        received: how much attention each key gets from all queries together.
        map: the weights pooled to `(rows, columns)` cells, by mean and by maximum.
        value_top: as `top`, of ‖weight · value‖: what a link carries rather than how much it is
            looked at. Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102
        keep: hold on to query, key and value (no copies), so that `Seen` can recompute any weight.

    >>> Lens(top=4, entropy=True)
    Lens(top=4, entropy=True)
    """

    top: int = 0
    entropy: bool = False
    distance: bool = False
    columns: tuple[int, ...] = ()
    band: int | None = None
    received: bool = False
    map: tuple[int, int] | None = None
    value_top: int = 0
    keep: bool = True

    def __post_init__(self) -> None:
        for name in ("top", "value_top"):
            check_whole(name, getattr(self, name), 0, MOST_LINKS)
        for name in ("entropy", "distance", "received", "keep"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, found {getattr(self, name)!r}")
        if self.band is not None:
            check_whole("band", self.band, 0)
        _check_cells(self.map)
        try:
            columns = tuple(self.columns)
        except (TypeError, RuntimeError):  # a tensor of one number or a nested one has no length
            raise OptionError(
                f"columns must be a sequence of keys, found {self.columns!r}"
            ) from None
        object.__setattr__(self, "columns", tuple(map(_whole_column, columns)))

    def __repr__(self) -> str:
        shown = [
            f"{option.name}={getattr(self, option.name)!r}"
            for option in fields(self)
            if getattr(self, option.name) != option.default
        ]
        return f"Lens({', '.join(shown)})"

    @property
    def is_bare(self) -> bool:
        """Whether it records nothing but the log-sum-exp, which attention gives anyway."""
        return self == Lens(keep=self.keep)

    def fit(self, extent: Extent) -> Lens:
        """The lens for a call of this extent: columns counted from 0, maps no finer than it."""
        columns = tuple(column + extent.j if column < 0 else column for column in self.columns)
        for original, column in zip(self.columns, columns, strict=True):
            if not 0 <= column < extent.j:
                raise OptionError(
                    f"columns names key {original}, expected one of the j = {extent.j} keys"
                )
        return replace(
            self,
            columns=columns,
            band=None if self.band is None else min(self.band, extent.i + extent.j),
            map=_fit_cells(self.map, extent),
        )


class Links(NamedTuple):
    """Each query's strongest links, strongest first; index −1 and weight 0 where there are none."""

    weights: Tensor
    """b h i k"""
    indices: Tensor
    """b h i k, int64"""


class Pooled(NamedTuple):
    """The weights pooled to cells."""

    mean: Tensor
    """b h rows columns"""
    max: Tensor
    """b h rows columns"""


class Statistics(NamedTuple):
    """What an implementation returns; the table at the top of this file defines each."""

    lse: Tensor
    max_score: Tensor | None = None
    """None only where nothing but the log-sum-exp was recorded"""
    top: Links | None = None
    entropy: Tensor | None = None
    distance: Tensor | None = None
    columns: Tensor | None = None
    band: Tensor | None = None
    received: Tensor | None = None
    map: Pooled | None = None
    value_top: Links | None = None


def _check_cells(cells: tuple[int, int] | None) -> None:
    if cells is None:
        return
    if not isinstance(cells, tuple) or len(cells) != 2:
        raise OptionError(f"map must be (rows, columns), found {cells!r}")
    for size in cells:
        check_whole("map size", size)


def _fit_cells(cells: tuple[int, int] | None, extent: Extent) -> tuple[int, int] | None:
    if cells is None:
        return None
    return min(cells[0], max(extent.i, 1)), min(cells[1], max(extent.j, 1))


def check_lens(lens: Lens) -> None:
    """Raise unless `lens` is a Lens."""
    if not isinstance(lens, Lens):
        raise OptionError(f"lens must be a Lens, found {type(lens).__name__}")


def _whole_column(column: int) -> int:
    try:
        number = None if isinstance(column, bool) else operator.index(column)
    except TypeError:  # no index at all, or a tensor of several
        number = None
    if number is None:
        raise OptionError(f"columns must be whole numbers, found {column!r}")
    return number
