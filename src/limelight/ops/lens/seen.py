"""What a lens saw: the statistics, and any weight recomputed on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from limelight.checks import FLOATING, check_plain, check_rank, check_whole
from limelight.errors import DtypeError, OptionError
from limelight.ops.backends.tiled import TILE
from limelight.ops.lens.sources import Recomputed, Source, StoredWeights, as_index
from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics, check_lens
from limelight.ops.lens.statistics import statistics_of_weights
from limelight.ops.lens.tensor_like import TensorLike
from limelight.ops.masks.counts import counts
from limelight.ops.masks.region import Extent
from limelight.ops.problem import Problem

LIMIT = 1 << 30
"""Bytes of dense weights that are computed unless the caller sets another limit: 1 GB."""

_ROWS = "rows must be a list of whole numbers, which count the queries, or a slice"
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_Statistic = TypeVar("_Statistic")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Seen(TensorLike):
    """What a lens saw of one attention call.

    The statistics that the lens requested are exact; any other raises. Any part of the weights is
    recomputed on demand from the query and the key, by the formulas of the specification.

    A Seen holds on to the call's query, key and value (references without gradient, no copies; do
    not change them in place) unless the lens says `keep=False`. It stands for the dense weights
    wherever a tool expects them: `torch.as_tensor(seen)`, `numpy.asarray(seen)`, `seen[0, 3]`.

    >>> import torch, limelight as ll
    >>> q = k = v = torch.eye(3).view(1, 1, 3, 3)
    >>> out, seen = ll.attend(q, k, v, scale=3.0, mask=ll.causal(), lens=ll.Lens(top=1))
    >>> seen.top.indices[0, 0, :, 0]
    tensor([0, 1, 2])
    >>> seen.rows([1])[0, 0]
    tensor([[0.0474, 0.9526, 0.0000]])
    """

    extent: Extent
    """b, h, i, j of the weights"""
    lens: Lens
    statistics: Statistics
    source: Source | None
    """what weights are recomputed from"""

    @classmethod
    def of_problem(cls, problem: Problem, lens: Lens, statistics: Statistics) -> Seen:
        """What was seen of a call."""
        return cls(
            problem.extent, lens, statistics, Recomputed.keep(problem) if lens.keep else None
        )

    @classmethod
    def of_weights(
        cls, weights: Tensor, lens: Lens | None = None, value: Tensor | None = None
    ) -> Seen:
        """What a lens would have seen, from dense weights `b h i j` computed elsewhere.

        The scores behind them are unknown: `lse` is 0 and `max_score` the largest log weight.
        """
        check_rank("weights", weights, "b h i j")
        if weights.dtype not in FLOATING:
            raise DtypeError(f"weights are {weights.dtype}, expected float32 or another float type")
        lens = Lens() if lens is None else lens
        check_lens(lens)
        weights = check_plain("weights", weights).detach()
        statistics = statistics_of_weights(weights, lens, value)
        return cls(
            Extent(*weights.shape), lens, statistics, StoredWeights(weights) if lens.keep else None
        )

    @property
    def shape(self) -> torch.Size:
        """Of the dense weights: `b h i j`."""
        return torch.Size(self.extent)

    @property
    def dtype(self) -> torch.dtype:
        """Of the statistics and of the weights."""
        return self.lse.dtype

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.lse.device

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of each query's scores: `b h i`."""
        return self.statistics.lse

    @property
    def max_score(self) -> Tensor:
        """The largest score of each query: `b h i`."""
        return self._recorded("max_score", self.statistics.max_score)

    @property
    def top(self) -> Links:
        """Each query's strongest links: `b h i k`."""
        return self._recorded("top", self.statistics.top)

    @property
    def entropy(self) -> Tensor:
        """How spread out each query's weights are, in nats: `b h i`."""
        return self._recorded("entropy", self.statistics.entropy)

    @property
    def distance(self) -> Tensor:
        """The mean distance each query looks: `b h i`."""
        return self._recorded("distance", self.statistics.distance)

    @property
    def columns(self) -> Tensor:
        """Each query's weight on the chosen keys: `b h i c`."""
        return self._recorded("columns", self.statistics.columns)

    @property
    def band(self) -> Tensor:
        """Each query's mass on the keys around it: `b h i`."""
        return self._recorded("band", self.statistics.band)

    @property
    def received(self) -> Tensor:
        """What each key gets from all queries together: `b h j`."""
        return self._recorded("received", self.statistics.received)

    @property
    def map(self) -> Pooled:
        """The weights pooled to cells: `b h rows columns`."""
        return self._recorded("map", self.statistics.map)

    @property
    def value_top(self) -> Links:
        """The links that carry most, by ‖weight · value‖: `b h i k`."""
        return self._recorded("value_top", self.statistics.value_top)

    def _recorded(self, name: str, statistic: _Statistic | None) -> _Statistic:
        if statistic is None:
            raise OptionError(f"{name} was not recorded: {self.lens!r} does not request it")
        return statistic

    def rows(self, rows: Sequence[int] | slice | Tensor) -> Tensor:
        """The weights of some queries, recomputed: `b h r j`."""
        return self._weights(self._row_index(rows), range(self.extent.j))

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """The weights of a run of queries on a run of keys, recomputed: `b h r c`."""
        if not isinstance(columns, slice) or columns.step not in (None, 1):
            raise OptionError(f"columns must be a run of keys such as slice(0, 8), found {columns}")
        start, stop, _ = columns.indices(self.extent.j)
        return self._weights(self._row_index(rows), range(start, max(start, stop)))

    def dense(self, limit: int = LIMIT) -> Tensor:
        """All weights, recomputed: `b h i j`; refused where they need more than `limit` bytes."""
        check_whole("limit", limit, 0)
        b, h, i, j = self.extent
        size = b * h * i * j * self.dtype.itemsize
        if size > limit:
            raise OptionError(
                f"the dense weights {tuple(self.extent)} need {_bytes_text(size)}, more than "
                f"limit = {_bytes_text(limit)}; ask for rows(...) or tile(...), or raise the limit"
            )
        return self.rows(slice(None))

    def in_tiles(self, run: int = 1) -> Iterator[tuple[int, Tensor]]:
        """All weights, some queries at a time, recomputed: the first query's number and `b h r j`.

        A tile holds about two million weights, however many keys there are, and whole runs of
        `run` queries.

        >>> seen = Seen.of_weights(torch.eye(5).view(1, 1, 5, 5))
        >>> [(first, tile.shape) for first, tile in seen.in_tiles()]
        [(0, torch.Size([1, 1, 5, 5]))]
        """
        b, h, i, j = self.extent
        step = max(1, TILE // max(1, b * h * j * run)) * run
        for first in range(0, i, step):
            yield first, self.rows(slice(first, first + step))

    def __getitem__(self, index: Any) -> Tensor:
        """Dense weights at an index; only those of the row and head that it names are computed."""
        part, rest = self, list(index) if isinstance(index, tuple) else [index]
        for axis, size in enumerate(self.extent[:2]):
            if axis >= len(rest) or type(rest[axis]) is not int:
                break
            if not -size <= rest[axis] < size:
                raise IndexError(f"index {rest[axis]} is out of bounds for {size}")
            position = rest[axis] % size
            part, rest[axis] = (part.heads([position]) if axis else part.batch_row(position)), 0
        return part.dense()[tuple(rest)]

    def heads(self, heads: Sequence[int]) -> Seen:
        """What was seen of some of the heads, in the order given."""
        chosen = counts("head", heads)
        for head in chosen:
            if not 0 <= head < self.extent.h:
                raise OptionError(f"heads names head {head}, expected 0 to {self.extent.h - 1}")
        if chosen == tuple(range(self.extent.h)):
            return self  # all of them: picking would copy, and unshare the keys of grouped heads
        return self._part(self.extent._replace(h=len(chosen)), heads=list(chosen))

    def batch_row(self, row: int) -> Seen:
        """What was seen of one row of the batch, as a batch of one."""
        check_whole("row", row, 0, self.extent.b - 1)
        return self._part(self.extent._replace(b=1), row=row)

    def _part(self, extent: Extent, heads: list[int] | None = None, row: int | None = None) -> Seen:
        def pick(statistic: Any) -> Any:
            if isinstance(statistic, Links | Pooled):
                return type(statistic)(*map(pick, statistic))
            if statistic is not None and heads is not None:
                statistic = statistic[:, as_index(heads)]
            return statistic if statistic is None or row is None else statistic[row : row + 1]

        statistics = Statistics(*map(pick, self.statistics))
        source = None if self.source is None else self.source.part(heads=heads, row=row)
        return Seen(extent, self.lens, statistics, source)

    def _row_index(self, rows: Sequence[int] | slice | Tensor) -> Tensor:
        size = self.extent.i
        if isinstance(rows, slice):
            return torch.arange(size, device=self.device)[rows]
        try:
            index = torch.as_tensor(rows, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(f"{_ROWS}, found {rows!r}") from error
        # An empty list becomes a tensor of floats.
        if index.ndim != 1 or (len(index) and index.dtype not in _WHOLE):
            raise OptionError(f"{_ROWS}, found {rows!r}")
        index = index.long()
        for row in index.tolist():
            if not -size <= row < size:
                raise OptionError(f"rows names query {row}, expected one of the i = {size} queries")
        return index % max(size, 1)

    def _weights(self, rows: Tensor, columns: range) -> Tensor:
        if self.source is None:
            raise OptionError(
                "the weights cannot be recomputed: the lens has keep=False (no query, no key)"
            )
        return self.source.weights(rows, columns)

    def __repr__(self) -> str:
        b, h, i, j = self.extent
        return f"Seen(b={b}, h={h}, i={i}, j={j}, {self.lens!r})"


def _bytes_text(size: int) -> str:
    """A size as people write it, a GB being 2³⁰ bytes.

    >>> _bytes_text(LIMIT), _bytes_text(1536), _bytes_text(10)
    ('1.0 GB', '1.5 KB', '10 bytes')
    """
    for power, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size} bytes"
