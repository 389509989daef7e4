"""The long-text panel's numbers: a pooled map, exact tiles, strips, and who looks at a word."""

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
_LISTED = 64
"""Of who looks at a word: more than the page lists."""
_CELLS = 1 << 22
"""Weights that are computed at a time."""
_NEAR = 3
"""Tokens that stand closer say little of a long text."""


def overview_frame(recording: Recording, layer: int, head: int) -> bytes:
    """Of one head: the map, entropy and received along the axes, and its strongest links.

    `mean` and `max` r c: the weights of each cell. `entropy` i in bits; `received` j.
    `links` n 2 with `weights` n: query and key of links between plain tokens that stand apart.
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
    """Weights from row `top` and column `left` on, `size` cells each way: `weights` r c.

    With `run` 1 the exact weights; else the largest of each cell of `run` × `run` tokens, which
    are only looked at as colours: their rows are normalised by the recorded log-sum-exp.
    """
    seen, position = recording.seen(layer), recording.head_position(head)
    _, _, i, j = seen.extent
    if top >= i or left >= j:
        raise OptionError(f"the tile at {top}, {left} lies outside of the {i} × {j} weights")
    part = seen.heads([position])
    columns = slice(left, min(j, left + size * run))
    pieces: list[Tensor] = []
    # a few rows at a time: of a wide tile even the weights under it would be many
    step = max(run, 512 // run * run)
    for first in range(top, min(i, top + size * run), step):
        rows = slice(first, min(i, first + step, top + size * run))
        if run == 1:
            weights = part.tile(rows, columns)
        else:
            weights = weights_between(part, torch.arange(i)[rows], torch.arange(j)[columns])
        pieces.append(_pooled(weights[0].float(), run))
    weights = torch.cat(pieces, dim=0)
    return frame({"top": top, "left": left, "run": run}, {"weights": weights})


def tokens_frame(
    recording: Recording, layer: int, head: int, tokens: Sequence[int], job: Job
) -> bytes:
    """Which tokens attend to some tokens, `from` i, and what those attend to, `to` j: sums.

    Over all places of a word, however many. The strongest of `from`, which a person reads as
    numbers, are computed again from whole rows.
    """
    seen, position = recording.seen(layer), recording.head_position(head)
    _, _, i, j = seen.extent
    for token in tokens:
        if token >= min(i, j):
            raise OptionError(f"tokens names {token}, expected one of the {min(i, j)} tokens")
    part, chosen = seen.heads([position]), torch.tensor(tokens)
    received, paid = torch.zeros(i), torch.zeros(j)
    for rows in torch.arange(i).split(max(1, _CELLS // len(chosen))):
        job.pause()
        received[rows] = weights_between(part, rows, chosen)[0, 0].float().sum(-1).cpu()
    for rows in chosen.split(max(1, _CELLS // j)):
        job.pause()
        paid += weights_between(part, rows, torch.arange(j))[0, 0].float().sum(0).cpu()
    best = received.topk(min(_LISTED, i)).indices.tolist()
    received[best] = part.rows(best)[0, 0][:, chosen].float().sum(-1).cpu()
    return frame({"tokens": list(tokens)}, {"from": received, "to": paid})


def weights_between(seen: Seen, rows: Tensor, keys: Tensor) -> Tensor:
    """exp(score − recorded log-sum-exp) of some queries and keys: `b h r c`.

    Off by the rounding of the scores, but no row is summed: exact weights take whole rows, however
    few of their columns are needed.
    """
    source = seen.source
    if not isinstance(source, Recomputed):
        return seen.rows(rows)[..., keys]
    b, h, i, j = seen.extent
    keys = keys.to(seen.device)
    region = Region(
        slice(0, b), slice(0, h), rows, rows + (j - i), keys, j - 1 - keys, rows, keys
    )  # fmt: skip
    base = seen.lse[:, :, rows, None]
    weights = torch.exp(scores(source.problem, region) - base)
    return weights.masked_fill(base == -torch.inf, 0.0)


def _pooled(weights: Tensor, run: int) -> Tensor:
    if run == 1:
        return weights[0]
    rows, columns = weights.shape[1:]
    whole = pad(weights, (0, -columns % run, 0, -rows % run))
    return max_pool2d(whole, run)[0]


def _links(recording: Recording, layer: int, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """The strongest links of a head that go beyond neighbours and background tokens."""
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
    best, places = weights.topk(min(MAX_LINKS, weights.numel()))
    linked = best > 0
    return queries.flatten()[places][linked], keys.flatten()[places][linked], best[linked]
