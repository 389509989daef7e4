"""Feed-forward layers, norms and blocks against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from limelight.errors import OptionError, ShapeError
from limelight.layers.attention import Attention
from limelight.layers.block import Block
from limelight.layers.feedforward import FeedForward
from limelight.layers.norm import make_norm


def test_feedforward_follows_its_formulas():
    x = torch.randn(2, 3, 8)
    activations = {
        "relu": F.relu,
        "gelu": lambda y: 0.5 * y * (1 + torch.erf(y / 2**0.5)),
        "gelu_tanh": lambda y: (
            0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
        ),
    }
    for activation, function in activations.items():
        layer = FeedForward(8, 12, activation=activation)
        assert torch.allclose(layer(x), layer.down(function(layer.up(x))), atol=1e-6)
    layer = FeedForward(8, 12, activation="swiglu", bias=False)
    gate, up = layer.up.weight[:12], layer.up.weight[12:]
    expected = (x @ gate.T * torch.sigmoid(x @ gate.T) * (x @ up.T)) @ layer.down.weight.T
    assert torch.allclose(layer(x), expected, atol=1e-6)
    assert layer.up.bias is None
    assert FeedForward(8).up.out_features == 32


def test_without_gradients_a_long_text_passes_the_feedforward_layer_in_chunks():
    layer, x = FeedForward(8, 12, activation="swiglu"), torch.randn(2, 1300, 8)
    lengths: list[int] = []
    layer.up.register_forward_hook(lambda _, args, __: lengths.append(args[0].shape[-2]))
    expected = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
    assert lengths == [1300, 1024, 1024, 552]  # in one piece where a gradient may be needed


@pytest.mark.usefixtures("untyped")
def test_wrong_options_of_feedforward_and_norm_are_named():
    with pytest.raises(OptionError, match=r"activation must be one of .* found 'tanh'"):
        FeedForward(8, activation="tanh")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="hidden must be a whole number of at least 1, found 0"):
        FeedForward(8, 0)
    with pytest.raises(ShapeError, match=r"x has shape \(2, 7\), expected m = 8"):
        FeedForward(8)(torch.zeros(2, 7))
    with pytest.raises(OptionError, match="norm must be 'layer' or 'rms', found 'batch'"):
        make_norm("batch", 8, 1e-5)  # pyright: ignore[reportArgumentType]


def test_norms_follow_their_formulas():
    x = torch.randn(3, 8)
    rms = make_norm("rms", 8, 1e-6)
    nn.init.normal_(rms.weight)
    assert torch.allclose(
        rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * rms.weight
    )
    layer = make_norm("layer", 8, 1e-6)
    centred = x - x.mean(-1, keepdim=True)
    assert torch.allclose(
        layer(x), centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    )


def block(order: str, *, cross: bool = False) -> Block:
    return Block(
        Attention(8, 2), FeedForward(8), order=order, cross=Attention(8, 2) if cross else None
    )


def test_orders_follow_their_formulas():
    x, memory = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    for cross in (False, True):
        b = block("pre", cross=cross)
        a = x + b.attention(b.attention_norm(x))
        a = a + b.cross(b.cross_norm(a), memory) if cross else a
        assert torch.allclose(b(x, memory), a + b.feedforward(b.feedforward_norm(a)), atol=1e-6)

        b = block("post", cross=cross)
        a = b.attention_norm(x + b.attention(x))
        a = b.cross_norm(a + b.cross(a, memory)) if cross else a
        assert torch.allclose(b(x, memory), b.feedforward_norm(a + b.feedforward(a)), atol=1e-6)

        b = block("late", cross=cross)
        a = b.attention(x)
        a = b.cross(a, memory) if cross else a
        assert torch.allclose(b(x, memory), b.feedforward_norm(b.feedforward(a) + a), atol=1e-6)
        assert b.attention_norm is None


def test_dropout_is_for_training_only():
    b = Block(Attention(8, 2), FeedForward(8), dropout=0.5)
    x = torch.randn(1, 5, 8)
    assert not torch.equal(b(x), b(x))
    b.eval()
    assert torch.equal(b(x), b(x))


@pytest.mark.usefixtures("untyped")
def test_wrong_options_of_a_block_are_named():
    with pytest.raises(OptionError, match=r"order must be .* found 'middle'"):
        block("middle")
    with pytest.raises(OptionError, match="width 8 as its attention"):
        Block(Attention(8, 2), FeedForward(16))
    with pytest.raises(OptionError, match="without output projection gives 6 channels"):
        Block(Attention(8, 2, head_size=3, output=False), FeedForward(8))
    with pytest.raises(OptionError, match="dropout must be at least 0 and below 1, found 1"):
        Block(Attention(8, 2), FeedForward(8), dropout=1.0)
    with pytest.raises(OptionError, match="memory must be given"):
        block("pre", cross=True)(torch.zeros(1, 2, 8))
