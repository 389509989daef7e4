"""Positions: sinusoids, rotations with their scalings, and relative biases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from limelight.errors import OptionError
from limelight.layers.positions import RelativeBias, sinusoidal
from limelight.layers.rotary import (
    SCALINGS,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Rotary,
    YarnScaling,
    plain_angles,
    rotate,
)


def test_sinusoidal_positions_follow_the_formula_of_the_paper():
    table = sinusoidal(torch.arange(50), 8)
    for p in (0, 7, 49):
        for t in range(4):
            angle = p / 10000 ** (2 * t / 8)
            assert table[p, 2 * t].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[p, 2 * t + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
    with pytest.raises(OptionError, match="even width, found 7"):
        sinusoidal(torch.arange(3), 7)


def test_rotated_products_depend_on_distance_only():
    rotary = Rotary(16)
    q, k = torch.randn(16), torch.randn(16)
    rotation = rotary(torch.arange(100))
    rotated_q = rotate(q.expand(1, 100, 1, 16), rotation)[0, :, 0]
    rotated_k = rotate(k.expand(1, 100, 1, 16), rotation)[0, :, 0]
    products = rotated_q @ rotated_k.T
    for distance in (0, 3, 40):
        diagonal = products.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)
    assert torch.allclose(rotated_q.norm(dim=-1), q.norm().expand(100), atol=1e-5)
    assert torch.allclose(rotated_q[0], q)


def test_rows_may_have_different_positions():
    rotary, x = Rotary(8), torch.randn(2, 3, 2, 8)
    positions = torch.tensor([[0, 1, 2], [5, 6, 7]])
    together = rotate(x, rotary(positions))
    for b in range(2):
        alone = rotate(x[b : b + 1], rotary(positions[b]))
        assert torch.equal(together[b : b + 1], alone)


def test_angles_keep_full_precision_when_the_model_is_halved():
    rotary = Rotary(8).bfloat16()
    rotation = rotary(torch.tensor([1001]))
    assert rotation.cos.dtype == torch.float32
    assert rotation.cos[0, 0, 0, 0].item() == pytest.approx(math.cos(1001), abs=1e-4)


def test_scalings_leave_fast_channels_and_stretch_slow_ones():
    theta = plain_angles(10000.0, 64)
    assert torch.equal(LinearScaling(4.0).angles(10000.0, 64, 0), theta / 4)
    for rule in (YarnScaling(4.0, trained=512), Llama3Scaling(4.0, trained=512)):
        scaled = rule.angles(10000.0, 64, 0)
        assert torch.allclose(scaled[0], theta[0])
        assert torch.allclose(scaled[-1], theta[-1] / 4)
        assert (scaled <= theta * 1.000001).all()
    dynamic = DynamicScaling(2.0, trained=512)
    assert torch.allclose(dynamic.angles(10000.0, 64, 100), theta)
    assert (dynamic.angles(10000.0, 64, 2048)[1:] < theta[1:]).all()
    assert set(SCALINGS) == {"linear", "dynamic", "yarn", "llama3"}


def test_wrong_options_of_scalings_are_named():
    with pytest.raises(OptionError, match=r"factor must be a number of at least 1, found 0.5"):
        LinearScaling(0.5)
    with pytest.raises(OptionError, match="trained must be a whole number"):
        DynamicScaling(2.0, trained=0)
    with pytest.raises(OptionError, match="fast must be at least slow"):
        YarnScaling(2.0, trained=16, fast=1.0, slow=2.0)
    with pytest.raises(OptionError, match="0 < low < high"):
        Llama3Scaling(2.0, trained=16, low=4.0, high=1.0)
    with pytest.raises(OptionError, match="even number of head channels, found 5"):
        Rotary(5)
    with pytest.raises(OptionError, match="base must be above 1"):
        Rotary(4, base=1.0)
    with pytest.raises(OptionError, match="over 2 channels"):
        Rotary(2, scaling=DynamicScaling(2.0, trained=16))


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (16, 40), (8, 512)])
def test_buckets_are_those_of_t5(both_ways: bool, buckets: int, furthest: int):
    bias = RelativeBias(2, buckets=buckets, furthest=furthest, both_ways=both_ways)
    distance = torch.arange(-700, 700)
    expected = T5Attention._relative_position_bucket(distance, both_ways, buckets, furthest)
    assert torch.equal(bias.bucket(distance), expected)


def test_relative_bias_aligns_the_last_query_with_the_last_key():
    bias = RelativeBias(3)
    whole = bias(9, 9)
    assert torch.equal(bias(4, 9), whole[:, :, 5:])
    assert torch.equal(whole[0, :, 2, 5], whole[0, :, 5, 8])
    bias(4, 9).sum().backward()
    assert bias.table.grad is not None
    with pytest.raises(OptionError, match="an even number of buckets, at least 4, found 5"):
        RelativeBias(2, buckets=5)
    with pytest.raises(OptionError, match="at least 2 buckets, found 1"):
        RelativeBias(2, buckets=1, both_ways=False)
    with pytest.raises(OptionError, match="furthest above 8, found 8"):
        RelativeBias(2, furthest=8)
    with pytest.raises(OptionError, match="heads must be a whole number of at least 1, found 0"):
        RelativeBias(0)


@pytest.mark.usefixtures("untyped")
def test_sizes_that_are_not_numbers_are_named():
    cases: list[tuple[Any, str]] = [
        (lambda: RelativeBias(2, buckets="8"), "buckets must be a whole number .* found '8'"),  # pyright: ignore
        (lambda: RelativeBias(2, furthest="8"), "furthest must be a whole number .* found '8'"),  # pyright: ignore
        (lambda: Rotary("4"), "size must be a whole number .* found '4'"),  # pyright: ignore
        (lambda: Rotary(4, base="x"), "rotary base must be above 1, found 'x'"),  # pyright: ignore
        (lambda: sinusoidal(torch.arange(3), "4"), "width must be a whole number"),  # pyright: ignore
    ]
    for make, words in cases:
        with pytest.raises(OptionError, match=words):
            make()
