"""The specification over some rows at a time: memory linear in the sequence, on any device.

A tile holds some queries against all keys, so the softmax of each row is complete at once. For the
gradient each tile is recomputed when its turn comes, so no more than one is ever held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from limelight.ops.backends.protocol import Extras
from limelight.ops.backends.reference import attend_region
from limelight.ops.kernels import transformed
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.lens.statistics import Collector
from limelight.ops.masks.region import Region
from limelight.ops.problem import Problem

NAME = "tiled"
REASON = "the PyTorch form of linear memory serves every device and precision"

TILE = 1 << 21
"""Weights in a tile: 8 MB in float32, enough work to hide Python's overhead on any machine."""


def why_not(problem: Problem, extras: Extras) -> str | None:
    """None: the loop over tiles serves every call."""
    del problem, extras
    return None


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output `b h i e` in the query's dtype, and what normalises the rows, `b h i`."""
    if torch.compiler.is_compiling():
        # Imported only here: it brings the compiler, which takes a second.
        from limelight.ops.backends.untraced import untraced_sweep

        return untraced_sweep(problem)
    return sweep(problem, None)


def attend_with_statistics(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """The same with the statistics of a fitted lens, in the same sweep."""
    collector = Collector(lens, problem.extent)
    output, _ = sweep(problem, collector)
    return output, collector.statistics()


def sweep(problem: Problem, collector: Collector | None) -> tuple[Tensor, Tensor]:
    """Output and normaliser, tile by tile; a collector takes the statistics of each."""
    run = _checkpointed if problem.needs_grad and not transformed() else attend_region
    batches: list[tuple[Tensor, Tensor]] = []
    for heads_of_batch in _regions(problem):
        heads: list[tuple[Tensor, Tensor]] = []
        for rows in heads_of_batch:
            heads.append(_join([run(problem, region, collector) for region in rows], 2))
        batches.append(_join(heads, 1))
    return _join(batches, 0)


def _checkpointed(
    problem: Problem, region: Region, collector: Collector | None
) -> tuple[Tensor, Tensor]:
    """A tile that is not kept for the backward pass, but recomputed there."""
    collectors = [collector]  # of the first of the two runs

    def tile() -> tuple[Tensor, Tensor]:
        return attend_region(problem, region, collectors.pop() if collectors else None)

    run: Callable[..., tuple[Tensor, Tensor]] = checkpoint
    return run(tile, use_reentrant=False, preserve_rng_state=False)


def _join(tiles: list[tuple[Tensor, Tensor]], axis: int) -> tuple[Tensor, Tensor]:
    if len(tiles) == 1:
        return tiles[0]
    first, second = zip(*tiles, strict=True)
    return torch.cat(first, axis), torch.cat(second, axis)


def _regions(problem: Problem) -> Iterator[Iterator[Iterator[Region]]]:
    """Tiles of whole rows that cover the call, each of about `TILE` weights; at least one.

    By runs of batch rows, then of heads (whole groups of them), then of queries.
    """
    extent, device = problem.extent, problem.query.device
    b, h, i, j = extent
    group = max(h // max(problem.key.shape[1], 1), 1)
    rows = _fit(TILE, group * j, i)
    groups = _fit(TILE, group * j * rows, h // group)
    batches = _fit(TILE, group * j * rows * groups, b)

    def of_heads(batch: slice) -> Iterator[Iterator[Region]]:
        return (of_rows(batch, heads) for heads in _runs(h, groups * group))

    def of_rows(batch: slice, heads: slice) -> Iterator[Region]:
        return (Region.at(extent, batch, heads, run, slice(0, j), device) for run in _runs(i, rows))

    return (of_heads(batch) for batch in _runs(b, batches))


def _fit(budget: int, each: int, most: int) -> int:
    return max(1, min(most, budget // max(each, 1)))


def _runs(total: int, size: int) -> Iterator[slice]:
    for start in range(0, max(total, 1), size):
        yield slice(start, min(start + size, total))
