"""The native gradients: within the rounding of float64 autograd, and the same every time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import Call, calls
from torch import Tensor

import limelight as ll
from limelight.errors import UnavailableError
from limelight.ops import dropout
from limelight.ops.backends import native, reference
from limelight.ops.masks.region import Region
from limelight.ops.problem import Problem, check_problem

EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


class Gradients(NamedTuple):
    """Of the inputs of a problem; None for those that it does not have."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    bias: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None
    lse: Tensor | None


class Cotangents(NamedTuple):
    """What flows back into the output and, perhaps, into the log-sum-exp."""

    out: Tensor
    lse: Tensor | None


def inputs(problem: Problem) -> tuple[Tensor | None, ...]:
    return tuple(getattr(problem, name) for name in Gradients._fields)


def problem_of(call: Call, **options: object) -> Problem:
    return check_problem(call.query, call.key, call.value, **(call.options | options))


def differentiate(problem: Problem, flow: Cotangents, implementation: object) -> Gradients:
    """Gradients by autograd through `native` or `reference`."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs(problem)]
    differentiated = replace(problem, **dict(zip(Gradients._fields, leaves, strict=True)))
    out, lse = implementation.attend(differentiated)
    ends, starts = [out], [flow.out.to(out.dtype)]
    if flow.lse is not None:
        ends, starts = [out, lse], [*starts, flow.lse.to(lse.dtype)]
    present = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(ends, present, starts))
    return Gradients(*(None if leaf is None else next(found) for leaf in leaves))


def in_dtype(problem: Problem, dtype: torch.dtype) -> Problem:
    wide = {name: None if x is None else x.to(dtype)
            for name, x in zip(Gradients._fields, inputs(problem), strict=True)}  # fmt: skip
    return replace(problem, **wide)


def magnitudes(problem: Problem, flow: Cotangents) -> Gradients:
    """The gradients with every term taken positive: what rounding errors are measured against.

    The differences dP − D cancel (wholly, with one key), and the rounding of the scores enters
    through exp, hence the sizes of the terms rather than of their sum.
    """
    p = in_dtype(problem, torch.float64)
    scores = reference.scores(p)
    weights, lse = reference.normalise(p, scores)
    group = p.query.shape[1] // p.key.shape[1]
    key, value = (x.abs().repeat_interleave(group, dim=1) for x in (p.key, p.value))
    kept = torch.ones_like(weights)
    if p.dropout:
        keep = dropout.keep(p.seed, p.dropout, p.extent.h, reference.whole(p))
        kept = keep / (1 - p.dropout)
    flow_out = flow.out.double().abs()
    grad_weights = kept * (flow_out @ value.mT)
    row_sums = (weights * grad_weights).sum(-1, keepdim=True)
    grad_given_lse = row_sums[..., 0]
    if flow.lse is not None:
        row_sums = row_sums + flow.lse.double().abs()[..., None]
    # The relative error of exp(s − lse) grows with s (a product, a bias) and lse.
    rounded = p.query.abs() @ key.mT * abs(p.scale) + scores.abs() + lse[..., None].abs()
    terms = torch.where(weights > 0, 1 + rounded, 0.0)
    grad_scores = weights * (grad_weights + row_sums) * terms

    def sum_groups(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, group)).sum(2)

    bias = slopes = sinks = given_lse = None
    if p.bias is not None:
        bias = grad_scores.sum_to_size(p.bias.shape)
    if p.slopes is not None:
        away = Region.whole(p.extent, grad_scores.device).behind.abs()
        slopes = (grad_scores * away).sum((0, 2, 3))
    if p.sinks is not None:
        sink = p.sinks[:, None]
        by_row = torch.exp(sink - lse) * row_sums[..., 0] * (1 + sink.abs() + lse.abs())
        sinks = by_row.sum((0, 2))
    if p.lse is not None:
        given_lse = grad_given_lse * terms.amax(-1) if terms.shape[-1] else grad_given_lse
    return Gradients(
        abs(p.scale) * grad_scores @ key,
        abs(p.scale) * sum_groups(grad_scores.mT @ p.query.abs()),
        sum_groups((weights * kept * terms).mT @ flow_out),
        bias,
        slopes,
        sinks,
        given_lse,
    )


def check(problem: Problem, flow: Cotangents) -> None:
    """|found − exact| ≤ 2·|reference in the same dtype − exact| + ε·(size of the terms).

    ε is that of float32 for every type of query: only the result itself is rounded to it.
    """
    found = differentiate(problem, flow, native)
    exact = differentiate(in_dtype(problem, torch.float64), flow, reference)
    plain = differentiate(problem, flow, reference)
    for name, ours, truth, theirs, size in zip(
        Gradients._fields, found, exact, plain, magnitudes(problem, flow), strict=True
    ):
        if ours is None:
            continue
        assert ours.shape == truth.shape, name
        error = (ours.double() - truth).abs()
        rounding = EPS[problem.query.dtype] * truth.abs() + 4 * EPS[torch.float32] * size + 1e-30
        bound = 2 * (theirs.double() - truth).abs() + rounding
        assert bool((error <= bound).all()), f"{name}: worst excess {(error - bound).max()}"


def flow_of(problem: Problem, with_lse: bool = False) -> Cotangents:
    b, h, i, _ = problem.extent
    out = torch.randn(b, h, i, problem.value.shape[3]).to(problem.query.dtype)
    return Cotangents(out, torch.randn(b, h, i) if with_lse else None)


def random_problem(b: int, h: int, g: int, i: int, j: int, d: int, e: int, **options) -> Problem:
    return check_problem(
        torch.randn(b, h, i, d), torch.randn(b, g, j, d), torch.randn(b, g, j, e), **options
    )


# --- against float64 ------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    calls(),
    st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from([0.0, 0.0, 0.25]),
    st.booleans(),
    st.sampled_from([None, None, "sinks", "lse"]),
)
def test_within_the_error_bound_of_float64(
    call: Call, dtype: torch.dtype, probability: float, with_lse: bool, normaliser: str | None
) -> None:
    problem = problem_of(call.to(dtype), dropout=probability)
    b, h, i, _ = problem.extent
    if normaliser == "sinks":
        problem = replace(problem, sinks=torch.randn(h))
    elif normaliser == "lse":
        problem = replace(problem, lse=torch.randn(b, h, i, dtype=torch.float64) + 2)
    check(problem, flow_of(problem, with_lse))


@settings(max_examples=8)
@given(calls(longest=300), st.booleans())
def test_many_tiles_are_within_the_bound(call: Call, with_lse: bool) -> None:
    problem = problem_of(call)
    check(problem, flow_of(problem, with_lse))


@pytest.mark.parametrize("d", [1, 8, 15, 16, 17, 33, 64, 96, 128, 200, 256])
def test_every_head_size_is_within_the_bound(d: int) -> None:
    problem = random_problem(1, 2, 1, 70, 140, d, max(1, d - 3), mask=ll.causal())
    check(problem, flow_of(problem, with_lse=True))


@pytest.mark.parametrize("repeats", list(product([False, True], repeat=4)))
def test_the_gradient_of_a_bias_sums_over_the_axes_it_repeats(repeats: tuple[bool, ...]) -> None:
    sizes = (2, 4, 140, 150)
    shape = [1 if repeated else size for repeated, size in zip(repeats, sizes, strict=True)]
    bias = torch.randn(shape)
    problem = random_problem(2, 4, 2, 140, 150, 8, 8, bias=bias, softcap=3.0)
    check(problem, flow_of(problem, with_lse=True))


def test_the_gradient_of_slopes_is_within_the_bound() -> None:
    problem = random_problem(2, 4, 2, 150, 170, 16, 16, bias=ll.alibi(4), mask=ll.causal())
    check(problem, flow_of(problem, with_lse=True))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_agree_with_pytorchs(causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 200, 64, requires_grad=True) for _ in range(3))
    flow = torch.randn(2, 3, 200, 64)
    peer = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    ours = ll.attend(q, k, v, mask=ll.causal() if causal else None, impl="native")
    pairs = zip(
        torch.autograd.grad(ours, (q, k, v), flow),
        torch.autograd.grad(peer, (q, k, v), flow),
        strict=True,
    )
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": ll.causal()},
        {"mask": ll.documents([3, 2], inside=ll.causal()), "softcap": 2.0},
        {"bias": torch.linspace(-1, 1, 5, dtype=torch.float64)},
        {"sinks": torch.tensor([0.3, -1.0], dtype=torch.float64), "mask": ll.causal()},
        {"lse": torch.linspace(0, 2, 10, dtype=torch.float64).view(1, 2, 5)},
        {"factors": torch.linspace(0.1, 2, 5, dtype=torch.float64), "mask": ll.causal()},
    ],
)
def test_the_reference_passes_gradcheck(options: dict) -> None:
    """The specification of the kernels, against finite differences."""
    shapes = (1, 2, 5, 3), (1, 1, 5, 3), (1, 1, 5, 2)
    q, k, v = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes)

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return reference.attend(check_problem(q, k, v, **options))

    assert torch.autograd.gradcheck(both, (q, k, v))
    assert torch.autograd.gradgradcheck(both, (q, k, v))


# --- the edges ------------------------------------------------------------------------------------


def test_masked_rows_and_keys_have_a_gradient_of_zero() -> None:
    allowed = torch.ones(20, 30, dtype=torch.bool)
    allowed[3] = False
    allowed[:, 7] = False
    q, k, v = torch.randn(1, 1, 20, 8), torch.randn(1, 1, 30, 8), torch.randn(1, 1, 30, 8)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    ll.attend(q, k, v, mask=allowed, impl="native").sum().backward()
    assert bool(q.grad[0, 0, 3].eq(0).all())
    assert bool(k.grad[0, 0, 7].eq(0).all())
    assert bool(v.grad[0, 0, 7].eq(0).all())
    assert all(bool(tensor.grad.isfinite().all()) for tensor in (q, k, v))


@pytest.mark.parametrize(("b", "i", "j"), [(0, 3, 3), (1, 0, 3), (1, 3, 0), (1, 0, 0), (2, 1, 1)])
def test_sizes_of_zero_and_one_are_within_the_bound(b: int, i: int, j: int) -> None:
    problem = random_problem(b, 2, 1, i, j, 4, 5)
    check(problem, flow_of(problem))
    query = differentiate(problem, flow_of(problem), native).query
    if j == 0:
        assert bool(query.eq(0).all())


def test_only_the_inputs_that_require_it_get_a_gradient() -> None:
    q, k, v = (torch.randn(1, 1, 9, 8) for _ in range(3))
    k.requires_grad_()
    ll.attend(q, k, v, impl="native").sum().backward()
    assert q.grad is None
    assert v.grad is None
    assert k.grad.shape == k.shape


def test_gradients_have_the_layout_of_their_inputs() -> None:
    """A projection viewed as `b h i d` gets its gradient without a copy."""
    q, k, v = (torch.randn(2, 40, 3, 16).transpose(1, 2).requires_grad_() for _ in range(3))
    out = ll.attend(q, k, v, impl="native")
    grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    for grad, tensor in zip(grads, (q, k, v), strict=True):
        assert grad.stride() == tensor.stride()


def test_an_expanded_gradient_of_the_output() -> None:
    """The gradient of `out.sum()` is one number expanded to a tensor: all strides are 0."""
    q, k, v = (torch.randn(1, 2, 50, 16, requires_grad=True) for _ in range(3))
    out = ll.attend(q, k, v, impl="native")
    expanded = torch.autograd.grad(out, (q, k, v), torch.ones(()).expand_as(out), retain_graph=True)
    dense = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert all(
        torch.equal(found, expected) for found, expected in zip(expanded, dense, strict=True)
    )


def test_second_order_gradients_are_refused() -> None:
    q, k, v = (torch.randn(1, 1, 4, 4, requires_grad=True) for _ in range(3))
    (grad,) = torch.autograd.grad(ll.attend(q, k, v, impl="native").sum(), q, create_graph=True)
    with pytest.raises(UnavailableError, match="impl='reference'"):
        grad.sum().backward()


# --- the same every time --------------------------------------------------------------------------


def run_forward(
    problem: Problem, flow: Cotangents
) -> tuple[tuple[object, ...], Tensor, Tensor, Cotangents]:
    """The arguments of `run_backward`, from one forward pass."""
    program, tables = (), ()
    if problem.mask is not None:
        program, tables = problem.mask.lower(problem.extent, problem.query.device)
    call = (*inputs(problem), problem.seed, tables, program,
            problem.scale, problem.softcap, problem.dropout)  # fmt: skip
    out, lse = torch.ops.limelight.attend(*call)
    return call, out, lse, flow


def run_backward(call: tuple, out: Tensor, lse: Tensor, flow: Cotangents) -> tuple[Tensor, ...]:
    wanted = [True, True, True, *(tensor is not None for tensor in call[3:6])]
    return torch.ops.limelight.attend_backward(*call, out, lse, flow.out, flow.lse, wanted)


@settings(max_examples=20)
@given(calls(longest=400))
@example(Call(*(torch.randn(1, 1, 1100, 16) for _ in range(3)), {"mask": ll.causal()}))
@example(Call(*(torch.randn(3, 2, 300, 16) for _ in range(3)), {"bias": torch.randn(300, 300)}))
def test_gradients_do_not_depend_on_the_number_of_threads(call: Call) -> None:
    problem = problem_of(call, dropout=0.1)
    arguments = run_forward(problem, flow_of(problem, with_lse=True))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            results.append(run_backward(*arguments))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            assert torch.equal(found, expected)


def test_concurrent_python_threads_get_the_same_gradients() -> None:
    problem = random_problem(1, 2, 1, 500, 500, 32, 32, mask=ll.causal())
    arguments = run_forward(problem, flow_of(problem))
    alone = run_backward(*arguments)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(run_backward, *arguments) for _ in range(12)]
        for future in futures:
            assert all(torch.equal(a, b) for a, b in zip(alone, future.result(), strict=True))


# --- memory, and the generic build ----------------------------------------------------------------

_MEMORY = """
import resource, torch, limelight as ll
def attend(n):
    q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
    ll.attend(q, k, v, mask=ll.window(64), impl="native").sum().backward()
attend(512)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attend(16384)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""

_GENERIC = """
import torch, limelight as ll
from limelight import _kernels
assert _kernels.isa() == "generic"
for options in ({}, {"mask": ll.causal()}, {"bias": torch.randn(70, 90), "softcap": 3.0}):
    q, k, v = (torch.randn(2, h, n, d).requires_grad_()
               for h, n, d in ((4, 70, 24), (2, 90, 24), (2, 90, 17)))
    flow = torch.randn(2, 4, 70, 17)
    native, plain = (
        torch.autograd.grad(ll.attend(q, k, v, impl=impl, **options), (q, k, v), flow)
        for impl in ("native", "reference"))
    for found, expected in zip(native, plain):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
print("agrees")
"""


def run_alone(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "2"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_memory_is_linear_in_the_sequence() -> None:
    """16,384 tokens: weights alone would take a gigabyte."""
    kilobytes = int(run_alone(_MEMORY))
    assert kilobytes < 64 * 1024


def test_the_generic_build_agrees() -> None:
    assert run_alone(_GENERIC, LIMELIGHT_ISA="generic").strip() == "agrees"
