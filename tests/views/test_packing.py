"""Packed weights print the same three decimals as the weights that were packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limelight.views.page.packing import Packed, packed_channels, packed_weights, unpacked


def read_weights(found: Packed) -> np.ndarray:
    """As the page reads them."""
    data = np.frombuffer(unpacked(found.data), dtype=np.uint8).astype(int)
    # every weight has a byte, and two more where that says 255
    count = next(n for n in range(len(data) + 1) if n + 2 * (data[:n] == 255).sum() == len(data))
    names, (lows, highs) = data[:count], data[count:].reshape(2, -1)
    codes = np.array([*found.levels, *[0] * 256])[names]
    codes[names == 255] = lows + 256 * highs
    return (codes / 65535) ** 2


def thousandths(values: np.ndarray) -> np.ndarray:
    return np.floor(values * 1000 + 0.5)


@given(st.lists(st.floats(0, 1, width=32), max_size=200), st.sampled_from([0, 1, 4, 16]))
def test_three_decimals_survive(values: list[float], parts: int) -> None:
    weights = torch.tensor(values, dtype=torch.float32)
    back = read_weights(packed_weights(weights, parts))
    exact = weights.double().numpy()
    assert np.abs(back - exact).max(initial=0) < (5e-5 if parts == 0 else 0.0005 / parts + 5e-5)
    assert (thousandths(back) == thousandths(exact)).all()
    assert ((back == 0) | (exact > 0)).all()


@pytest.mark.parametrize("parts", [0, 1, 4, 16])
def test_weights_at_rounding_boundaries_survive(parts: int) -> None:
    near = torch.arange(1, 1000, dtype=torch.float64) / 1000 - 0.0005
    weights = torch.cat([near, near + 1e-9, near - 1e-9])
    back = read_weights(packed_weights(weights, parts))
    assert (thousandths(back) == thousandths(weights.numpy())).all()


def test_small_weights_keep_their_digits() -> None:
    weights = torch.logspace(-7, 0, 300, dtype=torch.float64)
    back = read_weights(packed_weights(weights))
    away = np.abs(back / weights.numpy() - 1)
    assert away[weights.numpy() > 1e-4].max() < 2e-3


def test_of_many_small_weights_the_sum_survives() -> None:
    weights = torch.rand(300, 300).mul(4).softmax(-1)
    back = read_weights(packed_weights(weights, 1))
    assert back.sum() == pytest.approx(300, rel=1e-4)


def test_channels_keep_four_digits() -> None:
    part = torch.randn(5, 7)
    data, peaks = packed_channels([part, torch.zeros(3)])
    codes = np.frombuffer(unpacked(data), dtype="<i2")
    back = codes[:35] / 32767 * peaks[0]
    assert np.abs(back - part.flatten().numpy()).max() < peaks[0] / 60_000
    assert not codes[35:].any()
