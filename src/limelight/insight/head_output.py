"""What a head wrote into a token: from which tokens, from which sources, in which directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.fields import checked
from limelight.insight.residual import decompose
from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.labels import visible
from limelight.seeing.recording.picks import Pick
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLACES = 64
"""Tokens that are taken apart at once: every source has a vector for each."""


@dataclass(frozen=True, eq=False)
class HeadOutput(Result):
    """What one head added to one token's vector, split. n source tokens, s sources, r directions.

    A part's share is its length along what was written as a whole: shares add up to ‖written‖, and
    a negative one pulls the other way.
    """

    text: str
    model: str
    layer: int
    head: int
    query: str
    tokens: tuple[str, ...]
    written: Tensor
    """m: Σ_j w_ij W_o v_j, before the output's bias and what follows"""
    weights: Tensor
    """n: w_ij, the query's weights"""
    norms: Tensor
    """n: ‖w_ij W_o v_j‖, what each token contributes"""
    sources: tuple[str, ...]
    parts: Tensor
    """n s: the share of each token and source; adds up to ‖written‖"""
    directions: Tensor
    """n r: the part of each token along the head's output directions, those written most first.
    They are the left singular vectors u of W_o W_v, orthogonal: Σ_j directions_jr = written · u_r,
    and Σ_r (written · u_r)² = ‖written‖²"""
    gains: Tensor
    """r: the singular values, by how much W_o W_v stretches what lies in a direction"""
    reach: str
    """how far back the sources go"""

    @property
    def size(self) -> float:
        """The length of what was written."""
        return float(self.written.norm())

    def strongest(self, n: int = 10) -> list[tuple[str, str, float]]:
        """The n pairs of token and source with the largest shares: token, source, share."""
        best = self.parts.abs().flatten().topk(min(n, self.parts.numel())).indices.tolist()
        width = len(self.sources)
        return [
            (self.tokens[at // width], self.sources[at % width], float(self.parts.flatten()[at]))
            for at in best
        ]

    def table(self) -> Table:
        title = (
            f'{self.model} layer {self.layer} head {self.head} wrote {self.size:.3f} into "'
            f'{self.query}"; {self.reach}'
        )
        shares = self.parts.sum(1)
        rows = [
            (
                token, float(self.weights[j]), float(self.norms[j]), float(shares[j]),
                self.sources[int(self.parts[j].argmax())], float(self.parts[j].max()),
            )
            for j, token in enumerate(self.tokens)
        ]  # fmt: skip
        columns = ("from", "weight", "taken", "share", "mostly of", "its share")
        return Table(columns, rows, title)

    def direction_table(self, n: int = 5) -> Table:
        """The directions written most: how much, by which tokens."""
        rows: list[tuple[int, float, float, str]] = []
        for r in range(min(n, self.directions.shape[1])):
            along = self.directions[:, r]
            most = along.abs().topk(min(3, len(along))).indices.tolist()
            shares = ", ".join(f"{self.tokens[j]} {float(along[j]):+.2f}" for j in most)
            rows.append((r, float(self.gains[r]), float(along.sum()), shares))
        return Table(("direction", "gain", "written", "by"), rows, "Through which value directions")

    def figure(self) -> Figure:
        """Tokens down, sources of their values across."""
        from limelight.insight.parts_figure import Axis, draw_parts, largest

        query = visible(self.query, 20)
        return draw_parts(
            self.parts,
            Axis("token", self.tokens, largest(self.norms, 40)),
            Axis("source of its value", self.sources, largest(self.parts.abs().sum(0), 24)),
            f'layer {self.layer} head {self.head}: what it wrote into "{query}" '
            f"(length {self.size:.2f})",
            "length along what was written",
        )

    def values(self) -> dict[str, Any]:
        names = (
            "text", "model", "layer", "head", "query", "tokens", "size", "weights", "norms",
            "sources", "parts", "directions", "gains", "reach",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@checked
def wrote(
    rec: Recording,
    layer: int,
    head: int,
    query: Pick,
    *,
    model: nn.Module | None = None,
) -> HeadOutput:
    """Split what a head wrote into a token by source token, and by where their values come from.

        written = Σ_j w_ij W_o v_j = Σ_j Σ_s w_ij W_o W_v x_j,s     s: token, position, heads, FFNs

    with the scale of norms held fixed, as `why` splits the score: exact for models that normalise
    before each layer; of those that normalise after it the parts of the block before.

    Args:
        rec: a recording by an encoder or decoder of ours, of a text or of token ids.
        layer: counted from 0.
        head: counted from 0.
        query: the token that is written into.
        model: the model of the recording; loaded by its name unless given.

    >>> import limelight as ll
    >>> rec = ll.look("The animal slept because it was tired.")
    >>> output = ll.wrote(rec, 3, 1, "it")
    >>> output.tokens[int(output.norms.argmax())]
    'animal'
    >>> abs(float(output.parts.sum()) - output.size) < 1e-4
    True
    """
    run = decompose(rec, layer, head, model)
    i = run.place(query)
    weights, output_map = run.weights(i), run.output_map()
    written = output_map @ run.output(i)
    along = output_map.T @ (written / written.norm().clamp(min=1e-30))
    # by the QR of W_o the directions span all that the head can write, its bias included
    basis, triangular = torch.linalg.qr(output_map)
    turns, gains, _ = torch.linalg.svd(triangular @ run.value_map(), full_matrices=True)
    output = basis @ turns
    gains = nn.functional.pad(gains, (0, output.shape[1] - len(gains)))
    names: tuple[str, ...] = ()
    reach = ""
    shares: list[Tensor] = []
    norms: list[Tensor] = []
    directions: list[Tensor] = []
    for places in torch.arange(len(weights)).split(_PLACES):
        parts, reach = run.parts(places)
        names = (*parts, "bias")
        values = weights[places, None] * run.values(parts)  # s p e
        added = values.sum(0) @ output_map.T
        shares.append((values @ along).T)
        norms.append(added.norm(dim=-1))
        directions.append(added @ output)
    coordinates = torch.cat(directions)
    order = coordinates.sum(0).abs().argsort(descending=True, stable=True)
    return HeadOutput(
        text=rec.text,
        model=rec.model or run.runner.name,
        layer=layer,
        head=head,
        query=run.tokens[i].text,
        tokens=tuple(token.text for token in run.tokens),
        written=written,
        weights=weights,
        norms=torch.cat(norms),
        sources=names,
        parts=torch.cat(shares),
        directions=coordinates[:, order],
        gains=gains[order],
        reach=reach,
    )
