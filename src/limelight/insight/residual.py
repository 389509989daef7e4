"""The residual stream of a token as a sum over its sources, from one run of the model.

Sources are the token's embedding, its position, every earlier head and feed-forward layer, and
their biases. A norm is linear once its scale is held fixed at its value in the run, so parts that
add up before it add up after it.
"""

from __future__ import annotations

from functools import cached_property
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
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.picks import Pick, find_tokens
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token, place_tokens
from limelight.seeing.steps.flow import Projection, input_projections

Parts = dict[str, Tensor]
"""The summands of some tokens' vectors: p m each, by source."""

_LSE_TOLERANCE = 0.02
"""How far the log-sum-exp of a row may be from the recorded one: what half precision explains."""

ALL_SOURCES = "all sources, exact with the scale of norms held fixed"


def decompose(
    rec: Recording, layer: int, head: int, model: nn.Module | None
) -> ResidualDecomposition:
    """Run the model of a recording on its text again, and keep what one head is decomposed into.

    Args:
        rec: a recording by an encoder or decoder of ours.
        layer: counted from 0.
        head: counted from 0.
        model: the model of the recording; loaded by its name unless given.
    """
    loaded = load(rec.model) if model is None else model
    if not isinstance(loaded, Encoder | Decoder):
        raise UnavailableError(
            "scores are split in encoders and decoders of ours, found a "
            f"{type(loaded).__name__}: ll.load reads most Hugging Face models as one of them"
        )
    if rec.queries is not rec.tokens:
        raise UnavailableError("scores are split within one text, found a recording of two")
    run = ResidualDecomposition(loaded, token_ids(rec, loaded), rec.tokens, layer, head)
    if layer in rec.layer_numbers and head in rec.head_numbers:
        recorded = rec.seen(layer).lse[0, rec.head_position(head)].cpu().double()
        if not torch.allclose(run.log_sum_exp(), recorded, atol=_LSE_TOLERANCE, rtol=1e-3):
            raise UnavailableError(
                f"{rec.model or 'this model'} does not attend to this text as recorded: the "
                "recording is of another model, or of one that was changed or had links cut"
            )
    return run


def token_ids(rec: Recording, model: Encoder | Decoder) -> Tensor:
    """The token ids of a recording, whether it was made from a text or from ids.

    A text is encoded again. Tokens of other ids are named by the tokenizer's pieces or, without a
    tokenizer, by the ids themselves; both can be converted back.
    """
    names, known = [token.text for token in rec.tokens], model.tokens
    if len(names) > model.config.context:
        raise UnavailableError(
            f"scores are split in texts of up to {model.config.context:,} tokens, which "
            f"{model.name or 'this model'} reads at once, found {len(names):,}"
        )
    if known is None:
        ids = [int(name) if name.isdecimal() else None for name in names]
    else:
        encoded = known.encode(rec.text, limit=model.config.context)
        special = [token in known.special for token in encoded.ids]
        if place_tokens(rec.text, encoded.spans, encoded.pieces, special) == rec.tokens:
            return torch.tensor(encoded.ids)
        ids = [known.tokenizer.token_to_id(name) for name in names]
    ids = [token for token in ids if token is not None and token < model.config.vocabulary]
    if len(ids) < len(names):
        raise UnavailableError(
            f"the tokens of the recording are not those of {model.name or 'this model'}: pass the "
            "model that it was made with"
        )
    return torch.tensor(ids)


class ResidualDecomposition:
    """One pass of a model over a text, with the inputs and outputs of every layer."""

    def __init__(
        self,
        model: Encoder | Decoder,
        ids: Tensor,
        tokens: tuple[Token, ...],
        layer: int,
        head: int,
    ) -> None:
        blocks: list[Any] = list(model.stack.blocks)
        if not 0 <= layer < len(blocks) or not 0 <= head < model.config.heads:
            raise OptionError(
                f"layer and head must be below {len(blocks)} and {model.config.heads}, "
                f"found {layer} and {head}"
            )
        self.model, self.runner, self.tokens = model, runner_for(model, ids), tokens
        self.layer, self.head, self.attention = layer, head, blocks[layer].attention
        self._projections = input_projections(self.attention)
        self._blocks = blocks
        self._calls: list[AttentionCall] = []
        self._head_outputs: list[Tensor] = []
        self._block_inputs: list[Tensor] = []
        self._rotations: list[Rotation | None] = []
        self._ffn_outputs: list[Tensor] = []
        self._ffn_inputs: list[Tensor] = []
        hooks: list[Any] = []
        for block in blocks:
            hooks.append(block.register_forward_pre_hook(self._record_block, with_kwargs=True))
            hooks.append(block.feedforward.register_forward_hook(self._record_ffn))
        try:
            with eval_mode(model), torch.no_grad(), intercept(self._record_call, model):
                self.runner.run(self.runner.rows(1), -1)
        finally:
            for hook in hooks:
                hook.remove()

    def _record_block(self, _block: Any, args: Any, options: Any) -> None:
        self._block_inputs.append(args[0][0])
        self._rotations.append(options.get("rotation"))

    def _record_ffn(self, _layer: Any, args: Any, output: Any) -> None:
        self._ffn_inputs.append(args[0][0])
        self._ffn_outputs.append(output[0])

    def _record_call(self, call: AttentionCall) -> Tensor:
        output = call.attend()
        self._calls.append(call)
        self._head_outputs.append(output[0])
        return output

    def place(self, pick: Pick) -> int:
        """The token that a pick names; the last one of a word."""
        return find_tokens(pick, self.tokens)[-1]

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

    @cached_property
    def _seen(self) -> Seen:
        return self._calls[self.layer].attend(lens=Lens())[1]

    def log_sum_exp(self) -> Tensor:
        """The log-sum-exp of every query's scores: n."""
        return self._seen.lse[0, self.head].cpu().double()

    def weights(self, i: int) -> Tensor:
        """The weights of a query: n."""
        return self._seen.rows([i])[0, self.head, 0].double()

    def output(self, i: int) -> Tensor:
        """The head's output for a query, before W_o: e."""
        return self._head_outputs[self.layer][self.head, i].double()

    def parts(self, places: Tensor) -> tuple[Parts, str]:
        """What enters the layer's projections for some tokens, by source; how far sources reach."""
        layer, block = self.layer, self._blocks[self.layer]
        if block.order in ("post", "late"):
            return self._post_norm_parts(places)
        parts = self._embedding_parts(places)
        for number in range(layer):
            parts |= self._attention_parts(number, places)
            parts |= self._ffn_parts(number, places)
        whole = self._block_inputs[layer][places].double()
        return _normed(parts, whole, block.attention_norm, "norm bias"), ALL_SOURCES

    def _post_norm_parts(self, places: Tensor) -> tuple[Parts, str]:
        """In a model that normalises after each layer: the parts of the block before."""
        if self.layer == 0:
            return self._embedding_parts(places), ALL_SOURCES
        number = self.layer - 1
        block = self._blocks[number]
        parts = self._attention_parts(number, places)
        if block.order == "post":
            block_input = self._block_inputs[number][places].double()
            parts = {f"before layer {number}": block_input} | parts
            parts = _normed(parts, _sum(parts), block.attention_norm, "attention norm bias")
        parts |= self._ffn_parts(number, places)
        whole = (self._ffn_inputs[number] + self._ffn_outputs[number])[places].double()
        parts = _normed(parts, whole, block.feedforward_norm, "ffn norm bias")
        return parts, f"this model normalises after each layer: the parts of layer {number} only"

    def _embedding_parts(self, places: Tensor) -> Parts:
        """The embeddings of token, position and segment, through the embedding's norm and map."""
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
            parts = _normed(parts, _sum(parts), embedding.norm, "embedding norm bias")
        if embedding.up is not None:
            up, bias = embedding.up.weight.double().detach(), embedding.up.bias
            parts = {name: part @ up.T for name, part in parts.items()}
            if bias is not None:
                parts["embedding bias"] = bias.double().detach().expand(len(places), -1)
        return parts

    def _attention_parts(self, number: int, places: Tensor) -> Parts:
        """What each head of a layer added."""
        block = self._blocks[number]
        heads = self._head_outputs[number][:, places].double()
        weight = _output_weight(block.attention).unflatten(1, (len(heads), -1))
        added = torch.einsum("hne,mhe->hnm", heads, weight)
        parts: Parts = {f"head {number}·{head}": part for head, part in enumerate(added)}
        output = block.attention.output
        if output is not None and output.bias is not None:
            bias = output.bias.double().detach()
            parts[f"output bias {number}"] = bias.expand_as(added[0])
        if block.attention_out_norm is not None:
            name = f"attention norm bias {number}"
            parts = _normed(parts, _sum(parts), block.attention_out_norm, name)
        return parts

    def _ffn_parts(self, number: int, places: Tensor) -> Parts:
        """What the feed-forward layer added."""
        output, block = self._ffn_outputs[number][places].double(), self._blocks[number]
        parts: Parts = {f"ffn {number}": output}
        if block.feedforward_out_norm is not None:
            name = f"ffn norm bias {number}"
            parts = _normed(parts, output, block.feedforward_out_norm, name)
        return parts

    def queries(self, parts: Parts, places: Tensor) -> Tensor:
        """The query of every part, the bias last: s p d."""
        queries = self._projected(parts, self._projections[0].of_head(self.head))
        return self._positioned(queries, self.attention.query_norm, places)

    def keys(self, parts: Parts, places: Tensor) -> Tensor:
        """The key of every part, the bias last: s p d."""
        keys = self._projected(parts, self._projections[1].of_head(self.group))
        return self._positioned(keys, self.attention.key_norm, places)

    def values(self, parts: Parts) -> Tensor:
        """The value of every part, the bias last: s p e."""
        return self._projected(parts, self._projections[2].of_head(self.group))

    def output_map(self) -> Tensor:
        """The head's columns of W_o: m e; without W_o, those of the identity."""
        size = self.attention.value_size
        return _output_weight(self.attention)[:, self.head * size : (self.head + 1) * size]

    def value_map(self) -> Tensor:
        """W_v of the head: e m; e m/h where the head sees a slice of the input."""
        return self._projections[2].of_head(self.group).weight.T.double()

    def _projected(self, parts: Parts, projection: Projection) -> Tensor:
        """Every part projected by one of the head's projections, the bias last: s p d."""
        stacked = torch.stack(list(parts.values()))
        if self.attention.heads_see == "slice":
            stacked = stacked.unflatten(-1, (self.attention.heads, -1))[..., self.head, :]
        projected = stacked @ projection.weight.double()
        bias = torch.zeros_like(projected[:1])
        if projection.bias is not None:
            bias = bias + projection.bias.double()
        return torch.cat([projected, bias])

    def _positioned(self, projected: Tensor, norm: nn.Module | None, places: Tensor) -> Tensor:
        """Through the head's own norm, its scale held fixed, and rotated by positions."""
        if norm is not None:
            parts = {str(source): part for source, part in enumerate(projected)}
            normed = _normed(parts, projected.sum(0), norm, "bias")
            projected = torch.stack(list(normed.values()))
        rotation = self._rotations[self.layer]
        if rotation is None:
            return projected
        cos, sin, pairs = rotation
        at_places = Rotation(cos[:, places].double(), sin[:, places].double(), pairs)
        return rotate(projected[:, :, None], at_places)[:, :, 0]


def _sum(parts: Parts) -> Tensor:
    """What the parts add up to: p m."""
    return torch.stack(list(parts.values())).sum(0)


def _output_weight(attention: Any) -> Tensor:
    """W_o, `m h·e`; the identity where a layer has none and gives the heads side by side."""
    if attention.output is None:
        return torch.eye(attention.heads * attention.value_size, dtype=torch.float64)
    return attention.output.weight.double().detach()


def _normed(parts: Parts, whole: Tensor, norm: Any, bias: str) -> Parts:
    """Every part through a norm whose scale is that of the whole vector; its bias is a part."""
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
