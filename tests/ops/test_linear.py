"""Linear attention: the sums it promises, and how close it comes to softmax."""

from __future__ import annotations

import pytest
import torch

import limelight as ll
from limelight.errors import OptionError


def quadratic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The same operation by its n² definition."""
    phi = lambda x: torch.nn.functional.elu(x) + 1  # noqa: E731
    weights = phi(q) @ phi(k).mT
    weights = weights.tril() if causal else weights
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 127, 300])
def test_elu_features_equal_their_quadratic_form(causal: bool, n: int) -> None:
    q, k, v = torch.randn(3, 2, 3, n, 8, dtype=torch.float64)
    found = ll.attend_linear(q, k, v, causal=causal)
    assert torch.allclose(found, quadratic(q, k, v, causal))


def test_grouped_heads_share_keys() -> None:
    q, k, v = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 3)
    whole = ll.attend_linear(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    assert torch.allclose(ll.attend_linear(q, k, v), whole)


@pytest.mark.parametrize("causal", [False, True])
def test_favor_comes_closer_to_softmax_with_more_features(causal: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 200, 16)
    q, k = q / 2, k / 2  # random features estimate small scores well, large ones badly
    exact = ll.attend(q, k, v, mask=ll.causal() if causal else None)
    errors = [
        (ll.attend_linear(q, k, v, features="favor", rank=rank, causal=causal) - exact)
        .square().mean().sqrt().item()
        for rank in (32, 512, 8192)
    ]  # fmt: skip
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < errors[0] / 3
    assert errors[2] < 0.03


def test_the_seed_determines_the_features() -> None:
    q, k, v = torch.randn(3, 1, 1, 10, 4)
    first, again, other = (
        ll.attend_linear(q, k, v, features="favor", seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_wrong_options_are_named(untyped: None) -> None:
    q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 6, 8)
    with pytest.raises(OptionError, match="as many queries as keys, found i = 4, j = 6"):
        ll.attend_linear(q, k, k, causal=True)
    with pytest.raises(OptionError, match="features must be"):
        ll.attend_linear(q, k, k, features="relu")
    with pytest.raises(OptionError, match="rank must be a whole number of at least 1"):
        ll.attend_linear(q, k, k, features="favor", rank=0)
