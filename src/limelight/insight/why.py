"""Why a link is strong: its score q·k, split by where the query and the key come from."""

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


@dataclass(frozen=True, eq=False)
class Why(Result):
    """One score, split: rows are sources on the query's side, columns those on the key's."""

    text: str
    model: str
    layer: int
    head: int
    query: str
    key: str
    score: float
    """scale · q·k, as the model computed it"""
    sources: tuple[str, ...]
    parts: Tensor
    """s s: the share of each pair of sources; adds up to the score"""
    reach: str
    """how far back the sources go"""

    def strongest(self, n: int = 10) -> list[tuple[str, str, float]]:
        """The n pairs of sources that push the score most, up or down."""
        flat = self.parts.flatten()
        size = len(self.sources)
        best = flat.abs().topk(min(n, flat.numel())).indices.tolist()
        return [
            (self.sources[row], self.sources[column], float(self.parts[row, column]))
            for row, column in (divmod(index, size) for index in best)
        ]

    def table(self) -> Table:
        title = (
            f'{self.model} layer {self.layer} head {self.head}, "{self.query}" → "{self.key}": '
            f"score {self.score:.3f}; {self.reach}"
        )
        return Table(("source of the query", "source of the key", "part"), self.strongest(), title)

    def figure(self) -> Figure:
        """Sources of the query down, sources of the key across."""
        from limelight.insight.parts_figure import Axis, draw_parts, largest

        shown = largest(self.parts.abs().sum(0) + self.parts.abs().sum(1), 24)
        query, key = visible(self.query, 20), visible(self.key, 20)
        return draw_parts(
            self.parts,
            Axis(f'source of the query "{query}"', self.sources, shown),
            Axis(f'source of the key "{key}"', self.sources, shown),
            f'layer {self.layer} head {self.head}: why "{query}" looks at "{key}" '
            f"(score {self.score:.2f})",
            "part of the score",
        )

    def values(self) -> dict[str, Any]:
        names = (
            "text", "model", "layer", "head", "query", "key", "score", "sources", "parts", "reach",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@checked
def why(
    rec: Recording,
    layer: int,
    head: int,
    query: Pick,
    key: Pick,
    *,
    model: nn.Module | None = None,
) -> Why:
    """Split the score of a link by where its parts come from, with the scale of norms held fixed.

        score = scale · Σ_s Σ_t q_s · k_t     s and t: token, position, each earlier head, each FFN

    Exact for models that normalise before each layer, norms on heads (Qwen 3, Gemma 3) and after
    layers (Gemma 2 and 3) included. Where norms come only after layers (BERT, and blocks of order
    "late") the sources are the parts of the block before, which add up just as exactly, and
    everything further back is one source. A cap on scores, and biases such as ALiBi's, are applied
    after this score. `wrote` splits the head's output in the same way.

    The model reads the text again, and must attend to it as recorded: inside `cutting` where the
    recording was made inside it.

    Args:
        rec: a recording by an encoder or decoder of ours, of a text or of token ids.
        layer: counted from 0.
        head: counted from 0.
        query: the token that looks.
        key: the token looked at.
        model: the model of the recording; loaded by its name unless given.
    """
    run = decompose(rec, layer, head, model)
    i, j = run.place(query), run.place(key)
    places = torch.tensor([i, j])
    parts, reach = run.parts(places)
    queries, keys = run.queries(parts, places)[:, 0], run.keys(parts, places)[:, 1]
    return Why(
        text=rec.text,
        model=rec.model or run.runner.name,
        layer=layer,
        head=head,
        query=run.tokens[i].text,
        key=run.tokens[j].text,
        score=run.score(i, j),
        sources=(*parts, "bias"),
        parts=run.scale * queries @ keys.T,
        reach=reach,
    )
