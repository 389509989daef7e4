"""What holds for every attention call, whatever computes it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import Call, calls

import limelight as ll
from limelight.ops.backends import reference
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import check_problem

IMPLS = ["reference", "native"]
each_implementation = pytest.mark.parametrize("impl", IMPLS)


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]


@settings(max_examples=150)
@given(calls(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_within_the_error_bound_of_float64(call: Call, dtype: torch.dtype) -> None:
    """|found − exact| ≤ 2·|reference in the same dtype − exact| + ε, everywhere.

    ε grows with the scores: rounding one moves its weight by as much as the score is large.
    """
    call = call.to(dtype)
    wide = call.to(torch.float64)
    exact = wide.run("reference")
    scores = reference.scores(check_problem(wide.query, wide.key, wide.value, **wide.options))
    largest = float(scores[scores.isfinite()].abs().max()) if scores.isfinite().any() else 0.0
    ours = (call.run("auto").double() - exact).abs()
    plain = (call.run("reference").double() - exact).abs()
    bound = 2 * plain + tolerance(dtype) * (1 + exact.abs()) * (1 + largest / 8)
    assert bool((ours <= bound).all()), f"worst excess {(ours - bound).max()}"


@each_implementation
@given(calls())
def test_rows_are_weighted_means(impl: str, call: Call) -> None:
    """Attending to ones gives one, or zero where nothing may be attended to."""
    call.value = torch.ones_like(call.value)
    out = call.run(impl)
    expected = call.allowed().any(-1, keepdim=True).to(out.dtype).expand_as(out)
    assert torch.allclose(out, expected, atol=1e-5)


@each_implementation
@given(calls())
def test_permuting_keys_with_values_changes_nothing(impl: str, call: Call) -> None:
    call.options = {k: v for k, v in call.options.items() if k in ("scale", "softcap")}
    order = torch.randperm(call.key.shape[2])
    moved = Call(call.query, call.key[:, :, order], call.value[:, :, order], call.options)
    assert torch.allclose(moved.run(impl), call.run(impl), atol=1e-5)


@each_implementation
@given(calls())
def test_permuting_queries_permutes_outputs(impl: str, call: Call) -> None:
    call.options = {k: v for k, v in call.options.items() if k in ("scale", "softcap")}
    order = torch.randperm(call.query.shape[2])
    moved = Call(call.query[:, :, order], call.key, call.value, call.options)
    assert torch.allclose(moved.run(impl), call.run(impl)[:, :, order], atol=1e-5)


@given(calls())
def test_a_mask_and_its_dense_form_agree(call: Call) -> None:
    """In the kernels, which run the mask's program; the reference makes the dense form itself."""
    assume(isinstance(call.options["mask"], Mask) and call.allowed().numel())
    other = Call(call.query, call.key, call.value, call.options | {"mask": call.allowed()})
    assert torch.allclose(call.run("native"), other.run("native"), atol=1e-5)


@each_implementation
@given(calls(longest=40), st.integers(0, 40))
def test_chunks_of_queries_equal_one_pass(impl: str, call: Call, cut: int) -> None:
    """Prefill, then the rest against the whole cache: the same rows, causal and windowed."""
    n = min(call.query.shape[2], call.key.shape[2])
    query, key, value = call.query[:, :, :n], call.key[:, :, :n], call.value[:, :, :n]
    for mask in (ll.causal(), ll.window(5), ll.causal() & ll.dilated(2)):
        cut = min(cut, n)
        whole = ll.attend(query, key, value, mask=mask, impl=impl)
        first = ll.attend(
            query[:, :, :cut], key[:, :, :cut], value[:, :, :cut], mask=mask, impl=impl
        )
        rest = ll.attend(query[:, :, cut:], key, value, mask=mask, impl=impl)
        assert torch.allclose(torch.cat([first, rest], 2), whole, atol=1e-5)


@each_implementation
def test_window_as_wide_as_the_sequence_is_no_window(impl: str) -> None:
    q, k, v = torch.randn(3, 2, 3, 50, 16)
    plain = ll.attend(q, k, v, impl=impl)
    assert torch.equal(ll.attend(q, k, v, mask=ll.window(50, 50), impl=impl), plain)


@each_implementation
def test_rows_with_nothing_to_attend_to_are_zero_and_have_zero_gradient(impl: str) -> None:
    q, k, v = (torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(3))
    allowed = torch.ones(6, 6, dtype=torch.bool)
    allowed[2] = False
    out = ll.attend(q, k, v, mask=allowed, impl=impl)
    out.square().sum().backward()
    assert bool((out[:, :, 2] == 0).all())
    assert bool((q.grad[:, :, 2] == 0).all())
    assert not any(x.grad.isnan().any() for x in (q, k, v))


@each_implementation
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_follow_the_reference(impl: str, bad: float) -> None:
    q, k, v = torch.randn(3, 1, 2, 40, 16)
    k[0, 0, 7, 3] = bad
    v[0, 1, 9, 2] = bad
    expected = ll.attend(q.double(), k.double(), v.double(), impl="reference").float()
    assert torch.allclose(ll.attend(q, k, v, impl=impl), expected, atol=1e-5, equal_nan=True)


@each_implementation
def test_dropout_repeats_with_the_seed_and_keeps_the_mean(impl: str) -> None:
    q, k = torch.randn(2, 1, 4, 64, 16)
    v = torch.ones(1, 4, 64, 4)
    torch.manual_seed(5)
    first = ll.attend(q, k, v, dropout=0.25, impl=impl)
    torch.manual_seed(5)
    assert torch.equal(ll.attend(q, k, v, dropout=0.25, impl=impl), first)
    assert not torch.equal(ll.attend(q, k, v, dropout=0.25, impl=impl), first)
    assert abs(first.mean().item() - 1) < 0.02


def test_dropout_is_the_same_draw_in_every_implementation() -> None:
    q, k, v = torch.randn(3, 2, 4, 70, 16)
    outputs = []
    for impl in (*IMPLS, "tiled"):
        torch.manual_seed(5)
        outputs.append(ll.attend(q, k, v, dropout=0.3, mask=ll.causal(), impl=impl))
    for output in outputs[1:]:
        assert torch.allclose(output, outputs[0], atol=1e-5)


@settings(max_examples=25)
@given(calls(longest=6))
def test_gradcheck_of_the_specification(call: Call) -> None:
    """Against finite differences along a random direction for each tensor, not for each element."""
    call = call.to(torch.float64)
    inputs = [x.detach().clone().requires_grad_() for x in (call.query, call.key, call.value)]
    bias = call.options.get("bias")
    if isinstance(bias, torch.Tensor):
        inputs.append(bias.clone().requires_grad_())

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        options = dict(call.options)
        if len(tensors) == 4:
            options["bias"] = tensors[3]
        return ll.attend(*tensors[:3], impl="tiled", **options)

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
