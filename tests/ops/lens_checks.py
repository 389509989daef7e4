"""Calls, masks and the comparison with dense weights, for tests of the lens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import limelight as ll
from limelight.ops.backends import reference
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.ops.problem import check_problem

FULL = Lens(
    top=5,
    entropy=True,
    distance=True,
    columns=(0, 2, -1),
    band=3,
    received=True,
    map=(7, 5),
    value_top=4,
)


def tensors(b=2, h=4, g=2, i=19, j=23, d=8, e=6, dtype=torch.float32):
    torch.manual_seed(b + h + i + j)
    return (
        torch.randn(b, h, i, d, dtype=torch.float64).to(dtype),
        torch.randn(b, g, j, d, dtype=torch.float64).to(dtype),
        torch.randn(b, g, j, e, dtype=torch.float64).to(dtype),
    )


def dense64(q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, Tensor]:
    """Scores and weights of the specification, in float64."""
    if isinstance(options.get("bias"), Tensor):
        options["bias"] = options["bias"].double()
    problem = check_problem(q.double(), k.double(), v.double(), **options)
    scores = reference.scores(problem)
    return scores, reference.normalise(problem, scores)[0]


def check_pooled(pooled, dense: np.ndarray, cells: tuple[int, int], tolerance: float) -> None:
    b, h, rows, columns = dense.shape
    cells = (min(cells[0], rows), min(cells[1], columns))
    assert pooled.mean.shape == pooled.max.shape == (b, h, *cells)
    row_cell = np.arange(rows) * cells[0] // max(rows, 1)
    column_cell = np.arange(columns) * cells[1] // max(columns, 1)
    for r in range(cells[0]):
        for c in range(cells[1]):
            cell = dense[:, :, row_cell == r][..., column_cell == c].reshape(b, h, -1)
            np.testing.assert_allclose(pooled.mean[:, :, r, c], cell.mean(-1), atol=tolerance)
            np.testing.assert_allclose(pooled.max[:, :, r, c], cell.max(-1), atol=tolerance)


def check_links(links, dense: Tensor, k: int, tolerance: float) -> None:
    """The k largest of each row, largest first, each with its own index.

    A key without weight is no link: the index is −1 where fewer than k keys have a weight. A weight
    below the normal numbers may be rounded to 0 or not.
    """
    b, h, i, j = dense.shape
    assert links.weights.shape == links.indices.shape == (b, h, i, k)
    assert links.indices.dtype == torch.int64
    kept = min(k, j)
    best = torch.zeros(b, h, i, k, dtype=torch.float64)
    best[..., :kept] = dense.topk(kept).values
    torch.testing.assert_close(links.weights.double(), best, atol=tolerance, rtol=0)
    is_link = links.indices >= 0
    assert torch.equal(is_link, links.weights > 0)
    assert (links.weights.diff(dim=-1) <= 0).all()
    count = is_link.sum(-1)
    assert (count >= (dense >= torch.finfo(links.weights.dtype).tiny).sum(-1).clamp_max(k)).all()
    assert (count <= (dense > 0).sum(-1).clamp_max(k)).all()
    if j:
        expected = dense.gather(-1, links.indices.clamp_min(0)).masked_fill(~is_link, 0.0)
        torch.testing.assert_close(links.weights.double(), expected, atol=tolerance, rtol=0)
    for row in links.indices.reshape(-1, k).tolist():
        keys = [index for index in row if index >= 0]
        assert len(set(keys)) == len(keys)


def check_seen(seen: Seen, q: Tensor, k: Tensor, v: Tensor, tolerance=1e-5, **options) -> None:
    """Every statistic of the full lens against its formula on the float64 dense weights."""
    scores, weights = dense64(q, k, v, **options)
    b, h, i, j = weights.shape
    lens = seen.lens

    def close(found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
        torch.testing.assert_close(found.double(), expected, atol=tolerance * scale, rtol=tolerance)

    close(seen.lse, torch.logsumexp(scores, -1))
    close(seen.max_score, scores.amax(-1) if j else torch.full((b, h, i), -torch.inf).double())
    logs = torch.where(weights > 0, weights.log(), 0.0)
    close(seen.entropy, -(weights * logs).sum(-1))
    away = (torch.arange(i)[:, None] + (j - i) - torch.arange(j)).abs()
    close(seen.distance, (weights * away).sum(-1), scale=max(j, 1))
    close(seen.columns, weights[..., list(lens.columns)])
    close(seen.band, (weights * (away <= lens.band)).sum(-1))
    close(seen.received, weights.sum(-2))
    check_links(seen.top, weights, lens.top, tolerance)
    check_pooled(seen.map, weights.numpy(), lens.map, tolerance)
    norms = v.double().norm(dim=-1).repeat_interleave(h // v.shape[1], 1)[:, :, None]
    check_links(seen.value_top, weights * norms, lens.value_top, tolerance * 4)
    close(seen.dense(), weights)


MASKS = {
    "none": None,
    "causal": ll.causal(),
    "upper left": ll.causal(0),
    "window": ll.window(4, 2),
    "dilated": ll.dilated(3, 2, 1),
    "padding": ll.padding([5, 23]),
    "left padding": ll.padding([5, 23], side="left") & ll.causal(),
    "empty rows": ll.padding([0, 3], side="left") & ll.causal(),
    "documents": ll.documents([4, 0, 15], [7, 0, 16]),
    "causal documents": ll.documents([4, 15], [7, 16], inside=ll.causal() & ll.window(3)),
    "anchors": ll.anchors([0, 9]) | ll.window(2),
    "blocks": ll.blocks(
        torch.rand(4, 4, 3, generator=torch.Generator().manual_seed(1)) > 0.4, (5, 8)
    ),
    "dense": torch.rand(2, 1, 19, 23, generator=torch.Generator().manual_seed(2)) > 0.5,
    "dense by head": torch.rand(4, 19, 1, generator=torch.Generator().manual_seed(3)) > 0.3,
}
