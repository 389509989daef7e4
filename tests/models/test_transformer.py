from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from limelight.errors import OptionError, ShapeError
from limelight.layers.attention import Attention
from limelight.layers.block import Block
from limelight.models.config import Config
from limelight.models.transformer import Transformer
from limelight.ops.calls import AttentionCall, intercept


def make(**changes: Any) -> Transformer:
    small = {"vocabulary": 50, "width": 16, "layers": 2, "heads": 4, "context": 64}
    return Transformer(Config.transformer2017(**{**small, **changes})).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(50, shape)


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    ours.inputs.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    assert ours.output is not None
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_block(ours: Block, theirs: Any) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    ours.feedforward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.down.load_state_dict(theirs.linear2.state_dict())
    norms = [ours.attention_norm, ours.feedforward_norm]
    if ours.cross is not None:
        copy_attention(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.cross_norm)
    for norm, name in zip(norms, ("norm1", "norm2", "norm3"), strict=False):
        assert norm is not None
        norm.load_state_dict(getattr(theirs, name).state_dict())


@torch.no_grad()
@pytest.mark.parametrize("order", ["post", "pre"])
def test_hidden_states_equal_pytorch_on_the_same_weights(order: str):
    pre = order == "pre"
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 64, batch_first=True, norm_first=pre, dropout=0),
        2, norm=nn.LayerNorm(16) if pre else None, enable_nested_tensor=False,
    )  # fmt: skip
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(16, 4, 64, batch_first=True, norm_first=pre, dropout=0),
        2, norm=nn.LayerNorm(16) if pre else None,
    )  # fmt: skip
    for parameter in [*encoder.parameters(), *decoder.parameters()]:
        nn.init.normal_(parameter, std=0.3)
    model = make(order=order)
    for stack, peer in ((model.encoder, encoder), (model.decoder, decoder)):
        for ours, theirs in zip(stack.blocks, peer.layers, strict=True):
            copy_block(ours, theirs)
        if pre:
            stack.norm.load_state_dict(peer.norm.state_dict())
    source, target = tokens(2, 9), tokens(2, 6)
    inputs: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    hidden = model.decode(target, model.encode(source, lengths=[9, 5]))
    is_padding = torch.arange(9) >= torch.tensor([[9], [5]])
    memory = encoder.eval()(inputs[0], src_key_padding_mask=is_padding)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = decoder.eval()(inputs[1], memory, tgt_mask=later, memory_key_padding_mask=is_padding)
    assert torch.allclose(hidden, expected, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "relative"])
def test_decoding_token_by_token_equals_one_pass(positions: str):
    model = make(positions=positions, decoder_layers=3)
    source, target = tokens(2, 9), tokens(2, 7)
    whole = model(source, target, source_lengths=torch.tensor([9, 4]))
    memory, cache = model.encode(source, lengths=[9, 4]), model.new_cache()
    steps = [
        model.logits(model.decode(target[:, i : i + 1], memory, cache=cache)) for i in range(7)
    ]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-5)


@torch.no_grad()
def test_rows_can_be_reordered_while_decoding():
    model = make()
    source, target = tokens(2, 9), tokens(3, 4)
    memory, cache = model.encode(source, lengths=[9, 4]), model.new_cache()
    model.decode(target[:2, :2], memory, cache=cache)
    rows = torch.tensor([1, 1, 0])
    cache.select(rows)
    chosen = memory.select(rows, [4, 4, 9])
    written = torch.cat((target[rows, :2], target[:, 2:]), 1)
    hidden = model.decode(target[:, 2:], chosen, cache=cache)
    expected = model.decode(written, model.encode(source[rows], lengths=[4, 4, 9]))
    assert torch.allclose(hidden, expected[:, 2:], atol=1e-5)


@torch.no_grad()
def test_padding_of_the_source_changes_nothing():
    model = make()
    source, target = tokens(1, 5), tokens(1, 6)
    longer = torch.cat((source, tokens(1, 4)), 1)
    padded = model(longer, target, source_lengths=[5])
    assert torch.allclose(padded, model(source, target), atol=1e-5)
    assert not torch.allclose(padded, model(longer, target), atol=1e-5)


def test_an_interceptor_distinguishes_self_and_cross_attention():
    model, kinds = make(), []

    def interceptor(call: AttentionCall) -> Tensor:
        names = {module: name for name, module in model.named_modules()}
        kinds.append((names[call.module], call.query.shape[2], call.key.shape[2]))
        return call.attend()

    with intercept(interceptor):
        model(tokens(1, 5), tokens(1, 3))
    assert kinds == [
        ("encoder.blocks.0.attention", 5, 5), ("encoder.blocks.1.attention", 5, 5),
        ("decoder.blocks.0.attention", 3, 3), ("decoder.blocks.0.cross", 3, 5),
        ("decoder.blocks.1.attention", 3, 3), ("decoder.blocks.1.cross", 3, 5),
    ]  # fmt: skip


def test_every_weight_has_a_gradient():
    model = make(tied=False).train().double()
    model(tokens(2, 5), tokens(2, 3)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name


def test_wrong_shapes_and_tokens_raise():
    model = make()
    with pytest.raises(ShapeError, match=r"source has shape \(5\), expected \(b, j\)"):
        model(tokens(5), tokens(1, 3))
    with pytest.raises(ShapeError, match=r"target has shape \(3, 3\), expected \(b = 2, i\)"):
        model(tokens(2, 5), tokens(3, 3))
    with pytest.raises(ShapeError, match=r"lengths are \[5, 6\], expected 2 numbers of at most"):
        model(tokens(2, 5), tokens(2, 3), source_lengths=[5, 6])
    with pytest.raises(OptionError, match="from 50 to 50, expected 0 to 49"):
        model(torch.full((1, 2), 50), tokens(1, 3))
