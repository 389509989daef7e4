"""What the kernels record for a lens: buffers that they fill, and the statistics in them.

What belongs to a query (top links, entropy, ...) is recorded in the sweep over its scores. What
belongs to a key or to a cell of a map needs final weights: those of a few rows are kept until the
rows are done, and summed then.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics
from limelight.ops.lens.statistics import cell_sizes
from limelight.ops.masks.region import Extent

_PIECES = 32
"""About how many jobs a call that sums over queries is cut into, whatever the number of threads, so
that its sums are the same on all machines."""
_FLOAT32_QUERIES = 512
"""Queries whose weights are summed in float32 before they are added to a float64 sum."""


class Buffers(NamedTuple):
    """The tensors and sizes that the kernels take by name, and fill."""

    rows: dict[str, Tensor | int]
    """what belongs to queries"""
    pooled: dict[str, Tensor | int] | None
    """what belongs to keys and cells; None where nothing of the kind is requested"""

    @classmethod
    def of(cls, extent: Extent, lens: Lens, value: Tensor) -> Buffers:
        """Empty buffers for what a fitted lens records."""
        pooled = None if _by_rows_only(lens) else _pooled_buffers(extent, lens, value)
        return cls(_row_buffers(extent, lens), pooled)

    def statistics(self, lse: Tensor, extent: Extent) -> Statistics:
        """What the kernels wrote."""
        statistics = _row_statistics(lse, self.rows)
        if self.pooled is None:
            return statistics
        return statistics._replace(**_pooled_statistics(extent, self.pooled))


def _by_rows_only(lens: Lens) -> bool:
    """Whether all that a lens records belongs to single rows."""
    return not (lens.received or lens.map or lens.value_top)


def _row_buffers(extent: Extent, lens: Lens) -> dict[str, Tensor | int]:
    b, h, i, _ = extent

    def empty(*last: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(b, h, i, *last, dtype=dtype)

    buffers: dict[str, Tensor | int] = {"max_score": empty()}
    for name in ("entropy", "distance"):
        if getattr(lens, name):
            buffers[name] = empty()
    if lens.band is not None:
        buffers |= {"band": empty(), "band_reach": lens.band}
    if lens.columns:
        count = len(lens.columns)
        keys = torch.tensor(lens.columns)
        buffers |= {"columns": empty(count), "column_keys": keys, "column_count": count}
    if lens.top:
        keys = empty(lens.top, dtype=torch.int64)
        buffers |= {"top": empty(lens.top), "top_keys": keys, "top_count": lens.top}
    return buffers


def _row_statistics(lse: Tensor, buffers: dict[str, Tensor | int]) -> Statistics:
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


def _pooled_buffers(extent: Extent, lens: Lens, value: Tensor) -> dict[str, Tensor | int]:
    b, h, i, j = extent
    rows, columns = lens.map or (-(-i // _FLOAT32_QUERIES) or 1, 1)
    buffers = _pieces(extent, rows) | {"rows": rows, "columns": columns}
    if lens.map:
        buffers["map_sum"] = torch.zeros(b, h, rows, columns, dtype=torch.float64)
        buffers["map_max"] = torch.zeros(b, h, rows, columns)
    if lens.received:
        pieces = int(buffers["piece_count"])
        buffers["received"] = torch.zeros(b, h, pieces, j, dtype=torch.float64)
    if lens.value_top:
        count = lens.value_top
        links = torch.zeros(b, h, i, count), torch.full((b, h, i, count), -1)
        buffers |= {"top": links[0], "top_keys": links[1], "top_count": count}
        buffers["norms"] = torch.linalg.vector_norm(value.float(), dim=-1).contiguous()
    return buffers


def _pieces(extent: Extent, rows: int) -> dict[str, Tensor | int]:
    """Cuts of the queries between rows of cells; a job of the kernel is one piece of one head."""
    count = max(1, min(rows, -(-_PIECES // max(extent.b * extent.h, 1))))
    cells = torch.arange(count + 1) * rows // count
    return {"pieces": -(-(cells * extent.i) // rows), "piece_count": count}


def _pooled_statistics(extent: Extent, buffers: dict[str, Tensor | int]) -> dict[str, Any]:
    statistics: dict[str, Any] = {}
    received, total = _tensor(buffers, "received"), _tensor(buffers, "map_sum")
    if received is not None:
        statistics["received"] = received.sum(2).float()
    if total is not None:
        heights = cell_sizes(extent.i, int(buffers["rows"]), total.device)
        area = heights[:, None] * cell_sizes(extent.j, int(buffers["columns"]), total.device)
        mean = (total / area.clamp_min(1)).float()
        statistics["map"] = Pooled(mean, cast(Tensor, buffers["map_max"]))
    if "top" in buffers:
        links = Links(cast(Tensor, buffers["top"]), cast(Tensor, buffers["top_keys"]))
        statistics["value_top"] = links
    return statistics


def _tensor(buffers: dict[str, Tensor | int], name: str) -> Tensor | None:
    buffer = buffers.get(name)
    return buffer if isinstance(buffer, Tensor) else None
