"""The activations against PyTorch's own in float64, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import functional as F

from limelight.ops.activations import gelu, gelu_tanh, swiglu

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "gelu": (gelu, F.gelu),
    "gelu_tanh": (gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    "swiglu": (swiglu, lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(2,), (3, 14), (1, 2, 6), (5, 8192 + 6), (0, 4), (70000,)])
def test_values_and_gradients_are_those_of_pytorch(name: str, shape: tuple[int, ...]):
    ours, theirs = ACTIVATIONS[name]
    x = (4 * torch.randn(shape)).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, expected = ours(x), theirs(exact)
    assert y.shape == expected.shape
    assert torch.allclose(y.double(), expected, rtol=1e-6, atol=1e-6)
    grad = torch.randn(y.shape)
    y.backward(grad)
    expected.backward(grad.double())
    assert x.grad is not None
    assert exact.grad is not None
    assert torch.allclose(x.grad.double(), exact.grad, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_over_the_whole_range_of_float32(name: str):
    ours, theirs = ACTIVATIONS[name]
    x = torch.cat((torch.linspace(-30, 30, 100001), torch.logspace(-30, 30, 200)))
    error = (ours(x).double() - theirs(x.double())).abs()
    assert (error <= 3e-7 * x.double().abs().clamp(min=1)).all()
    assert ours(torch.tensor([float("nan")])).isnan().all()
    assert ours(torch.tensor([float("inf")])).item() == float("inf")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_the_kernel_does_not_take_goes_to_pytorch(name: str):
    ours, theirs = ACTIVATIONS[name]
    x = torch.randn(4, 6)
    for other in (x.double(), x.bfloat16(), x.T.contiguous().T, x[:, ::3]):
        assert torch.allclose(ours(other), theirs(other), atol=1e-6)
    assert torch.allclose(torch.vmap(ours)(x), theirs(x), atol=1e-6)
    slope = torch.func.grad(lambda t: ours(t).sum())(x)
    leaf = x.clone().requires_grad_()
    ours(leaf).sum().backward()
    assert torch.allclose(leaf.grad, slope, atol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_modes_and_forward_gradients_are_served_by_pytorch(name: str):
    ours, theirs = ACTIVATIONS[name]
    x = torch.randn(4, 6)
    with FakeTensorMode():
        fake = torch.empty(4, 6)
        assert ours(fake).shape == theirs(fake).shape
    _, tangent = torch.func.jvp(ours, (x,), (torch.ones_like(x),))
    _, expected = torch.func.jvp(theirs, (x,), (torch.ones_like(x),))
    assert torch.allclose(tangent, expected, atol=1e-6)
    with forward_ad.dual_level():
        dual = ours(forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.allclose(forward_ad.unpack_dual(dual).tangent, expected, atol=1e-6)
    traced, other = torch.jit.trace(ours, (x,)), torch.randn(4, 6)
    assert torch.allclose(traced(other), theirs(other), atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_gradients_are_those_of_pytorch(name: str):
    ours, theirs = ACTIVATIONS[name]
    results: list[Tensor] = []
    for function in (ours, theirs):
        x = torch.linspace(-2, 2, 12).requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append(second)
    assert torch.allclose(*results, atol=1e-5)


def test_swiglu_of_an_odd_axis_raises():
    with pytest.raises(RuntimeError):
        swiglu(torch.randn(3, 5))
