"""Edge cases of the kernels: NaN behind a mask, huge scores, negated views, empty axes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import limelight as ll
from limelight import _kernels
from limelight.ops.activations import gelu
from limelight.ops.project import project


def eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, -1) @ v


@pytest.mark.parametrize("n", [20, 700])
def test_nan_behind_a_mask_reaches_no_gradient(n: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16) for _ in range(3))
    for x in (q, k, v):
        x[:, :, -5:] = torch.nan
    finite = n - 5
    mask = ll.documents([finite, 5])  # queries with NaN see exactly the keys with NaN
    leaves = [x.requires_grad_() for x in (q, k, v)]
    ll.attend(*leaves, mask=mask)[:, :, :finite].sum().backward()
    short = [x.detach()[:, :, :finite].clone().requires_grad_() for x in leaves]
    ll.attend(*short).sum().backward()
    for masked, expected in zip(leaves, short, strict=True):
        assert masked.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(masked.grad[:, :, :finite], expected.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 64])
def test_100_000_equal_scores_give_the_mean(heads: int) -> None:
    torch.manual_seed(0)
    j = 100_000
    q, k = torch.zeros(1, heads, 1, 8), torch.zeros(1, 1, j, 8).expand(1, heads, j, 8)
    v = 1 + torch.rand(1, 1, j, 8)
    out = ll.attend(q, k, v.expand(1, heads, j, 8))
    exact = v.double().mean(2, keepdim=True)
    assert (out.double() - exact).abs().max() < 2e-6


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("low", [-1e4, -1e9, -1e30, LOWEST])
@pytest.mark.parametrize("i", [1, 90])
def test_rows_of_very_low_scores_match_eager_softmax(low: float, i: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, i, 8), torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8)
    bias = torch.full((i, 90), low)
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    out, expected = ll.attend(*ours, bias=bias), eager(*theirs, bias)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3 if low == -1e4 else 1e-6)
    out.square().sum().backward()
    expected.square().sum().backward()
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad, their.grad, rtol=1e-2, atol=2e-3)
    seen = ll.attend(q, k, v, bias=bias, lens=ll.Lens(entropy=True, received=True))[1]
    assert seen.received is not None
    torch.testing.assert_close(seen.received.sum(-1), torch.full((1, 2), float(i)))


def test_only_an_infinite_bias_masks() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    bias = torch.full((4, 4), LOWEST)
    bias[0] = -torch.inf
    bias[1, :2] = -torch.inf
    bias[2, 1] = torch.finfo(torch.float32).max
    out = ll.attend(q, k, v, bias=bias)[0, 0]
    assert out[0].tolist() == [0] * 8
    torch.testing.assert_close(out[1], v[0, 0, 2:].mean(0))
    torch.testing.assert_close(out[2], v[0, 0, 1])
    torch.testing.assert_close(out[3], v[0, 0].mean(0))


def test_views_with_the_negative_bit_are_resolved() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 6, 8)
    negative = torch._neg_view(x)
    bias = torch._neg_view(torch.randn(6, 6))
    assert negative.is_neg()
    assert bias.is_neg()
    torch.testing.assert_close(ll.attend(negative, x, x), ll.attend(-x, x, x))
    torch.testing.assert_close(ll.attend(x, negative, negative), ll.attend(x, -x, -x))
    torch.testing.assert_close(ll.attend(x, x, x, bias=bias), ll.attend(x, x, x, bias=bias.clone()))
    imaginary = torch.randn(1, 2, 6, 8, dtype=torch.complex64).conj().imag
    assert imaginary.is_neg()
    torch.testing.assert_close(ll.attend(imaginary, x, x), ll.attend(imaginary.clone(), x, x))
    lens = ll.Lens(entropy=True)
    seen = [ll.attend(n, x, x, lens=lens)[1].entropy for n in (negative, -x)]
    assert seen[0] is not None
    torch.testing.assert_close(seen[0], seen[1])
    q = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(ll.attend(q, x, x), q, torch._neg_view(x))
    (expected,) = torch.autograd.grad(ll.attend(q, x, x), q, -x)
    torch.testing.assert_close(grad, expected)
    weight = torch.randn(5, 8)
    with torch.inference_mode():
        torch.testing.assert_close(
            project(negative[0, 0, :2], weight), F.linear(-x[0, 0, :2], weight)
        )
        torch.testing.assert_close(gelu(negative), F.gelu(-x))
    out, lse = torch.empty(1, 2, 6, 8), torch.empty(1, 2, 6)
    with pytest.raises(ValueError, match="query has torch's negative bit"):
        _kernels.forward(negative, x, x, None, None, None, None, [], [], 1.0, 0.0, 0.0, 0, out, lse)
    assert _kernels.attend_plain(negative, x, x, (), None, False) is None


def test_empty_axes_are_accepted() -> None:
    x = torch.randn(1, 2, 4, 8)
    strided = torch.empty(1, 2, 0, 16)[..., ::2]  # empty, and its last axis is not dense
    out, lse = torch.empty(1, 2, 0, 8), torch.empty(1, 2, 0)
    _kernels.forward(strided, x, x, None, None, None, None, [], [], 1.0, 0.0, 0.0, 0, out, lse)
    assert ll.attend(strided, x, x).shape == (1, 2, 0, 8)
    assert ll.attend(x, strided, strided).eq(0).all()


def test_zero_query_heads_raise_the_same_error_on_the_fast_and_the_general_path() -> None:
    q, k = torch.randn(1, 0, 4, 8), torch.randn(1, 3, 4, 8)
    for bias in (None, torch.zeros(4, 4)):  # a bias takes the general path
        with pytest.raises(ll.LimelightError, match="expected a number that divides query's h = 0"):
            ll.attend(q, k, k, bias=bias)


@pytest.mark.parametrize("band", [2**63 - 1, 2**62, 6])
def test_a_band_wider_than_the_call_holds_all_weight(band: int) -> None:
    x = torch.randn(1, 1, 6, 8)
    seen = ll.attend(x, x, x, lens=ll.Lens(band=band))[1]
    assert seen.band is not None
    torch.testing.assert_close(seen.band, torch.ones(1, 1, 6))
