"""What a token's vector is the sum of on its way through a model: one run, taken apart by source.

Sources are the token's embedding, its position, every earlier head and feed-forward layer, and the
biases between. A norm is linear once its scale is held fixed at what it was in the run, so that
parts that add up before it add up after it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.insight.runner import eval_mode, runner_for
from limelight.layers.positions import sinusoidal
from limelight.layers.rotary import Rotation, rotate
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import load
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.picks import Pick, find_tokens
from limelight.seeing.recording.recording import Recording

Parts = dict[str, Tensor]
"""what the vectors of some tokens are the sum of: p m each, by source"""

ALL_SOURCES = "all sources, exact with the scale of norms held fixed"


def model_of(rec: Recording, model: nn.Module | None) -> Encoder | Decoder:
    """The model of a recording, loaded by its name unless given."""
    loaded = load(rec.model) if model is None else model
    if not isinstance(loaded, Encoder | Decoder):
        raise UnavailableError("sources are told apart in encoders and decoders of ours")
    return loaded


class ResidualDecomposition:
    """One pass of a model over a text, with what every layer took in and gave out."""

    def __init__(self, model: Encoder | Decoder, text: str, layer: int, head: int) -> None:
        blocks: list[Any] = list(model.stack.blocks)
        if not 0 <= layer < len(blocks) or not 0 <= head < model.config.heads:
            raise OptionError(
                f"layer and head must be below {len(blocks)} and {model.config.heads}, "
                f"found {layer} and {head}"
            )
        attention = blocks[layer].attention
        plain = isinstance(attention.inputs, nn.Linear) and attention.value_rank is None
        if blocks[layer].order == "late" or not plain:
            raise UnavailableError(
                "sources are told apart in blocks of order 'pre', 'sandwich' or 'post' whose "
                "heads see all of the input and whose value map has full rank"
            )
        self.model, self.runner = model, runner_for(model, text)
        self.layer, self.head, self.attention = layer, head, attention
        self._blocks = blocks
        self._calls: list[AttentionCall] = []
        self._heads: list[Tensor] = []
        self._entries: list[Tensor] = []
        self._rotations: list[Rotation | None] = []
        self._fed: list[Tensor] = []
        self._between: list[Tensor] = []
        hooks: list[Any] = []
        for block in blocks:
            hooks.append(block.register_forward_pre_hook(self._enter, with_kwargs=True))
            hooks.append(block.feedforward.register_forward_hook(self._feed))
        try:
            with eval_mode(model), torch.no_grad(), intercept(self._attend, model):
                self.runner.run(self.runner.rows(1), -1)
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, _block: Any, args: Any, options: Any) -> None:
        self._entries.append(args[0][0])
        self._rotations.append(options.get("rotation"))

    def _feed(self, _layer: Any, args: Any, output: Any) -> None:
        self._between.append(args[0][0])
        self._fed.append(output[0])

    def _attend(self, call: AttentionCall) -> Tensor:
        output = call.attend()
        self._calls.append(call)
        self._heads.append(output[0])
        return output

    def place(self, pick: Pick) -> int:
        """The token that a pick names; of a word its last."""
        return find_tokens(pick, self.runner.tokens)[-1]

    @property
    def scale(self) -> float:
        """What q·k is multiplied by."""
        call = self._calls[self.layer]
        return call.query.shape[-1] ** -0.5 if call.scale is None else call.scale

    def score(self, i: int, j: int) -> float:
        """Scale · q·k, as the model computed it."""
        call = self._calls[self.layer]
        q, k = call.query[0, self.head, i], call.key[0, self.group, j]
        return self.scale * float(q.double() @ k.double())

    @property
    def group(self) -> int:
        """The key/value head that this query head reads."""
        return self.head // (self.attention.heads // self.attention.kv_heads)

    def weights(self, i: int) -> Tensor:
        """What a query pays to every key: n."""
        _, seen = self._calls[self.layer].attend(lens=Lens())
        return seen.rows([i])[0, self.head, 0].double()

    def output(self, i: int) -> Tensor:
        """What the head gave for a query, before W_o: e."""
        return self._heads[self.layer][self.head, i].double()

    def parts(self, places: Tensor) -> tuple[Parts, str]:
        """What enters the layer's projections for some tokens, by source; and how far back."""
        layer, block = self.layer, self._blocks[self.layer]
        if block.order == "post":
            return self._after_norms(places)
        parts = self._embedded(places)
        for number in range(layer):
            parts |= self._attended(number, places)
            parts |= self._fed_forward(number, places)
        whole = self._entries[layer][places].double()
        return _normed(parts, whole, block.attention_norm, "norm bias"), ALL_SOURCES

    def _after_norms(self, places: Tensor) -> tuple[Parts, str]:
        """Of a model that normalises after each layer: the parts of the layer before."""
        if self.layer == 0:
            return self._embedded(places), ALL_SOURCES
        number = self.layer - 1
        before = self._blocks[number]
        entered = self._entries[number][places].double()
        parts = {f"before layer {number}": entered} | self._attended(number, places)
        whole = torch.stack(list(parts.values())).sum(0)
        parts = _normed(parts, whole, before.attention_norm, "attention norm bias")
        parts |= self._fed_forward(number, places)
        whole = (self._between[number] + self._fed[number])[places].double()
        parts = _normed(parts, whole, before.feedforward_norm, "ffn norm bias")
        return parts, f"this model normalises after each layer: the parts of layer {number} only"

    def _embedded(self, places: Tensor) -> Parts:
        embedding: Any = self.model.embedding
        config, ids = self.model.config, self.runner.inputs[places]
        token = embedding.look_up(ids).double().detach()
        if config.embedding in ("scaled", "scaled_normed"):
            token = token * config.width**0.5
        parts: Parts = {"token": token}
        if embedding.positions is not None:
            parts["position"] = embedding.positions.weight[places].double().detach()
        elif config.positions == "sinusoidal":
            parts["position"] = sinusoidal(places, token.shape[-1]).double()
        if embedding.segments is not None:
            segment = embedding.segments.weight[0].double().detach()
            parts["segment"] = segment.expand_as(token)
        if embedding.norm is not None:
            whole = torch.stack(list(parts.values())).sum(0)
            parts = _normed(parts, whole, embedding.norm, "embedding norm bias")
        if embedding.up is not None:
            up, bias = embedding.up.weight.double().detach(), embedding.up.bias
            parts = {name: part @ up.T for name, part in parts.items()}
            if bias is not None:
                parts["embedding bias"] = bias.double().detach().expand(len(places), -1)
        return parts

    def _attended(self, number: int, places: Tensor) -> Parts:
        """What each head of a layer added."""
        block = self._blocks[number]
        heads, output = self._heads[number][:, places].double(), block.attention.output
        weight = output.weight.double().detach().unflatten(1, (len(heads), -1))
        added = torch.einsum("hne,mhe->hnm", heads, weight)
        parts: Parts = {f"head {number}·{head}": part for head, part in enumerate(added)}
        if output.bias is not None:
            bias = output.bias.double().detach()
            parts[f"output bias {number}"] = bias.expand_as(added[0])
        if block.attention_out_norm is not None:
            whole = torch.stack(list(parts.values())).sum(0)
            name = f"attention norm bias {number}"
            parts = _normed(parts, whole, block.attention_out_norm, name)
        return parts

    def _fed_forward(self, number: int, places: Tensor) -> Parts:
        """What the feed-forward layer added."""
        fed, block = self._fed[number][places].double(), self._blocks[number]
        parts: Parts = {f"ffn {number}": fed}
        if block.feedforward_out_norm is not None:
            name = f"ffn norm bias {number}"
            parts = _normed(parts, fed, block.feedforward_out_norm, name)
        return parts

    def queries(self, parts: Parts, places: Tensor) -> Tensor:
        """The query's side of every part, the bias last: s p d."""
        first = self.head * self.attention.head_size
        return self._turned(self._rows(parts, first), self.attention.query_norm, places)

    def keys(self, parts: Parts, places: Tensor) -> Tensor:
        """The key's side of every part, the bias last: s p d."""
        first = (self.attention.heads + self.group) * self.attention.head_size
        return self._turned(self._rows(parts, first), self.attention.key_norm, places)

    def values(self, parts: Parts) -> Tensor:
        """The value of every part, the bias last: s p e."""
        layer = self.attention
        first = (layer.heads + layer.kv_heads) * layer.head_size + self.group * layer.value_size
        return self._rows(parts, first, layer.value_size)

    def way_out(self) -> Tensor:
        """The head's columns of W_o: m e; without one the head's place among the channels."""
        size, output = self.attention.value_size, self.attention.output
        first = self.head * size
        if output is None:
            whole = torch.eye(self.attention.heads * size, dtype=torch.float64)
        else:
            whole = output.weight.double().detach()
        return whole[:, first : first + size]

    def value_map(self) -> Tensor:
        """W_v of the head: e m."""
        layer = self.attention
        first = (layer.heads + layer.kv_heads) * layer.head_size + self.group * layer.value_size
        return layer.inputs.weight[first : first + layer.value_size].double().detach()

    def _rows(self, parts: Parts, first: int, size: int | None = None) -> Tensor:
        """Parts through some rows of the input projection, its bias last: s p d."""
        inputs, stop = self.attention.inputs, first + (size or self.attention.head_size)
        side = torch.stack(list(parts.values())) @ inputs.weight[first:stop].double().detach().T
        own = torch.zeros_like(side[:1])
        if inputs.bias is not None:
            own = own + inputs.bias[first:stop].double().detach()
        return torch.cat([side, own])

    def _turned(self, side: Tensor, norm: nn.Module | None, places: Tensor) -> Tensor:
        """Through the head's own norm, its scale held fixed, and turned by positions."""
        if norm is not None:
            parts = dict(enumerate(side))
            normed = _normed({str(s): x for s, x in parts.items()}, side.sum(0), norm, "bias")
            side = torch.stack(list(normed.values()))
        rotation = self._rotations[self.layer]
        if rotation is None:
            return side
        cos, sin, pairs = rotation
        own = Rotation(cos[:, places].double(), sin[:, places].double(), pairs)
        return rotate(side[:, :, None], own)[:, :, 0]


def _normed(parts: Parts, whole: Tensor, norm: Any, bias: str) -> Parts:
    """Every part through a norm whose scale is that of the whole."""
    weight = norm.weight.double().detach()
    if isinstance(norm, nn.LayerNorm):
        scale = torch.rsqrt(whole.var(-1, unbiased=False, keepdim=True) + norm.eps)
        normed = {
            name: (x - x.mean(-1, keepdim=True)) * scale * weight for name, x in parts.items()
        }
        if norm.bias is not None:
            normed[bias] = norm.bias.double().detach().expand_as(whole)
        return normed
    scale = torch.rsqrt(whole.square().mean(-1, keepdim=True) + norm.eps)
    return {name: x * scale * weight for name, x in parts.items()}
