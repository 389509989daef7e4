"""Which layer and which occurrence a watched call belongs to."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hf_models import (
    ALBERT,
    DECODERS,
    DIFFLLAMA,
    QWEN2_VL_VISION,
)
from torch import Tensor
from watch_checks import GREEDY, IDS, LENS, check_statistics

import limelight as ll
from limelight.errors import OptionError


@pytest.mark.parametrize("groups", [1, 2])
def test_layers_that_share_a_module_are_recorded_separately(groups):
    model = ALBERT[groups]()
    with torch.no_grad(), ll.watch(model, LENS) as watched:
        model(IDS)
        model(IDS[:, :5])
    assert watched.passes() == 2
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(IDS, output_attentions=True).attentions
    assert watched.recording().layer_numbers == tuple(range(2 * groups)) == tuple(range(len(eager)))
    for layer, weights in enumerate(eager):
        check_statistics(watched.seen(layer, which=0), weights)
    with torch.no_grad(), ll.watch(model, LENS, layers=[1]) as watched:
        model(IDS)
    assert watched.recording().layer_numbers == (1,)
    check_statistics(watched.seen(1), eager[1])


def test_two_calls_of_one_layer_are_two_occurrences():
    """In DiffLlama; generated tokens continue each occurrence."""
    model = DIFFLLAMA()
    with ll.watch(model, ll.Lens(top=2)) as watched:
        tokens = model.generate(IDS, **GREEDY, max_new_tokens=3)
    assert watched.passes() == 1
    assert watched.recording().layer_numbers == (0, 1)
    for layer in range(2):
        first, second = (watched.seen(layer, occurrence=number) for number in range(2))
        assert first.extent.j == second.extent.j == tokens.shape[1] - 1
        torch.testing.assert_close(first.dense(), second.dense())
    with pytest.raises(OptionError, match=r"occurrence must be one of 0 to 1.*found 2"):
        watched.seen(0, occurrence=2)
    with torch.no_grad(), ll.watch(model, ll.Lens(), layers=[1]) as watched:
        model(IDS)
    assert watched.order == ["model.layers.1.self_attn"] * 2


def test_each_image_of_a_vision_tower_is_an_occurrence():
    model = QWEN2_VL_VISION()
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    patches = torch.randn(24, 3 * 2 * 2)
    with torch.no_grad(), ll.watch(model, ll.Lens()) as watched:
        model(patches, grid_thw=grid)
        model(patches[:16], grid_thw=grid[:1])
    assert watched.recording().layer_numbers == (0, 1)
    assert watched.passes() == 2
    sizes = [watched.seen(1, which=0, occurrence=image).extent.j for image in range(2)]
    assert sizes == [16, 8]
    with pytest.raises(OptionError, match="occurrence must be one of 0 to 0"):
        watched.seen(1, occurrence=1)  # the second call had one image


class Looped(torch.nn.Module):
    """Two blocks, run three times."""

    def __init__(self) -> None:
        super().__init__()
        layer = partial(torch.nn.TransformerEncoderLayer, 16, 4, batch_first=True)
        self.blocks = torch.nn.ModuleList([layer(), layer()])

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            for block in self.blocks:
                x = block(x)
        return x


def test_each_turn_of_a_looped_stack_is_an_occurrence():
    model = Looped().eval()
    with torch.no_grad(), ll.watch(model, ll.Lens()) as watched:
        model(torch.randn(1, 5, 16))
    assert watched.order == ["blocks.0.self_attn", "blocks.1.self_attn"] * 3
    assert watched.recording().layer_numbers == (0, 1)
    assert watched.seen(1, occurrence=2).extent.i == 5
    assert not torch.equal(watched.seen(1, occurrence=2).dense(), watched.seen(1).dense())


def test_recomputation_by_gradient_checkpointing_is_not_recorded():
    model = DECODERS["llama"]().train()
    model.gradient_checkpointing_enable()
    with ll.watch(model, ll.Lens()) as watched:
        model(IDS, labels=IDS, use_cache=False).loss.backward()
    assert watched.passes() == 1
    assert len(watched.order) == 2
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None
