"""What the kernels note for a lens: buffers that they fill, and the statistics in them.

What belongs to a query (top links, entropy, ...) is noted while its scores pass by. What belongs to
a key or to a cell of a map needs final weights: those of a few rows are kept until the rows are
done, and gathered then.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics
from limelight.ops.masks.region import Extent

_PIECES = 32
"""A call that sums over queries is cut into about so many jobs, whatever the number of threads, so
that its sums are the same on all machines."""
_STEADY = 512
"""Queries whose weights are added up in float32 before they go to a float64 sum."""

Buffers = dict[str, Tensor | int]


class Sweeps(NamedTuple):
    """What the kernels fill: the statistics of rows, and of keys and cells, each in a sweep."""

    rows: Buffers
    pooled: list[Buffers]
    """where two maps have unlike cells, in a sweep of their own"""

    @classmethod
    def of(cls, extent: Extent, lens: Lens, value: Tensor) -> Sweeps:
        """Room for what a fitted lens asks for."""
        return cls(_row_buffers(extent, lens), _pooled_buffers(extent, lens, value))

    def statistics(self, lse: Tensor, extent: Extent) -> Statistics:
        """What was noted."""
        statistics = _row_statistics(lse, self.rows)
        for buffers in self.pooled:
            statistics = statistics._replace(**_pooled_statistics(extent, buffers))
        return statistics


def by_rows_only(lens: Lens) -> bool:
    """Whether all that a lens asks for is known of each row by itself."""
    return not (lens.received or lens.map or lens.value_map or lens.value_top)


def scaled(statistics: Statistics, share: Tensor, total: Tensor) -> Statistics:
    """The statistics of rows whose weights are each multiplied by the row's share."""

    def times(table: Tensor | None) -> Tensor | None:
        return None if table is None else table * share.view(*share.shape, *(1,) * (table.ndim - 3))

    top, entropy = statistics.top, statistics.entropy
    if top is not None:
        weights = top.weights * share[..., None]
        top = Links(weights, top.indices.masked_fill(weights == 0, -1))
    if entropy is not None:  # Σ −(a·w)·log(a·w) = a·Σ −w·log w − a·log a
        entropy = entropy * share - torch.special.xlogy(share, share)
    return statistics._replace(
        lse=total,
        top=top,
        entropy=entropy,
        distance=times(statistics.distance),
        columns=times(statistics.columns),
        band=times(statistics.band),
    )


def _row_buffers(extent: Extent, lens: Lens) -> Buffers:
    b, h, i, _ = extent

    def room(*last: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(b, h, i, *last, dtype=dtype)

    buffers: Buffers = {"max_score": room()}
    for name in ("entropy", "distance"):
        if getattr(lens, name):
            buffers[name] = room()
    if lens.band is not None:
        buffers |= {"band": room(), "band_reach": lens.band}
    if lens.columns:
        count = len(lens.columns)
        keys = torch.tensor(lens.columns)
        buffers |= {"columns": room(count), "column_keys": keys, "column_count": count}
    if lens.top:
        keys = room(lens.top, dtype=torch.int64)
        buffers |= {"top": room(lens.top), "top_keys": keys, "top_count": lens.top}
    return buffers


def _row_statistics(lse: Tensor, buffers: Buffers) -> Statistics:
    top = _tensor(buffers, "top"), _tensor(buffers, "top_keys")
    return Statistics(
        lse=lse,
        max_score=cast(Tensor, buffers["max_score"]),
        top=None if top[0] is None or top[1] is None else Links(top[0], top[1]),
        entropy=_tensor(buffers, "entropy"),
        distance=_tensor(buffers, "distance"),
        columns=_tensor(buffers, "columns"),
        band=_tensor(buffers, "band"),
    )


def _pooled_buffers(extent: Extent, lens: Lens, value: Tensor) -> list[Buffers]:
    maps = [(name, getattr(lens, name)) for name in ("map", "value_map") if getattr(lens, name)]
    grids = list(dict.fromkeys(cells for _, cells in maps))
    if not grids and (lens.received or lens.value_top):
        grids = [(-(-extent.i // _STEADY) or 1, 1)]
    norms = None
    if lens.value_top or lens.value_map:
        norms = torch.linalg.vector_norm(value.float(), dim=-1).contiguous()
    pooled: list[Buffers] = []
    for rows, columns in grids:
        names = [name for name, cells in maps if cells == (rows, columns)]
        grid = _pieces(extent, rows) | {"rows": rows, "columns": columns}
        pooled.append(grid | _cells(extent, names, rows, columns))
        if len(pooled) == 1:
            pooled[0] |= _sums(extent, lens, int(grid["piece_count"]))
        if norms is not None:
            pooled[-1]["norms"] = norms
    return pooled


def _pieces(extent: Extent, rows: int) -> Buffers:
    """Cuts of the queries between rows of cells; a job of the kernel is one piece of one head."""
    count = max(1, min(rows, -(-_PIECES // max(extent.b * extent.h, 1))))
    cells = torch.arange(count + 1) * rows // count
    return {"pieces": -(-(cells * extent.i) // rows), "piece_count": count}


def _cells(extent: Extent, maps: list[str], rows: int, columns: int) -> Buffers:
    buffers: Buffers = {}
    for name in maps:
        short = "map" if name == "map" else "value"
        cells = (extent.b, extent.h, rows, columns)
        buffers[f"{short}_sum"] = torch.zeros(cells, dtype=torch.float64)
        buffers[f"{short}_max"] = torch.zeros(cells)
    return buffers


def _sums(extent: Extent, lens: Lens, pieces: int) -> Buffers:
    b, h, i, j = extent
    buffers: Buffers = {}
    if lens.received:
        buffers["received"] = torch.zeros(b, h, pieces, j, dtype=torch.float64)
    if lens.value_top:
        count = lens.value_top
        links = torch.zeros(b, h, i, count), torch.full((b, h, i, count), -1)
        buffers |= {"top": links[0], "top_keys": links[1], "top_count": count}
    return buffers


def _pooled_statistics(extent: Extent, buffers: Buffers) -> dict[str, Any]:
    noted: dict[str, Any] = {}
    received = _tensor(buffers, "received")
    if received is not None:
        noted["received"] = received.sum(2).float()
    if "top" in buffers:
        noted["value_top"] = Links(cast(Tensor, buffers["top"]), cast(Tensor, buffers["top_keys"]))
    heights = _cell_sizes(extent.i, int(buffers["rows"]))
    area = heights[:, None] * _cell_sizes(extent.j, int(buffers["columns"]))
    for short, name in (("map", "map"), ("value", "value_map")):
        total = _tensor(buffers, f"{short}_sum")
        if total is not None:
            mean = (total / area.clamp_min(1)).float()
            noted[name] = Pooled(mean, cast(Tensor, buffers[f"{short}_max"]))
    return noted


def _tensor(buffers: Buffers, name: str) -> Tensor | None:
    buffer = buffers.get(name)
    return buffer if isinstance(buffer, Tensor) else None


def _cell_sizes(size: int, cells: int) -> Tensor:
    return (-(-(torch.arange(cells + 1) * size) // cells)).diff()
