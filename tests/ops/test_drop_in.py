"""The doors for code written against PyTorch: the same answers on the documented semantics."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

import limelight as ll
from limelight.shapes import LimelightError


def same(*args: torch.Tensor, **options: object) -> None:
    expected = F.scaled_dot_product_attention(*args, **options)
    found = ll.scaled_dot_product_attention(*args, **options)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert torch.allclose(found, expected, atol=2e-5), (found - expected).abs().max()


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize(("i", "j"), [(5, 5), (3, 7), (7, 3)])
def test_any_leading_axes_and_upper_left_causality(lead: tuple[int, ...], i: int, j: int) -> None:
    q, k, v = torch.randn(*lead, i, 8), torch.randn(*lead, j, 8), torch.randn(*lead, j, 4)
    same(q, k, v)
    same(q, k, v, is_causal=True)
    same(q, k, v, scale=0.5)


def test_leading_axes_broadcast() -> None:
    same(torch.randn(2, 3, 5, 8), torch.randn(1, 3, 6, 8), torch.randn(3, 6, 8))


@pytest.mark.parametrize("shape", [(5, 6), (1, 6), (3, 5, 6), (2, 3, 5, 6), (2, 1, 1, 6)])
def test_bool_and_float_masks(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8)
    allowed = torch.rand(shape) < 0.7
    allowed[..., 0] = True
    same(q, k, k, attn_mask=allowed)
    same(q, k, k, attn_mask=torch.randn(shape))
    infinite = torch.zeros(shape).masked_fill(~allowed, float("-inf"))
    same(q, k, k, attn_mask=infinite)


def test_a_row_of_minus_infinity_gives_zeros() -> None:
    q = torch.randn(1, 1, 4, 8)
    mask = torch.zeros(4, 4)
    mask[1] = float("-inf")
    assert bool((ll.scaled_dot_product_attention(q, q, q, attn_mask=mask)[:, :, 1] == 0).all())


def test_grouped_heads() -> None:
    q, k = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 6, 16)
    same(q, k, k, enable_gqa=True)
    with pytest.raises(LimelightError, match="enable_gqa=True"):
        ll.scaled_dot_product_attention(q, k, k)


def test_causal_together_with_a_mask_is_refused_as_in_pytorch() -> None:
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(LimelightError, match="attn_mask must be None"):
        ll.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.bool), is_causal=True)


def test_gradients_agree() -> None:
    inputs = [torch.randn(2, 3, 20, 16, requires_grad=True) for _ in range(3)]
    grad = torch.randn(2, 3, 20, 16)
    F.scaled_dot_product_attention(*inputs, is_causal=True).backward(grad)
    expected = [x.grad.clone() for x in inputs]
    for x in inputs:
        x.grad = None
    ll.scaled_dot_product_attention(*inputs, is_causal=True).backward(grad)
    for x, g in zip(inputs, expected, strict=True):
        assert torch.allclose(x.grad, g, atol=1e-5)


MODULES = [
    {},
    {"bias": False},
    {"kdim": 10, "vdim": 6},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"batch_first": True},
]


@pytest.mark.parametrize("options", MODULES)
def test_multihead_attention_loads_weights_and_gives_outputs(options: dict[str, object]) -> None:
    theirs = torch.nn.MultiheadAttention(16, 4, **options).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = ll.MultiheadAttention(16, 4, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    query, key = torch.randn(5, 5, 16), torch.randn(5, 5, int(options.get("kdim", 16)))
    value = torch.randn(5, 5, int(options.get("vdim", 16)))
    mask = torch.rand(5, 5) < 0.4
    mask.fill_diagonal_(False)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    for attn_mask, padding, weights, average in itertools.product(
        [None, mask, torch.randn(5, 5), torch.randn(20, 5, 5)],
        [None, hidden],
        [True, False],
        [True, False],
    ):
        if padding is not None and attn_mask is not None and attn_mask.dtype != padding.dtype:
            padding = torch.zeros(5, 5).masked_fill(hidden, float("-inf"))
        call = {"attn_mask": attn_mask, "key_padding_mask": padding}
        expected = theirs(
            query, key, value, need_weights=weights, average_attn_weights=average, **call
        )
        found = ours(query, key, value, need_weights=weights, average_attn_weights=average, **call)
        some = ~expected[0].isnan()
        assert torch.allclose(found[0][some], expected[0][some], atol=1e-5)
        assert (found[1] is None) == (expected[1] is None)
        if weights:
            some = ~expected[1].isnan()
            assert torch.allclose(found[1][some], expected[1][some], atol=1e-5)


def test_multihead_attention_without_a_batch_axis() -> None:
    theirs = torch.nn.MultiheadAttention(8, 2)
    ours = ll.MultiheadAttention(8, 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(6, 8)
    for found, expected in zip(ours(x, x, x), theirs(x, x, x), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)
