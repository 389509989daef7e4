"""What normalises a row besides its keys: sinks, a log-sum-exp that is given, factors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lens_checks import FULL, check_links, check_pooled
from problems import Call, calls
from torch import Tensor

import limelight as ll
from limelight.errors import LimelightError, UnavailableError
from limelight.ops.attend import compute, compute_with_lens
from limelight.ops.backends import native, reference, tiled
from limelight.ops.calls import AttentionCall
from limelight.ops.problem import Problem, check_problem

KINDS = ["sinks", "lse", "factors", "factors and lse", "sinks and factors"]


def oracle(problem: Problem) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp in float64, each sink a column of its own, as in gpt-oss."""
    exact = replace(
        problem,
        query=problem.query.double(),
        key=problem.key.double(),
        value=problem.value.double(),
    )
    scores = reference.scores(exact)
    if problem.factors is not None:
        scores = scores + problem.factors.double().log()
    if problem.lse is not None:
        return torch.exp(scores - problem.lse.double()[..., None]), problem.lse.double()
    b, h, i, j = problem.extent
    sinks = torch.full((h,), -torch.inf) if problem.sinks is None else problem.sinks
    column = sinks.double().view(1, h, 1, 1).expand(b, h, i, 1)
    both = torch.cat([scores, column], -1)
    return torch.softmax(both, -1)[..., :j].nan_to_num(0.0), torch.logsumexp(both, -1)


def with_normaliser(call: Call, kind: str) -> Problem:
    problem = check_problem(call.query, call.key, call.value, **call.options)
    b, h, i, j = problem.extent
    options: dict[str, Tensor] = {}
    if "sinks" in kind:
        options["sinks"] = torch.randn(h) * 2
    if "lse" in kind:
        options["lse"] = torch.randn(b, h, i, dtype=torch.float64) * 2 + 3
    if "factors" in kind:
        factors = torch.rand(h, 1, j) * 2
        options["factors"] = factors.where(factors > 0.2, 0.0)
    return check_problem(call.query, call.key, call.value, **call.options, **options)


@settings(max_examples=60)
@given(calls(), st.sampled_from(KINDS))
def test_every_backend_gives_the_weights_of_the_formula(call: Call, kind: str) -> None:
    problem = with_normaliser(call, kind)
    weights, lse = oracle(problem)
    group = problem.query.shape[1] // problem.key.shape[1]
    expected = weights @ problem.value.double().repeat_interleave(group, 1)
    size = 1 + float(weights.sum(-1).max()) if weights.numel() else 1.0
    for backend in (native, tiled, reference):
        out, total = backend.attend(problem)
        torch.testing.assert_close(out.double(), expected, atol=2e-5 * size, rtol=1e-4)
        torch.testing.assert_close(total.double(), lse, atol=2e-5, rtol=1e-5)


@settings(max_examples=40)
@given(calls(), st.sampled_from(KINDS))
def test_the_lens_of_the_kernel_sees_the_weights_of_the_formula(call: Call, kind: str) -> None:
    problem = with_normaliser(call, kind)
    if 0 in problem.extent:
        return
    weights, _ = oracle(problem)
    size = 1 + float(weights.sum(-1).max())
    lens = replace(FULL, columns=(0, -1))
    seen = compute_with_lens(problem, lens, "native")[1]
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    torch.testing.assert_close(seen.entropy.double(), entropy, atol=2e-4 * size, rtol=1e-4)
    torch.testing.assert_close(seen.received.double(), weights.sum(2), atol=1e-4 * size, rtol=1e-4)
    torch.testing.assert_close(
        seen.columns.double(), weights[..., [0, -1]], atol=1e-5 * size, rtol=1e-4
    )
    check_links(seen.top, weights, lens.top, 2e-5 * size)
    check_pooled(seen.map, np.asarray(weights), lens.map, 2e-5 * size)
    torch.testing.assert_close(seen.dense().double(), weights, atol=2e-5 * size, rtol=1e-4)
    scores = reference.scores(problem)
    if problem.factors is None:
        torch.testing.assert_close(seen.max_score, scores.amax(-1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_is_the_part_of_the_dense_weights(kind: str) -> None:
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 40, 8), torch.randn(2, 2, 40, 5)
    seen = compute_with_lens(
        with_normaliser(Call(q, k, v, {"mask": ll.causal()}), kind), ll.Lens()
    )[1]
    tile = seen.tile(slice(2, 7), slice(11, 30))
    torch.testing.assert_close(tile, seen.dense()[:, :, 2:7, 11:30])
    head = seen.heads([3]).batch_row(1).tile(slice(2, 7), slice(11, 30))
    torch.testing.assert_close(head[0, 0], tile[1, 3])


# --- large scores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [-1e9, 1e9, -1e4, -3e38])
@pytest.mark.parametrize("i", [1, 40], ids=["decoding", "tiles"])
def test_a_sink_beside_equal_scores_of_any_size(low: float, i: int) -> None:
    """Six keys and a sink of one score: a seventh each, also under vmap."""
    q, k, v = torch.zeros(1, 2, i, 8), torch.zeros(1, 2, 6, 8), torch.ones(1, 2, 6, 3)
    bias, sinks = torch.full((1, 1, 1, 6), low), torch.full((2,), low)

    def attended(q: Tensor) -> Tensor:
        return compute(check_problem(q, k, v, bias=bias, sinks=sinks))[0]

    expected = torch.full((1, 2, i, 3), 6 / 7)
    torch.testing.assert_close(attended(q), expected)
    torch.testing.assert_close(torch.vmap(attended)(q[None])[0], expected)


COMPILED = """
import torch
from limelight.ops.attend import compute
from limelight.ops.problem import check_problem
q, k, v = torch.zeros(1, 2, 40, 8), torch.zeros(1, 2, 6, 8), torch.ones(1, 2, 6, 3)

def attended(q, bias, sinks):
    return compute(check_problem(q, k, v, bias=bias, sinks=sinks))[0]

compiled = torch.compile(attended, fullgraph=True, backend="aot_eager")
for low in (0.0, -1e9, 1e9, -3e38):
    sinks = torch.full((2,), low, requires_grad=True)
    call = (q, torch.full((1, 1, 1, 6), low), sinks)
    assert torch.allclose(compiled(*call), torch.full((1, 2, 40, 3), 6 / 7)), low
    (grad,), (exact,) = (torch.autograd.grad(f(*call).sum(), sinks) for f in (compiled, attended))
    assert torch.allclose(grad, exact) and torch.allclose(grad, torch.full((2,), -120 * 6 / 49))
"""


def test_a_sink_in_a_compiled_call() -> None:
    ran = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize("low", [-1e9, 0.0, 1e9])
def test_gradients_beside_a_sink_at_large_scores(low: float) -> None:
    q, k, v = torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4), torch.randn(1, 1, 5, 4)
    sinks = torch.full((1,), low)
    found = []
    for backend in (native, reference):
        leaves = [x.clone().requires_grad_() for x in (q, v, sinks)]
        problem = check_problem(
            leaves[0], k, leaves[1], bias=torch.full((5, 5), low), sinks=leaves[2]
        )
        out, _ = backend.attend(problem)
        found.append(torch.autograd.grad((out * torch.arange(4.0)).sum(), leaves))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact)


def test_factors_survive_beside_a_large_bias() -> None:
    """log 3 is lost beside −1e9 in float32, so the factors are not added to the scores."""
    x = torch.zeros(1, 1, 4, 8)
    for low in (-1e9, -3.4e38):
        call = AttentionCall(x, x, x, bias=torch.full((4, 4), low))
        factors = torch.tensor([1.0, 3.0, 0.0, 1.0])
        weights = call.scaled(factors).attend(lens=ll.Lens())[1].dense()
        torch.testing.assert_close(weights[0, 0, 0], factors / 5)
    seen = AttentionCall(x, x, x, bias=torch.full((4, 4), -1e9)).scaled(factors, renormalise=False)
    torch.testing.assert_close(seen.attend(lens=ll.Lens())[1].dense()[0, 0, 0], factors / 4)


def test_scaling_twice_multiplies() -> None:
    x = torch.randn(1, 2, 5, 8)
    first, second = torch.rand(5) + 0.1, torch.rand(5) + 0.1
    call = AttentionCall(x, x, x)
    twice = call.scaled(first).scaled(second).attend()
    torch.testing.assert_close(twice, call.scaled(first * second).attend())


def test_a_normaliser_too_large_for_float64_is_refused() -> None:
    x = torch.zeros(1, 1, 3, 8)
    call = AttentionCall(x, x, x, bias=torch.full((3, 3), torch.finfo(torch.float32).min))
    with pytest.raises(UnavailableError, match="no digits left"):
        call.without([(0, 1)], renormalise=False)
    weights = call.without([(0, 1)]).attend(lens=ll.Lens())[1].dense()
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([0.5, 0.0, 0.5]))


# --- nothing to normalise by ----------------------------------------------------------------------


@pytest.mark.parametrize("sink", [None, -torch.inf])
def test_a_row_normalised_by_nothing_is_zero(sink: float | None) -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    lse = torch.zeros(1, 2, 4)
    lse[0, 0, 1] = -torch.inf
    sinks = None if sink is None else torch.full((2,), sink)
    problem = check_problem(q, k, v, lse=lse, sinks=sinks)
    for backend in (native, tiled, reference):
        out, _ = backend.attend(problem)
        assert bool(out[0, 0, 1].eq(0).all())
        assert bool(out.isfinite().all())
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(bool(grad.isfinite().all()) for grad in grads)
        assert bool(grads[0][0, 0, 1].eq(0).all())


def test_rows_without_keys_beside_a_sink() -> None:
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8)
    problem = check_problem(q, k, k, mask=ll.padding([0]), sinks=torch.tensor([0.5, -torch.inf]))
    for backend in (native, tiled, reference):
        out, lse = backend.attend(problem)
        assert bool(out.eq(0).all())
        torch.testing.assert_close(lse.float()[0, :, 0], torch.tensor([0.5, -torch.inf]))


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        (torch.tensor([1.0, -1.0]), "at least 0"),
        (torch.tensor([1.0, torch.nan]), "at least 0"),
        (torch.tensor([1, 1]), "at least 0"),
        (torch.ones(3), "factors"),
    ],
)
def test_wrong_factors_are_named(factors: Tensor, words: str) -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(LimelightError, match=words):
        AttentionCall(x, x, x).scaled(factors)
