"""Projections of a few rows: as exact as PyTorch's, gradients where they are wanted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import functional as F

from limelight.ops import project as module
from limelight.ops.project import project


@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 5), (8, 8), (9, 17), (16, 576), (963, 577), (33, 1536)]
)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("biased", [False, True])
def test_few_rows_are_as_exact_as_pytorchs(shape: tuple[int, int], rows: int, biased: bool) -> None:
    outputs, channels = shape
    x, weight = torch.randn(rows, channels), torch.randn(shape)
    bias = torch.randn(outputs) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    with torch.no_grad():
        error = (project(x, weight, bias) - exact).abs().max()
    assert error <= 2 * (F.linear(x, weight, bias) - exact).abs().max() + 1e-5


def test_a_bias_of_another_size_is_left_to_pytorch() -> None:
    """The kernel would read beyond its end."""
    x, weight = torch.randn(2, 4), torch.randn(6, 4)
    with torch.no_grad():
        bias = torch.randn(1)
        torch.testing.assert_close(project(x, weight, bias), F.linear(x, weight, bias))
        with pytest.raises(RuntimeError, match="expanded size"):
            project(x, weight, torch.randn(5))
        torch.testing.assert_close(project(x, weight[0]), F.linear(x, weight[0]))


def count_kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each call that reaches the kernel."""
    calls: list[int] = []
    kernels = module.kernels
    assert kernels is not None

    def counted(*arguments: Any) -> None:
        calls.append(1)
        kernels.skinny_gemm(*arguments)

    monkeypatch.setattr(module, "kernels", SimpleNamespace(skinny_gemm=counted))
    return calls


def test_any_shape_and_stride_of_few_rows_reaches_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = count_kernel_calls(monkeypatch)
    weight = torch.randn(5, 6)
    with torch.inference_mode():
        for x in (
            torch.randn(6),
            torch.randn(2, 1, 6),
            torch.randn(6, 4).t(),
            torch.randn(1, 12)[:, ::2],
        ):
            assert torch.allclose(project(x, weight), F.linear(x, weight), atol=1e-6)
        assert len(calls) == 4
        assert project(torch.randn(0, 6), weight).shape == (0, 5)


def test_what_the_kernel_leaves_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_kernel_calls(monkeypatch)
    x, weight = torch.randn(2, 6), torch.randn(5, 6)
    with torch.no_grad():
        for a, b in (
            (torch.randn(9, 6), weight),
            (x.double(), weight.double()),
            (x.bfloat16(), weight.bfloat16()),
            (x, torch.randn(6, 5).t()),
        ):
            assert torch.equal(project(a, b), F.linear(a, b))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert project(x, weight).dtype is torch.bfloat16
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            project(x, torch.randn(5, 7))
    weight.requires_grad_()
    project(x, weight).sum().backward()
    assert torch.allclose(weight.grad, x.sum(0).expand(5, 6))
    assert calls == []


def test_modes_tracing_and_forward_gradients_are_served_by_pytorch() -> None:
    x, weight = torch.randn(2, 6), torch.randn(5, 6)
    with torch.no_grad():
        with FakeTensorMode():
            assert project(torch.empty(2, 6), torch.empty(5, 6)).shape == (2, 5)
        with forward_ad.dual_level():
            y = project(forward_ad.make_dual(x, torch.ones_like(x)), weight)
            tangent = forward_ad.unpack_dual(y).tangent
            assert torch.allclose(tangent, weight.sum(1).expand(2, 5), atol=1e-5)
        rows = torch.vmap(lambda row: project(row, weight))(x)
        assert torch.allclose(rows, F.linear(x, weight), atol=1e-6)
        traced = torch.jit.trace(lambda x: project(x, weight), (x,))
        other = torch.randn(2, 6)
        assert torch.equal(traced(other), F.linear(other, weight))


def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    x, weight = torch.randn(3, 640), torch.randn(2000, 640)
    threads = torch.get_num_threads()
    results: list[torch.Tensor] = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append(project(x, weight))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
