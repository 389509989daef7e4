"""Few queries against a cache: the keys are split, with the same result whatever the split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Call, masks
from torch import Tensor

import limelight as ll
from limelight.ops.backends import native, reference
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import Problem, check_problem

EPS = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = sorted(EPS, key=str)


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    before = torch.get_num_threads()
    yield 1, 2, 3
    torch.set_num_threads(before)


def cache_of(rng: torch.Generator, b: int, g: int, j: int, d: int, spare: int) -> Tensor:
    """The first j columns of a cache with spare ones, which must never be read: they are NaN."""
    cache = torch.full((b, g, j + spare, d), float("nan"))
    cache[:, :, :j] = torch.randn(b, g, j, d, generator=rng)
    return cache[:, :, :j]


@st.composite
def steps(draw: st.DrawFn) -> Call:
    """Decoding steps of every kind: group sizes, cache layouts, masks, biases, caps."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    b, g, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    i, j = draw(st.integers(1, 8)), draw(st.integers(0, 300))
    h, d = g * group, draw(st.sampled_from([1, 3, 8, 17, 32, 64, 80]))
    e, spare = draw(st.sampled_from([d, d, 1, 24, 100])), draw(st.integers(0, 5))
    query = torch.randn(b, i, h, d, generator=rng).transpose(1, 2)
    key, value = cache_of(rng, b, g, j, d, spare), cache_of(rng, b, g, j, e, spare)
    if draw(st.booleans()):  # a cache with the layout b j g d
        key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (key, value))
    options: dict[str, Any] = {"mask": draw(masks(b, h, i, j, rng))}
    match draw(st.sampled_from(["none", "none", "tensor", "alibi"])):
        case "tensor":
            shape = draw(st.sampled_from([(b, h, i, j), (1, h, 1, j), (h, i, 1), (i, j)]))
            options["bias"] = torch.randn(*shape, generator=rng)
        case "alibi":
            options["bias"] = ll.alibi(h)
    options["softcap"] = draw(st.sampled_from([None, None, 1.0, 30.0]))
    options["scale"] = draw(st.sampled_from([None, None, 0.0, -1.0, 3.0]))
    return Call(query, key, value, options)


def wide(problem: Problem, dtype: torch.dtype) -> Problem:
    tensors = {name: getattr(problem, name).to(dtype) for name in ("query", "key", "value")}
    bias = None if problem.bias is None else problem.bias.to(dtype)
    return replace(problem, **tensors, bias=bias)


def check(problem: Problem) -> None:
    """|native − ref64| ≤ 2·|reference32 − ref64| + ε, for the output and the log-sum-exp."""
    dtype = problem.query.dtype
    exact = reference.attend(wide(problem, torch.float64))
    float32 = reference.attend(wide(problem, torch.float32))
    found = native.attend(problem)
    assert found[0].dtype == dtype
    assert found[1].dtype == torch.float32
    for name, ours, plain, truth in zip(("output", "lse"), found, float32, exact, strict=True):
        finite = truth.isfinite()
        assert torch.equal(ours.double()[~finite], truth[~finite]), name
        if not finite.any():
            continue
        size = max(1.0, truth[finite].abs().max().item())
        slack = (EPS[dtype] if name == "output" else EPS[torch.float32]) * size
        allowed = 2 * (plain.double() - truth)[finite].abs().max().item() + slack
        assert (ours.double() - truth)[finite].abs().max().item() <= allowed, name


@settings(max_examples=150)
@given(call=steps(), dtype=st.sampled_from(DTYPES), dropout=st.sampled_from([0.0, 0.0, 0.3]))
def test_any_decoding_step_is_within_the_error_bound(
    call: Call, dtype: torch.dtype, dropout: float
) -> None:
    call = call.to(dtype)
    check(check_problem(call.query, call.key, call.value, **call.options, dropout=dropout))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("h", "g", "d"), [(8, 8, 64), (8, 2, 128), (9, 3, 64), (6, 1, 40)])
def test_a_long_cache_is_within_the_error_bound(h: int, g: int, d: int, dtype: torch.dtype) -> None:
    for j in (2048, 5001):
        q = torch.randn(1, h, 1, d).to(dtype)
        cache = torch.randn(2, 1, g, 2 * j, d).to(dtype)
        check(check_problem(q, cache[0, :, :, :j], cache[1, :, :, :j], scale=0.5))


def test_a_dominant_score_in_one_split_takes_all_weight() -> None:
    q = torch.ones(1, 2, 1, 16)
    k = torch.randn(1, 1, 6000, 16) * 0.1
    k[0, 0, 4321] = 40.0
    v = torch.randn(1, 1, 6000, 16)
    found = ll.attend(q, k, v, impl="native")
    torch.testing.assert_close(found, v[:, :, 4321:4322].expand(1, 2, 1, 16))


def test_the_result_does_not_depend_on_the_number_of_threads(
    thread_counts: tuple[int, ...],
) -> None:
    q, k, v = torch.randn(2, 8, 2, 64), torch.randn(2, 2, 4000, 64), torch.randn(2, 2, 4000, 64)
    problem = check_problem(q, k, v, mask=ll.causal() & ll.window(3000), dropout=0.1)
    results = []
    for count in thread_counts:
        torch.set_num_threads(count)
        results.append(native.attend(problem))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


@pytest.mark.parametrize("mask", [None, ll.causal(), ll.causal() & ll.window(100)], ids=str)
def test_token_by_token_equals_one_pass(mask: Mask | None) -> None:
    q, k, v = torch.randn(1, 6, 400, 32), torch.randn(1, 2, 400, 32), torch.randn(1, 2, 400, 32)
    whole = ll.attend(q, k, v, mask=mask, impl="native")
    for t in (0, 1, 63, 255, 399):
        end = 400 if mask is None else t + 1
        step = ll.attend(q[:, :, t : t + 1], k[:, :, :end], v[:, :, :end], mask=mask, impl="native")
        torch.testing.assert_close(step, whole[:, :, t : t + 1])


def test_a_window_reads_only_its_own_keys() -> None:
    q, k, v = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 5000, 16), torch.randn(1, 2, 5000, 16)
    seen = ll.attend(q, k[:, :, -101:], v[:, :, -101:], impl="native")
    k[:, :, :-101], v[:, :, :-101] = float("nan"), float("nan")
    found = ll.attend(q, k, v, mask=ll.window(100), impl="native")
    torch.testing.assert_close(found, seen)


def test_a_step_that_may_see_nothing_gives_zeros() -> None:
    q, k = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 1500, 16)
    out, lse = native.attend(check_problem(q, k, k, mask=ll.padding([0, 1500])))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.equal(lse[0], torch.full_like(lse[0], float("-inf")))
    assert lse[1].isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_numbers_in_a_key_follow_the_reference(bad: float) -> None:
    q, k, v = torch.ones(1, 2, 1, 16), torch.randn(1, 2, 1500, 16), torch.randn(1, 2, 1500, 16)
    k[0, 0, 700, 3] = bad
    out, lse = native.attend(check_problem(q, k, v))
    expected, expected_lse = reference.attend(check_problem(q, k, v))
    torch.testing.assert_close(out, expected, equal_nan=True)
    torch.testing.assert_close(lse.double(), expected_lse, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 2, 1, 8), (1, 0, 1, 8), (1, 2, 0, 8)])
def test_empty_sizes_give_empty_outputs(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(shape), torch.randn(*shape[:2], 5, 8)
    out, lse = native.attend(check_problem(q, k, k))
    assert out.shape == shape
    assert lse.shape == shape[:3]
