"""The key/value cache: appending, windows, selecting rows, packed prompts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import OptionError, ShapeError
from limelight.layers.cache import Cache, KeyValues


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    window=st.none() | st.integers(0, 7),
    capacity=st.integers(1, 8),
)
def test_append_returns_the_keys_that_may_still_be_seen(
    sizes: list[int], window: int | None, capacity: int
):
    cache, whole, read = KeyValues(window, capacity), torch.randn(2, 3, sum(sizes), 4), 0
    for size in sizes:
        piece = whole[:, :, read : read + size]
        keys, values = cache.append(piece, -piece[..., :2])
        read += size
        first = 0 if window is None else max(0, read - size - window)
        assert torch.equal(keys, whole[:, :, first:read])
        assert torch.equal(values, -whole[:, :, first:read, :2])


def test_a_window_bounds_the_storage():
    cache = KeyValues(window=10, capacity=4)
    for _ in range(1000):
        cache.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    assert cache._keys is not None
    assert cache._keys.shape[2] <= 64


def test_storage_doubles_so_that_appending_stays_cheap():
    cache, moves, address = KeyValues(capacity=1), 0, 0
    for _ in range(500):
        keys, _ = cache.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
        moves, address = moves + (keys.data_ptr() != address), keys.data_ptr()
    assert moves <= 10


def test_rows_are_selected_and_repeated():
    cache = Cache(2, capacity=2)
    content = torch.randn(3, 1, 4, 2)
    for block in cache.blocks:
        block.self_attention.append(content, content)
        block.cross_attention.append(content[:, :, :1], content[:, :, :1])
    cache.lengths = [4, 2, 3]
    cache.select(torch.tensor([2, 0, 2, 2]))
    for block in cache.blocks:
        assert torch.equal(block.self_attention.stored()[0], content[[2, 0, 2, 2]])
        assert torch.equal(block.cross_attention.stored()[1], content[[2, 0, 2, 2], :, :1])
    assert cache.lengths == [3, 4, 3, 3]
    keys, _ = cache.blocks[0].self_attention.append(
        content[[0, 0, 0, 0], :, :1], content[[0, 0, 0, 0], :, :1]
    )
    assert keys.shape == (4, 1, 5, 2)


def test_packed_rows_are_right_aligned():
    cache = Cache(1)
    cache.begin_packed([2, 3, 1], torch.device("cpu"))
    packed = torch.arange(6.0).view(1, 1, 6, 1) + 1
    keys, _ = cache.blocks[0].self_attention.append(packed, packed)
    cache.advance_packed([2, 3, 1])
    assert torch.equal(keys, packed)
    stored, _ = cache.blocks[0].self_attention.stored()
    assert stored[:, 0, :, 0].tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 6]]
    assert (cache.length, cache.lengths) == (3, [2, 3, 1])
    cache.advance(1)
    assert (cache.length, cache.lengths) == (4, [3, 4, 2])


@pytest.mark.usefixtures("untyped")
def test_wrong_use_of_a_cache_is_refused():
    cache = KeyValues()
    with pytest.raises(OptionError, match="empty"):
        cache.stored()
    cache.append(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 5))
    with pytest.raises(
        ShapeError, match=r"key has shape \(1, 3, 1, 5\), expected \(2, 3, any, 5\)"
    ):
        cache.append(torch.zeros(1, 3, 1, 5), torch.zeros(1, 3, 1, 5))
    with pytest.raises(OptionError, match="need an empty cache, found 4 tokens"):
        cache.expect_packed(torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(OptionError, match="without gradient"):
        cache.append(torch.zeros(2, 3, 1, 5, requires_grad=True), torch.zeros(2, 3, 1, 5))
    for options in ({"layers": 0}, {"layers": 1, "window": -1}, {"layers": 1, "capacity": 0}):
        with pytest.raises(OptionError, match="cache"):
            Cache(**options)
