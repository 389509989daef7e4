"""Attention rollout: how much of each token is in another one, if attention were all there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.checks import check_number
from limelight.colours import LIGHT
from limelight.errors import OptionError
from limelight.fields import checked
from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.labels import fit, visible
from limelight.ops.attend import compute
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.picks import Pick
from limelight.seeing.recording.picture import Picture
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SHOWN = 48
"""Tokens in a table or figure, at most."""


@dataclass(frozen=True, eq=False)
class Rollout(Result):
    """How a token is made up of the others after all layers; `shares` sum to 1."""

    text: str
    tokens: tuple[str, ...]
    token: int
    shares: Tensor
    """n"""
    picture: Picture | None = None
    """what the tokens are patches of, where they are"""

    def table(self) -> Table:
        """The tokens in their order; of a long text those with the largest shares."""
        rows = [(j, self.tokens[j], float(self.shares[j])) for j in self._largest]
        suffix = f" (the {len(rows)} largest of {len(self.tokens):,})"
        title = f'rollout of "{self.tokens[self.token]}"'
        return Table(
            ("place", "token", "share"), rows, title + suffix * (len(rows) < len(self.tokens))
        )

    @property
    def _largest(self) -> list[int]:
        return sorted(self.shares.topk(min(_SHOWN, len(self.shares))).indices.tolist())

    def figure(self) -> Figure:
        from limelight.plotting import draw_over, fonts_for, new_figure

        if self.picture is not None:
            figure = new_figure(4.8, 4.2)
            axes = figure.add_subplot()
            grid = self.picture.grid(self.shares).float().numpy()
            mark = self.picture.patch(self.token)
            image = draw_over(axes, self.picture.pixels.numpy(), grid, mark)
            figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
            axes.set_title(f"share in {self.tokens[self.token]} (rollout)", fontsize=10)
            return figure
        shown = self._largest
        names = [fit(visible(self.tokens[j]), 16).strip() or "·" for j in shown]
        figure = new_figure(5.0, max(2.0, 0.24 * len(shown) + 0.8))
        axes = figure.add_subplot()
        axes.barh(range(len(shown)), self.shares[shown].tolist(), color=LIGHT.key)
        axes.set_yticks(
            range(len(shown)), names, parse_math=False, fontfamily=fonts_for(names), fontsize=8
        )
        axes.invert_yaxis()
        axes.set_xlabel(f"share in token {self.token} after all layers (rollout)")
        axes.set_title(self.table().title, fontsize=9, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        return figure

    def values(self) -> dict[str, object]:
        return {
            "text": self.text, "tokens": self.tokens, "token": self.token, "shares": self.shares,
        }  # fmt: skip


@checked
def rollout(rec: Recording, token: Pick, *, residual: float = 0.5) -> Rollout:
    """Attention rollout: how much of each token is in a token after all layers, by attention alone.

        Â = residual · I + (1 − residual) · mean over heads of A        shares = e_iᵀ Â_L ⋯ Â_1

    Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928. The n × n matrices are never stored: a
    row vector r is multiplied by one layer after another, and rᵀA is the gradient of attention with
    one value channel, from the kernel's backward pass. Memory is linear in the text.

    Args:
        rec: a recording of all layers of a self-attending model.
        token: the token; the mean over a word's tokens.
        residual: the share that bypasses attention in each layer.

    >>> import limelight as ll
    >>> rec = ll.look("The animal didn't cross the street because it was too tired.")
    >>> shares = ll.rollout(rec, "it").shares
    >>> float(shares.sum().round(decimals=4))
    1.0
    """
    check_number("residual", residual, "at least 0 and at most 1", low=0.0, high=1.0)
    if rec.queries is not rec.tokens:
        raise OptionError("rollout needs a text that looks at itself, found a recording of two")
    places = rec.find(token)
    start = torch.zeros(len(rec.tokens), dtype=torch.float64)
    start[places] = 1 / len(places)
    texts = tuple(token.text for token in rec.tokens)
    shares = rolled_out(rec.layers, start, residual)
    return Rollout(rec.text, texts, places[-1], shares, rec.picture)


def rolled_out(layers: Sequence[Seen], start: Tensor, residual: float = 0.5) -> Tensor:
    """A row vector `n` through all layers, last to first."""
    shares = start.double()
    for seen in reversed(layers):
        shares = residual * shares + (1 - residual) * row_times_weights(seen, shares)
    return shares


def row_times_weights(seen: Seen, row: Tensor) -> Tensor:
    """rᵀA, the mean over heads: `j`, for a row vector `i`.

    With O_i = Σ_j A_ij v_j and one channel, Σ_i r_i ∂O_i/∂v_j = Σ_i r_i A_ij.
    """
    if not isinstance(seen.source, Recomputed):
        total = torch.zeros(seen.extent.j, dtype=torch.float64)
        for first, tile in seen.in_tiles():
            part = row[first : first + tile.shape[2]].to(tile)
            total += torch.einsum("i,hij->j", part, tile[0]).cpu().double()
        return total / seen.extent.h
    problem = seen.source.problem
    value = torch.zeros_like(problem.value[..., :1]).requires_grad_()
    with torch.enable_grad():
        output, _ = compute(replace(problem, value=value, dropout=0.0, seed=None))
        rows = row.to(output).expand(output.shape[:3])
        (gradient,) = torch.autograd.grad(output, value, rows[..., None])
    products = gradient[0, :, :, 0].cpu().double()  # g j: heads that share values share a gradient
    if problem.rows_sum_to_one:  # then rᵀA sums to what r does: restores what float32 lost
        sums = rows[0].cpu().double().sum(-1).view(len(products), -1).sum(1, keepdim=True)
        products = products * (sums / products.sum(-1, keepdim=True).clamp(min=1e-30))
    return products.sum(0) / seen.extent.h
