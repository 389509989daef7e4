"""The attention layer: every form against its formula, caches, interceptors, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limelight as ll
from limelight.errors import LimelightError, OptionError, ShapeError
from limelight.layers.attention import Attention
from limelight.layers.cache import KeyValues
from limelight.layers.rotary import Rotary
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.masks.band import causal, window
from limelight.ops.masks.padding import padding

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": "none"},
    "bias on inputs": {"bias": "inputs"},
    "grouped": {"kv_heads": 2},
    "one key head": {"kv_heads": 1, "head_size": 6},
    "value size": {"value_size": 5},
    "low rank": {"value_rank": 3},
    "low rank grouped": {"value_rank": 3, "kv_heads": 2, "value_size": 5},
    "slices": {"heads_see": "slice"},
    "slices without output": {"heads_see": "slice", "output": False, "bias": "none"},
    "no output": {"output": False},
    "scale": {"scale": 1.0},
}


def make(form: str, width: int = 16, heads: int = 4) -> Attention:
    layer = Attention(width, heads, **FORMS[form]).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def by_formula(layer: Attention, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
    """The layer head by head, by the textbook formula."""
    h, g, d, e = layer.heads, layer.kv_heads, layer.head_size, layer.value_size
    heads: list[Tensor] = []
    for t in range(h):
        if layer.heads_see == "slice":
            c = layer.width // h
            own, other = x[..., t * c : (t + 1) * c], memory[..., t * c : (t + 1) * c]
            w, b = layer.inputs.weight[t], layer.inputs.bias
            wq, wk, wv = w[:d], w[d : 2 * d], w[2 * d :]
            bq, bk, bv = (0, 0, 0) if b is None else (b[t, :d], b[t, d : 2 * d], b[t, 2 * d :])
        else:
            own, other, u = x, memory, t // (h // g)
            w, b = layer.inputs.weight, layer.inputs.bias
            b = torch.zeros(w.shape[0], dtype=w.dtype) if b is None else b
            q, k, v = slice(t * d, (t + 1) * d), h * d + u * d, (h + g) * d
            wq, bq = w[q], b[q]
            wk, bk = w[k : k + d], b[k : k + d]
            if layer.value_up is None:
                wv, bv = w[v + u * e : v + (u + 1) * e], b[v + u * e : v + (u + 1) * e]
            else:
                up = layer.value_up.weight[u * e : (u + 1) * e]
                wv, bv = up @ w[v:], up @ b[v:]
        query, key, value = own @ wq.T + bq, other @ wk.T + bk, other @ wv.T + bv
        scale = d**-0.5 if layer.scale is None else layer.scale
        scores = (query @ key.mT * scale).masked_fill(~allowed, float("-inf"))
        heads.append(torch.softmax(scores, -1) @ value)
    concatenated = torch.cat(heads, -1)
    return concatenated if layer.output is None else layer.output(concatenated)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_follows_the_textbook_formula(form: str):
    layer, x = make(form), torch.randn(2, 7, 16, dtype=torch.float64)
    allowed = causal().dense(7)[0, 0]
    assert torch.allclose(layer(x, mask=causal()), by_formula(layer, x, x, allowed))
    assert torch.allclose(layer(x), by_formula(layer, x, x, torch.ones(7, 7, dtype=torch.bool)))


@pytest.mark.parametrize("form", [form for form in FORMS if "slices" not in form])
def test_cross_attention_in_every_form_follows_the_textbook_formula(form: str):
    layer = make(form)
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    memory = torch.randn(2, 5, 16, dtype=torch.float64)
    expected = by_formula(layer, x, memory, torch.ones(3, 5, dtype=torch.bool))
    assert torch.allclose(layer(x, memory), expected)
    with torch.no_grad():
        cache = KeyValues()
        assert torch.allclose(layer(x, memory, cache=cache), expected)
        assert torch.allclose(layer(x, memory, cache=cache), expected)
        assert cache.length == 5


def test_agrees_with_pytorch_on_the_same_weights():
    peer = nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.normal_(peer.in_proj_bias)
    layer = Attention(16, 4)
    layer.inputs.load_state_dict({"weight": peer.in_proj_weight, "bias": peer.in_proj_bias})
    layer.output.load_state_dict(peer.out_proj.state_dict())
    x, memory = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
    assert torch.allclose(layer(x), peer(x, x, x)[0], atol=1e-6)
    assert torch.allclose(layer(x, memory), peer(x, memory, memory)[0], atol=1e-6)


def test_projections_are_views_of_one_product():
    layer, x = Attention(16, 4, kv_heads=2), torch.randn(2, 7, 16)
    query, key, value = layer.project(x)
    assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    assert key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    assert (query.shape, key.shape, value.shape) == ((2, 4, 7, 4), (2, 2, 7, 4), (2, 2, 7, 4))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_every_weight(form: str):
    layer = make(form)
    layer(torch.randn(2, 5, 16, dtype=torch.float64)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        # Not of every element: the bias of the keys shifts all scores of a row alike.
        assert parameter.grad.abs().max() > 1e-9, name


def test_dropout_is_for_training_only():
    layer, x = Attention(16, 4, dropout=0.5), torch.randn(1, 6, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@torch.no_grad()
@pytest.mark.parametrize("form", ["plain", "grouped", "value size", "low rank", "slices"])
@pytest.mark.parametrize("window_size", [None, 3])
def test_a_cache_in_chunks_equals_one_pass(form: str, window_size: int | None):
    layer, x = make(form), torch.randn(2, 40, 16, dtype=torch.float64)
    mask = causal() if window_size is None else window(window_size)
    rotary = Rotary(layer.head_size)
    whole = layer(x, mask=mask, rotation=rotary(torch.arange(40)))
    cache, pieces, start = KeyValues(window_size, capacity=2), [], 0
    for size in (1, 5, 1, 1, 20, 3, 9):
        rotation = rotary(torch.arange(start, start + size))
        piece = x[:, start : start + size]
        pieces.append(layer(piece, mask=mask, rotation=rotation, cache=cache))
        start += size
    assert torch.allclose(torch.cat(pieces, 1), whole)


def test_half_precision_and_autocast_keep_one_type():
    x = torch.randn(1, 5, 16)
    layer, rotation = Attention(16, 4), Rotary(4)(torch.arange(5))
    expected = layer(x, rotation=rotation)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(x, rotation=rotation)
    assert mixed.dtype == torch.bfloat16
    assert torch.allclose(mixed.float(), expected, atol=0.05)
    half = layer.bfloat16()(x.bfloat16(), rotation=rotation)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), expected, atol=0.05)


def test_an_interceptor_is_called_in_place_of_the_operation_and_removed_afterwards():
    layer, x = Attention(16, 4, kv_heads=2), torch.randn(2, 5, 16)
    calls: list[AttentionCall] = []

    def interceptor(call: AttentionCall) -> Tensor:
        calls.append(call)
        return call.attend()

    mask = padding([5, 3])
    with intercept(interceptor):
        seen = layer(x, mask=mask)
    assert torch.equal(seen, layer(x, mask=mask))
    [call] = calls
    assert call.module is layer
    assert call.mask is mask
    assert call.key.shape == (2, 2, 5, 4)

    def broken(call: AttentionCall) -> Tensor:
        raise RuntimeError("interceptor failed")

    with pytest.raises(RuntimeError, match="interceptor failed"), intercept(broken):
        layer(x)
    assert torch.equal(layer(x, mask=mask), seen)
    assert len(calls) == 1


def test_an_interceptor_can_change_the_output_of_a_layer():
    layer = Attention(8, 2, output=False)
    with intercept(lambda call: torch.zeros_like(call.query)):
        assert not layer(torch.randn(1, 3, 8)).any()


@pytest.mark.parametrize("form", FORMS)
def test_steps_end_in_the_output_and_follow_from_one_another(form: str):
    layer, x = make(form), torch.randn(5, 16, dtype=torch.float64)
    if layer.inputs.bias is not None:
        nn.init.zeros_(layer.inputs.bias)
    visible = causal().dense(5)[0, 0]
    for head in range(4):
        steps = {step.name: step.value for step in ll.steps(layer, x, head=head, mask=causal())}
        assert torch.allclose(steps["output"], layer(x[None], mask=causal())[0])
        assert torch.allclose(steps["row sums"], torch.ones((), dtype=torch.float64))
        assert torch.equal(steps["masked"].isinf(), ~visible)
        assert torch.allclose(steps["masked"][visible], steps["scaled"][visible])
        inside = x.unflatten(-1, (4, -1))[:, head] if layer.heads_see == "slice" else x
        for name in "QKV":
            assert torch.allclose(inside @ steps[f"W_{name}"], steps[name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_heads": 3}, "kv_heads must divide heads, found kv_heads = 3, heads = 4"),
        ({"kv_heads": 0}, "kv_heads must be a whole number of at least 1, found 0"),
        ({"head_size": 0}, "head_size must be"),
        ({"value_rank": 0}, "value_rank must be"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, found 1.0"),
        ({"bias": "some"}, "bias must be one of 'none', 'inputs', 'all', found 'some'"),
        ({"heads_see": "half"}, "heads_see must be 'all' or 'slice', found 'half'"),
        ({"heads_see": "slice", "kv_heads": 2}, "does not work with kv_heads or value_rank"),
        ({"heads_see": "slice", "value_rank": 2}, "does not work with kv_heads or value_rank"),
        ({"scale": float("nan")}, "scale must be a finite number, found nan"),
        ({"scale": "1"}, "scale must be a finite number, found '1'"),
        ({"dropout": "0.1"}, "dropout must be at least 0 and below 1, found '0.1'"),
        ({"dropout": [0.1]}, r"dropout must be at least 0 and below 1, found \[0.1\]"),
        ({"width": "16"}, "width must be a whole number of at least 1, found '16'"),
        ({"heads": 0}, "heads must be a whole number of at least 1, found 0"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_a_wrong_option_is_named(options: dict[str, Any], words: str):
    with pytest.raises(OptionError, match=words):
        Attention(**{"width": 16, "heads": 4, **options})


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match="width must be a multiple of heads"):
        Attention(16, 5)
    layer = Attention(16, 4)
    with pytest.raises(ShapeError, match=r"x has shape \(2, 5, 8\), expected \(b, n, m = 16\)"):
        layer(torch.zeros(2, 5, 8))
    with pytest.raises(ShapeError, match=r"memory has shape \(5, 16\)"):
        layer(torch.zeros(2, 5, 16), torch.zeros(5, 16))
    with pytest.raises(OptionError, match="cannot be used with a memory"):
        layer(*[torch.zeros(1, 5, 16)] * 2, rotation=Rotary(4)(torch.arange(5)))
    with pytest.raises(OptionError, match="cannot take a memory"):
        Attention(16, 4, heads_see="slice")(*[torch.zeros(1, 5, 16)] * 2)
    with pytest.raises(OptionError, match="without gradient"):
        layer(torch.zeros(1, 5, 16), cache=KeyValues())
    with pytest.raises(LimelightError, match="mask"):
        layer(torch.zeros(1, 5, 16), mask=torch.ones(4, 4, dtype=torch.bool))
