"""Why this link: the score q·k split by where its parts came from, on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.insight.reading import at_rest, read
from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.layers.rotary import rotate
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import load
from limelight.ops.calls import AttentionCall, intercept
from limelight.seeing.recording.picks import Pick, find_tokens
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Parts = dict[str, Tensor]
"""what a vector is the sum of: n m each, by source"""


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
        return [(self.sources[at // size], self.sources[at % size], float(flat[at])) for at in best]

    def table(self) -> Table:
        title = (
            f'{self.model} layer {self.layer} head {self.head}, "{self.query}" → "{self.key}": '
            f"score {self.score:.3f}; {self.reach}"
        )
        return Table(("of the query", "of the key", "part"), self.strongest(), title)

    def figure(self) -> Figure:
        from limelight.plotting import new_figure

        keep = self.parts.abs().sum(0) + self.parts.abs().sum(1)
        order = sorted(keep.topk(min(24, len(keep))).indices.tolist())
        names = [self.sources[at] for at in order]
        shown = self.parts[order][:, order]
        figure = new_figure(0.3 * len(names) + 3, 0.3 * len(names) + 2.4)
        axes = figure.add_subplot()
        limit = float(shown.abs().max())
        image = axes.imshow(shown.numpy(), cmap="PuOr", vmin=-limit, vmax=limit)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_xlabel(f'of the key "{self.key}"', parse_math=False)
        axes.set_ylabel(f'of the query "{self.query}"', parse_math=False)
        figure.colorbar(image, ax=axes, fraction=0.04).set_label("part of the score")
        return figure

    def values(self) -> dict[str, Any]:
        names = (
            "text", "model", "layer", "head", "query", "key", "score", "sources", "parts", "reach",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def why(
    rec: Recording,
    layer: int,
    head: int,
    query: Pick,
    key: Pick,
    *,
    model: Encoder | Decoder | None = None,
) -> Why:
    """Split the score of a link by where its parts came from, the scale of norms held fixed.

        score = scale · Σ_s Σ_t q_s · k_t     s and t: token, position, each earlier head, each FFN

    Exact for models that normalise before each layer; of those that normalise after it, the parts
    of the block before are told apart, and what lies further back is one source.

    Args:
        rec: a recording by one of our models.
        layer: counted from 0.
        head: counted from 0.
        query: the token that looks.
        key: the token looked at.
        model: the model of the recording; loaded by its name unless given.
    """
    if model is None:
        loaded = load(rec.model)
        if not isinstance(loaded, Encoder | Decoder):
            raise UnavailableError("why takes encoders and decoders")
        model = loaded
    if not 0 <= layer < len(model.stack.blocks) or not 0 <= head < model.config.heads:
        raise OptionError(
            f"layer and head must be below {len(model.stack.blocks)} and {model.config.heads}, "
            f"found {layer} and {head}"
        )
    block: Any = model.stack.blocks[layer]
    attention = block.attention
    plain = isinstance(attention.inputs, nn.Linear) and attention.value_rank is None
    if block.order not in ("pre", "post") or not plain or attention.query_norm is not None:
        raise UnavailableError(
            "why takes blocks of order 'pre' or 'post' whose heads have no norms of their own"
        )
    run = _Run(model, rec.text)
    (i,), (j,) = (find_tokens(each, run.reading.tokens)[-1:] for each in (query, key))
    parts, reach = run.parts(layer)
    names = (*parts, "bias")
    q, k = run.projected(layer, head, torch.stack(list(parts.values())))
    matrix = run.scale(layer) * q[:, i].double() @ k[:, j].double().T
    return Why(
        text=rec.text,
        model=run.reading.name,
        layer=layer,
        head=head,
        query=run.reading.tokens[i].text,
        key=run.reading.tokens[j].text,
        score=run.score(layer, head, i, j),
        sources=names,
        parts=matrix,
        reach=reach,
    )


class _Run:
    """One pass of a model, with what every layer took in and gave out."""

    def __init__(self, model: Encoder | Decoder, text: str) -> None:
        self.model, self.reading = model, read(model, text)
        self.calls: list[AttentionCall] = []
        self.outputs: list[Tensor] = []
        self.entries: list[Tensor] = []
        self.rotations: list[Any] = []
        self.fed: list[Tensor] = []
        self.mid: list[Tensor] = []
        blocks: list[Any] = list(model.stack.blocks)
        hooks: list[Any] = []
        for block in blocks:
            hooks.append(block.register_forward_pre_hook(self._enter, with_kwargs=True))
            hooks.append(block.feedforward.register_forward_hook(self._feed))
        try:
            with at_rest(model), torch.no_grad(), intercept(self._attend):
                self.reading.run(self.reading.rows(1), -1)
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, _block: Any, args: Any, options: Any) -> None:
        self.entries.append(args[0][0].double())
        self.rotations.append(options.get("rotation"))

    def _feed(self, _layer: Any, args: Any, output: Any) -> None:
        self.mid.append(args[0][0].double())
        self.fed.append(output[0].double())

    def _attend(self, call: AttentionCall) -> Tensor:
        output = call.attend()
        self.calls.append(call)
        self.outputs.append(output[0].double())
        return output

    def scale(self, layer: int) -> float:
        """What q·k is multiplied by."""
        call = self.calls[layer]
        return call.query.shape[-1] ** -0.5 if call.scale is None else call.scale

    def score(self, layer: int, head: int, i: int, j: int) -> float:
        """Scale · q·k, as the model computed it."""
        call = self.calls[layer]
        group = call.query.shape[1] // call.key.shape[1]
        q, k = call.query[0, head, i].double(), call.key[0, head // group, j].double()
        return self.scale(layer) * float(q @ k)

    def parts(self, layer: int) -> tuple[Parts, str]:
        """What enters a layer's projections, by source."""
        block: Any = self.model.stack.blocks[layer]
        if block.order == "pre":
            parts = self._embedded()
            for number in range(layer):
                parts |= self._heads(number)
                parts[f"ffn {number}"] = self.fed[number]
            normed = _normed(parts, self.entries[layer], block.attention_norm, "norm bias")
            return normed, "all sources, exact with the norm's scale held fixed"
        if layer == 0:
            return self._embedded(), "all sources, exact with the norm's scale held fixed"
        before: Any = self.model.stack.blocks[layer - 1]
        number = layer - 1
        parts = {f"before layer {number}": self.entries[number]} | self._heads(number)
        whole = torch.stack(list(parts.values())).sum(0)
        parts = _normed(parts, whole, before.attention_norm, "attention norm bias")
        parts[f"ffn {number}"] = self.fed[number]
        whole = self.mid[number] + self.fed[number]
        parts = _normed(parts, whole, before.feedforward_norm, "ffn norm bias")
        return parts, f"this model normalises after each layer: the parts of layer {number} only"

    def _embedded(self) -> Parts:
        embedding: Any = self.model.embedding
        ids = self.reading.inputs
        token = embedding.tokens(ids).double().detach()
        if self.model.config.embedding == "scaled":
            token = token * self.model.config.width**0.5
        parts: Parts = {"token": token}
        if embedding.positions is not None:
            parts["position"] = embedding.positions.weight[: len(ids)].double().detach()
        if embedding.segments is not None:
            segment = embedding.segments.weight[0].double().detach()
            parts["segment"] = segment.expand_as(token)
        if embedding.norm is not None:
            whole = torch.stack(list(parts.values())).sum(0)
            return _normed(parts, whole, embedding.norm, "embedding norm bias")
        rest = self.entries[0] - torch.stack(list(parts.values())).sum(0)
        if float(rest.abs().max()) > 1e-5:  # positions that are computed, not learned
            parts["position"] = rest
        return parts

    def _heads(self, number: int) -> Parts:
        attention: Any = self.model.stack.blocks[number].attention
        output = self.outputs[number]
        weight = attention.output.weight.double().detach().unflatten(1, (len(output), -1))
        each = torch.einsum("hne,mhe->hnm", output, weight)
        parts: Parts = {f"head {number}·{head}": part for head, part in enumerate(each)}
        if attention.output.bias is not None:
            bias = attention.output.bias.double().detach()
            parts[f"output bias {number}"] = bias.expand_as(each[0])
        return parts

    def projected(self, layer: int, head: int, parts: Tensor) -> tuple[Tensor, Tensor]:
        """The query's and the key's side of every part, the bias last: s n d each."""
        attention: Any = self.model.stack.blocks[layer].attention
        size, group = attention.head_size, attention.heads // attention.kv_heads
        rows = attention.inputs.weight.double().detach()
        bias = attention.inputs.bias
        sides: list[Tensor] = []
        for first in (head * size, (attention.heads + head // group) * size):
            side = parts @ rows[first : first + size].T
            own = torch.zeros(1, *side.shape[1:], dtype=side.dtype)
            if bias is not None:
                own = own + bias[first : first + size].double().detach()
            side = torch.cat([side, own])
            if self.rotations[layer] is not None:
                side = rotate(side[:, :, None].float(), self.rotations[layer])[:, :, 0].double()
            sides.append(side)
        return sides[0], sides[1]


def _normed(parts: Parts, whole: Tensor, norm: Any, bias: str) -> Parts:
    """Every part through a norm whose scale is that of the whole."""
    weight = norm.weight.double().detach()
    if isinstance(norm, nn.LayerNorm):
        scale = torch.rsqrt(whole.var(-1, unbiased=False, keepdim=True) + norm.eps)
        found = {name: (x - x.mean(-1, keepdim=True)) * scale * weight for name, x in parts.items()}
        if norm.bias is not None:
            found[bias] = norm.bias.double().detach().expand_as(whole)
        return found
    scale = torch.rsqrt(whole.square().mean(-1, keepdim=True) + norm.eps)
    return {name: x * scale * weight for name, x in parts.items()}
