"""A Seen in place of dense weights: rows on demand, tensor operators, memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lens_checks import FULL, dense64, tensors
from torch import Tensor

import limelight as ll
from limelight.errors import OptionError
from limelight.ops.backends import tiled
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.lens.statistics import Collector
from limelight.ops.masks.region import Extent


def test_parts_equal_those_of_the_dense_weights():
    q, k, v = tensors()
    bias = torch.randn(4, 19, 23)
    _, seen = ll.attend(q, k, v, mask=ll.causal(), bias=bias, lens=FULL)
    _, weights = dense64(q, k, v, mask=ll.causal(), bias=bias)

    def close(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)

    close(seen.rows([5, -1, 5]), weights[:, :, [5, 18, 5]])
    close(seen.rows(slice(3, 9, 2)), weights[:, :, 3:9:2])
    close(seen.tile(rows=slice(2, 9), columns=slice(-8, None)), weights[:, :, 2:9, -8:])
    heads = seen.heads([3, 0])
    close(heads.dense(), weights[:, [3, 0]])
    assert torch.equal(heads.top.indices, seen.top.indices[:, [3, 0]])
    assert torch.equal(heads.received, seen.received[:, [3, 0]])
    row = heads.batch_row(1)
    close(row.dense(), weights[1:, [3, 0]])
    assert torch.equal(row.map.max, heads.map.max[1:])


def test_dense_refuses_beyond_its_limit():
    q, k, v = tensors()
    _, seen = ll.attend(q, k, v, lens=Lens())
    with pytest.raises(OptionError, match=r"need 13.7 KB, more than limit = 1000 bytes; .*rows"):
        seen.dense(limit=1000)
    assert seen.dense(limit=2 * 4 * 19 * 23 * 4).shape == (2, 4, 19, 23)


def test_no_tensor_is_quadratic_in_the_sequence(monkeypatch):
    """However long the text, no tile exceeds the limit."""
    tile_sizes: list[int] = []
    add = Collector.add

    def record_and_add(collector, tile):
        tile_sizes.append(tile.weights.numel())
        add(collector, tile)

    monkeypatch.setattr(Collector, "add", record_and_add)
    monkeypatch.setattr(tiled, "TILE", 1 << 13)
    q = torch.randn(1, 2, 512, 4)
    ll.attend(q, q, q, mask=ll.causal(), lens=Lens(top=2, map=(8, 8)), impl="tiled")
    assert max(tile_sizes) <= 1 << 13
    assert sum(tile_sizes) == 2 * 512 * 512


def test_a_seen_keeps_references_or_nothing():
    q, k, v = tensors()
    q.requires_grad_()
    out, seen = ll.attend(q, k, v, lens=Lens(top=2))
    assert seen.source.problem.query.data_ptr() == q.data_ptr()
    assert not seen.source.problem.query.requires_grad
    assert out.requires_grad
    assert not seen.top.weights.requires_grad
    _, seen = ll.attend(q, k, v, lens=Lens(top=2, keep=False))
    assert seen.source is None
    with pytest.raises(OptionError, match="keep=False"):
        seen.rows([0])


def test_a_seen_stands_for_its_dense_weights():
    q, k, v = tensors()
    _, seen = ll.attend(q, k, v, lens=Lens())
    weights = seen.dense()
    assert seen.shape == weights.shape
    assert len(seen) == 2
    assert torch.equal(torch.as_tensor(seen), weights)
    np.testing.assert_array_equal(np.asarray(seen), weights.numpy())
    assert torch.equal(torch.stack([seen, seen])[1], weights)
    assert torch.equal(seen[0, 3, :, 2:4], weights[0, 3, :, 2:4])
    assert torch.equal(seen[-1, -2], weights[-1, -2])
    assert torch.equal(seen[:, 1], weights[:, 1])
    assert torch.equal(seen[1], weights[1])
    assert all(map(torch.equal, seen, weights))
    with pytest.raises(IndexError, match="index 2 is out of bounds for 2"):
        _ = seen[2]
    assert torch.equal(seen.mean(dim=1), weights.mean(dim=1))
    assert torch.equal(2 * seen + seen, 3 * weights)
    assert torch.equal(seen @ seen.mT, weights @ weights.mT)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = seen.nonsense


def test_a_seen_takes_the_operators_of_tensors_and_the_functions_of_numpy():
    weights = torch.rand(1, 2, 3, 4) + 0.1
    seen = Seen.of_weights(weights)
    array = weights.numpy()
    for found, expected in (
        (-seen, -weights), (+seen, weights), (abs(seen), weights),
        (seen**2, weights**2), (2**seen, 2**weights), (1 / seen, 1 / weights),
        (seen // 0.3, weights // 0.3), (1 // seen, 1 // weights),
        (seen % 0.3, weights % 0.3), (1 % seen, 1 % weights),
        (seen == weights[0, 0, 0, 0], weights == weights[0, 0, 0, 0]),
        (seen != 0, weights != 0), (weights.mT @ seen, weights.mT @ weights),
        ((seen > 0.5) & (seen < 0.9), (weights > 0.5) & (weights < 0.9)),
    ):  # fmt: skip
        assert torch.equal(found, expected)
    for found, expected in (
        (np.mean(seen), array.mean()), (np.mean(seen, axis=1), array.mean(axis=1)),
        (np.stack([seen, seen]), np.stack([array, array])), (np.exp(seen), np.exp(array)),
        (array + seen, array + array), (np.float64(2) * seen, np.float64(2) * array),
        (np.add.reduce(seen, axis=3), array.sum(3)),
        (np.einsum("bhij->hj", seen), array.sum((0, 2))),
    ):  # fmt: skip
        assert not isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len({seen, seen}) == 1


def test_a_seen_is_found_in_a_list():
    """If == returned a tensor, `in` would raise: its truth value is ambiguous."""
    seen, other = (Seen.of_weights(torch.rand(1, 2, 3, 4)) for _ in range(2))
    assert seen in [None, "a", False, other, seen]
    assert seen not in [None, "a", True, other]
    assert [other, seen].index(seen) == 1


def test_changing_weights_in_place_is_refused():
    seen = Seen.of_weights(torch.rand(1, 2, 3, 4))

    def assign() -> None:
        seen[0, 0] = 0

    for change in (
        assign,
        lambda: seen.zero_(),
        lambda: torch.add(seen.dense(), 1, out=seen),
        lambda: np.add(seen, 1, out=seen),
    ):
        with pytest.raises(OptionError, match=r"cannot be changed in place.*take dense\(\)"):
            change()


def test_the_seen_of_dense_weights_equals_that_of_the_call():
    q, k, v = tensors(dtype=torch.float64)
    _, weights = dense64(q, k, v, mask=ll.causal())
    seen = Seen.of_weights(weights, FULL, value=v)
    _, live = ll.attend(q, k, v, mask=ll.causal(), lens=FULL)
    for name in ("entropy", "distance", "columns", "band", "received", "top", "value_top", "map"):
        torch.testing.assert_close(getattr(seen, name), getattr(live, name))
    assert torch.equal(seen.rows([3]), weights[:, :, 3:4])
    with pytest.raises(OptionError, match="no value was given"):
        Seen.of_weights(weights, Lens(value_top=1))


def test_the_default_limit_is_named_in_gigabytes():
    weights = torch.zeros(1).expand(1, 300, 1000, 1000)
    seen = Seen(Extent(1, 300, 1000, 1000), Lens(), Statistics(weights[..., 0]), None)
    with pytest.raises(OptionError, match=r"need 1.1 GB, more than limit = 1.0 GB"):
        seen.dense()


@pytest.mark.parametrize("factor", [1, 10, 100, 1000])
def test_recomputed_weights_stay_exact_where_scores_are_large(factor):
    q, k = torch.randn(1, 2, 40, 64) * factor, torch.randn(1, 2, 300, 64)
    _, seen = ll.attend(q, k, k, mask=ll.window(90, 5), lens=ll.Lens())
    exact = torch.softmax(dense64(q, k, k, mask=ll.window(90, 5))[0], -1)
    plain = ll.attend(q, k, k, mask=ll.window(90, 5), lens=ll.Lens(), impl="reference")[1].dense()
    bound = 2 * (plain - exact).abs().max() + 1e-6
    assert (seen.dense() - exact).abs().max() <= bound
    assert (
        seen.tile(slice(3, 9), slice(100, 270)) - exact[:, :, 3:9, 100:270]
    ).abs().max() <= bound
    assert torch.allclose(seen.rows([0, 7]).sum(-1), torch.ones(1, 2, 2), atol=2e-6)
