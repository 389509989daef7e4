"""What a head wrote into a token, by source token, by earlier source and by direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.fields import checked
from limelight.insight.residual import ResidualDecomposition, decompose
from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.labels import visible
from limelight.seeing.recording.picks import Pick
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLACES = 64
"""Tokens that are split at once: each takes a vector for every source."""


@dataclass(frozen=True, eq=False)
class HeadOutput(Result):
    """What one head added to one token's vector, split. n source tokens, s sources, r directions.

    A part's share is its length along `written`: shares add up to ‖written‖, and a negative one
    points the other way.
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
    """r: the singular values, by how much W_o W_v stretches each direction"""
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
            (self.tokens[j], self.sources[source], float(self.parts[j, source]))
            for j, source in (divmod(index, width) for index in best)
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
    """Split what a head wrote into a token by source token, and by where its value comes from.

        written = Σ_j w_ij W_o v_j = Σ_j Σ_s w_ij W_o W_v x_j,s     s: token, position, heads, FFNs

    with the scale of norms held fixed, as `why` splits the score: exact for models that normalise
    before each layer; for those that normalise after it, s are the parts of the block before.

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
    weights = run.weights(i)
    written = run.output_map() @ run.output(i)
    axes, gains = _output_directions(run.output_map(), run.value_map())
    split = _split_by_token(run, weights, written, axes)
    order = split.directions.sum(0).abs().argsort(descending=True, stable=True)
    return HeadOutput(
        text=rec.text,
        model=rec.model or run.runner.name,
        layer=layer,
        head=head,
        query=run.tokens[i].text,
        tokens=tuple(token.text for token in run.tokens),
        written=written,
        weights=weights,
        norms=split.norms,
        sources=split.sources,
        parts=split.shares,
        directions=split.directions[:, order],
        gains=gains[order],
        reach=split.reach,
    )


def _output_directions(output_map: Tensor, value_map: Tensor) -> tuple[Tensor, Tensor]:
    """The left singular vectors of W_o W_v, `m r`, and its singular values, `r`.

    By the QR of W_o they span all that the head can write, its bias included.
    """
    basis, triangular = torch.linalg.qr(output_map)
    rotation, gains, _ = torch.linalg.svd(triangular @ value_map, full_matrices=True)
    directions = basis @ rotation
    return directions, nn.functional.pad(gains, (0, directions.shape[1] - len(gains)))


class _Split(NamedTuple):
    """What each of n tokens adds to `written`."""

    sources: tuple[str, ...]
    shares: Tensor
    """n s: along `written`, by source"""
    norms: Tensor
    """n: its length"""
    directions: Tensor
    """n r: along each output direction"""
    reach: str


def _split_by_token(
    run: ResidualDecomposition, weights: Tensor, written: Tensor, axes: Tensor
) -> _Split:
    """The parts of `written`, computed for some tokens at a time."""
    output_map = run.output_map()
    along = output_map.T @ (written / written.norm().clamp(min=1e-30))
    sources: tuple[str, ...] = ()
    reach = ""
    shares: list[Tensor] = []
    norms: list[Tensor] = []
    directions: list[Tensor] = []
    for places in torch.arange(len(weights)).split(_PLACES):
        parts, reach = run.parts(places)
        sources = (*parts, "bias")
        values = weights[places, None] * run.values(parts)  # s p e
        added = values.sum(0) @ output_map.T
        shares.append((values @ along).T)
        norms.append(added.norm(dim=-1))
        directions.append(added @ axes)
    return _Split(sources, torch.cat(shares), torch.cat(norms), torch.cat(directions), reach)
