"""The long-text panel: a pooled map, exact tiles, statistics, and which tokens attend to a word."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from limelight.errors import OptionError
from limelight.explorer.frames import frame
from limelight.explorer.worker import Job
from limelight.insight.summary import background
from limelight.ops.backends.reference import scores
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed
from limelight.ops.masks.region import Region
from limelight.seeing.recording.recording import Recording

MAX_LINKS = 60
_EXACT_SUMS = 64
"""Tokens attending to a word whose sums are exact: more than the page lists."""
_CELLS = 1 << 22
"""Weights that are computed at a time."""
_NEAR = 3
"""Tokens between query and key up to which a link says little about a long text."""


def overview_frame(recording: Recording, layer: int, head: int) -> bytes:
    """Of one head: the map, entropy and received along the axes, and its strongest links.

    `mean` and `max` r c: the weights of each cell. `entropy` i in bits; `received` j.
    `links` n 2 with `weights` n: query and key of links between distant tokens, none background.
    """
    seen, position = recording.seen(layer), recording.head_position(head)
    queries, keys, weights = _links(recording, layer, position)
    return frame(
        {"layer": layer, "head": head, "rows": seen.extent.i, "columns": seen.extent.j},
        {
            "mean": seen.map.mean[0, position].float(),
            "max": seen.map.max[0, position].float(),
            "entropy": seen.entropy[0, position].float() / torch.log(torch.tensor(2.0)),
            "received": seen.received[0, position].float(),
            "links": torch.stack([queries, keys], dim=-1).to(torch.int32),
            "weights": weights,
        },
    )


def tile_frame(
    recording: Recording, layer: int, head: int, top: int, left: int, size: int, run: int
) -> bytes:
    """Weights from row `top` and column `left`, `size` cells each way: `weights` r c.

    With `run` 1 the exact weights; otherwise the largest of each cell of `run` × `run` tokens,
    normalised by the recorded log-sum-exp, which is precise enough for colours.
    """
    seen, position = recording.seen(layer), recording.head_position(head)
    _, _, i, j = seen.extent
    if top >= i or left >= j:
        raise OptionError(
            f"top and left must lie within the {i} × {j} weights, found {top}, {left}"
        )
    one_head = seen.heads([position])
    columns = slice(left, min(j, left + size * run))
    pieces: list[Tensor] = []
    # A few rows at a time: a wide tile covers too many weights to hold at once.
    step = max(run, 512 // run * run)
    for first in range(top, min(i, top + size * run), step):
        rows = slice(first, min(i, first + step, top + size * run))
        if run == 1:
            weights = one_head.tile(rows, columns)
        else:
            weights = weights_between(one_head, torch.arange(i)[rows], torch.arange(j)[columns])
        pieces.append(_pooled(weights[0].float(), run))
    weights = torch.cat(pieces, dim=0)
    return frame({"top": top, "left": left, "run": run}, {"weights": weights})


def tokens_frame(
    recording: Recording, layer: int, head: int, tokens: Sequence[int], job: Job
) -> bytes:
    """Which tokens attend to some tokens, `from` i, and what those attend to, `to` j: sums.

    The sums are over all these tokens, such as every occurrence of a word. The largest of `from`,
    which the page prints, are recomputed exactly from whole rows.
    """
    seen, position = recording.seen(layer), recording.head_position(head)
    _, _, i, j = seen.extent
    for token in tokens:
        if token >= min(i, j):
            raise OptionError(f"tokens must be from 0 to {min(i, j) - 1}, found {token}")
    one_head, indices = seen.heads([position]), torch.tensor(tokens)
    from_each, to_each = torch.zeros(i), torch.zeros(j)
    for rows in torch.arange(i).split(max(1, _CELLS // len(indices))):
        job.pause()
        from_each[rows] = weights_between(one_head, rows, indices)[0, 0].float().sum(-1).cpu()
    for rows in indices.split(max(1, _CELLS // j)):
        job.pause()
        to_each += weights_between(one_head, rows, torch.arange(j))[0, 0].float().sum(0).cpu()
    largest = from_each.topk(min(_EXACT_SUMS, i)).indices.tolist()
    from_each[largest] = one_head.rows(largest)[0, 0][:, indices].float().sum(-1).cpu()
    return frame({"tokens": list(tokens)}, {"from": from_each, "to": to_each})


def weights_between(seen: Seen, rows: Tensor, keys: Tensor) -> Tensor:
    """exp(score − recorded log-sum-exp) of some queries and keys: `b h r c`.

    Exact up to the rounding of the scores, at the cost of these columns only: exact weights need
    the sum over whole rows.
    """
    source = seen.source
    if not isinstance(source, Recomputed):
        return seen.rows(rows)[..., keys]
    b, h, i, j = seen.extent
    keys = keys.to(seen.device)
    region = Region(
        slice(0, b), slice(0, h), rows, rows + (j - i), keys, j - 1 - keys, rows, keys
    )  # fmt: skip
    lse = seen.lse[:, :, rows, None]
    weights = torch.exp(scores(source.problem, region) - lse)
    return weights.masked_fill(lse == -torch.inf, 0.0)


def _pooled(weights: Tensor, run: int) -> Tensor:
    if run == 1:
        return weights[0]
    rows, columns = weights.shape[1:]
    padded = pad(weights, (0, -columns % run, 0, -rows % run))
    return max_pool2d(padded, run)[0]


def _links(recording: Recording, layer: int, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and weights of a head's strongest links, none near or to background tokens."""
    seen = recording.seen(layer)
    weights = seen.top.weights[0, position].float().cpu()
    keys = seen.top.indices[0, position].cpu()
    queries = torch.arange(keys.shape[0])[:, None].expand_as(keys)
    hidden = torch.zeros(seen.extent.j, dtype=torch.bool)
    hidden[sorted(background(recording))] = True
    content = (keys >= 0) & ~hidden[keys.clamp(min=0)]
    if recording.queries is recording.tokens:
        content &= ((queries - keys).abs() > _NEAR) & ~hidden[queries]
    weights = weights.where(content, 0.0).flatten()
    best, indices = weights.topk(min(MAX_LINKS, weights.numel()))
    best, indices = best[best > 0], indices[best > 0]
    return queries.flatten()[indices], keys.flatten()[indices], best
