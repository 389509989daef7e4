"""Packed weights print the same three decimals as the weights that were packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limelight.views.page.packing import packed_channels, packed_weights, unpacked


def read_weights(packed: dict[str, Any], count: int) -> np.ndarray:
    """Unpacks weights as the page does."""
    data = np.frombuffer(unpacked(packed["data"]), dtype=np.uint8).astype(int)
    if packed["kind"] == "fine":
        return ((data[:count] + 256 * data[count:]) / 65535) ** 2
    codes, (lows, highs) = data[:count].copy(), data[count:].reshape(2, -1)
    codes[codes == 255] = lows + 256 * highs
    return codes / 1000


def thousandths(values: np.ndarray) -> np.ndarray:
    return np.floor(values * 1000 + 0.5)


@given(st.lists(st.floats(0, 1, width=32), max_size=200), st.booleans())
def test_three_decimals_are_kept(values: list[float], fine: bool) -> None:
    weights = torch.tensor(values, dtype=torch.float32)
    back = read_weights(packed_weights(weights, fine=fine), len(values))
    exact = weights.double().numpy()
    assert np.abs(back - exact).max(initial=0) < (5e-5 if fine else 0.0005 + 1e-9)
    assert (thousandths(back) == thousandths(exact)).all()


@pytest.mark.parametrize("fine", [True, False])
def test_weights_at_rounding_boundaries_print_the_same(fine: bool) -> None:
    boundaries = torch.arange(1, 1000, dtype=torch.float64) / 1000 - 0.0005
    weights = torch.cat([boundaries, boundaries + 1e-9, boundaries - 1e-9])
    back = read_weights(packed_weights(weights, fine=fine), len(weights))
    assert (thousandths(back) == thousandths(weights.numpy())).all()


def test_small_weights_keep_their_relative_precision() -> None:
    weights = torch.logspace(-7, 0, 300, dtype=torch.float64)
    back = read_weights(packed_weights(weights), 300)
    errors = np.abs(back / weights.numpy() - 1)
    assert errors[weights.numpy() > 1e-4].max() < 2e-3


def test_channels_keep_four_digits() -> None:
    part = torch.randn(5, 7)
    data, peaks = packed_channels([part, torch.zeros(3)])
    codes = np.frombuffer(unpacked(data), dtype="<i2")
    back = codes[:35] / 32767 * peaks[0]
    assert np.abs(back - part.flatten().numpy()).max() < peaks[0] / 60_000
    assert not codes[35:].any()
