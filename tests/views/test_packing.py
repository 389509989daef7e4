"""Packed weights print the same three decimals as the weights that were packed."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from limelight.views.packing import packed_channels, packed_weights, unpacked


def read_weights(text: str) -> np.ndarray:
    return (np.frombuffer(unpacked(text), dtype="<u2").astype(float) / 65535) ** 2


@given(st.lists(st.floats(0, 1, width=32), max_size=200))
def test_three_decimals_survive(values: list[float]) -> None:
    weights = torch.tensor(values, dtype=torch.float32)
    back = read_weights(packed_weights(weights))
    assert np.abs(back - weights.double().numpy()).max(initial=0) < 5e-5
    same = np.floor(back * 1000 + 0.5) == np.floor(weights.double().numpy() * 1000 + 0.5)
    assert same.all()


def test_weights_at_rounding_boundaries_survive() -> None:
    near = torch.arange(1, 1000, dtype=torch.float64) / 1000 - 0.0005
    weights = torch.cat([near, near + 1e-9, near - 1e-9])
    back = read_weights(packed_weights(weights))
    expected = np.floor(weights.numpy() * 1000 + 0.5)
    assert (np.floor(back * 1000 + 0.5) == expected).all()


def test_small_weights_keep_their_digits() -> None:
    weights = torch.logspace(-7, 0, 300, dtype=torch.float64)
    back = read_weights(packed_weights(weights))
    away = np.abs(back / weights.numpy() - 1)
    assert away[weights.numpy() > 1e-4].max() < 2e-3


def test_channels_keep_four_digits() -> None:
    part = torch.randn(5, 7)
    data, peaks = packed_channels([part, torch.zeros(3)])
    codes = np.frombuffer(unpacked(data), dtype="<i2")
    back = codes[:35] / 32767 * peaks[0]
    assert np.abs(back - part.flatten().numpy()).max() < peaks[0] / 60_000
    assert not codes[35:].any()
