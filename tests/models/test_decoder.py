from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.errors import OptionError, ShapeError
from limelight.layers.cache import Cache
from limelight.models.config import Config
from limelight.models.decoder import Decoder

POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
LENGTHS = [5, 1, 9, 3]


def make(**changes: Any) -> Decoder:
    small = {"vocabulary": 50, "width": 16, "layers": 2, "heads": 4, "context": 64}
    return Decoder(Config.gpt2(**{**small, **changes})).eval()


def prompts() -> list[Tensor]:
    return [torch.randint(50, (length,)) for length in LENGTHS]


@torch.no_grad()
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("window", [None, 3])
def test_a_cache_in_chunks_equals_one_pass(positions: str, window: int | None):
    model = make(positions=positions, window=window, kv_heads=2)
    tokens = torch.randint(50, (2, 30))
    whole, cache, start = model(tokens), model.new_cache(capacity=2), 0
    for size in (4, 1, 1, 7, 1, 16):
        piece = model(tokens[:, start : start + size], cache=cache)
        start += size
        assert torch.allclose(piece, whole[:, start - size : start], atol=1e-5)
        assert cache.length == start


@torch.no_grad()
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("window", [None, 3])
def test_packed_prompts_continue_as_each_alone(positions: str, window: int | None):
    model, rows = make(positions=positions, window=window), prompts()
    more = torch.randint(50, (4, 6))
    cache = model.new_cache(capacity=2)
    logits = list(model(torch.cat(rows), lengths=LENGTHS, cache=cache).split(LENGTHS))
    steps = [model(more[:, :1], cache=cache), model(more[:, 1:5], cache=cache)]
    kept = torch.tensor([2, 0])
    cache.select(kept)
    last = model(more[kept, 5:], cache=cache)
    for t, row in enumerate(rows):
        alone = model(torch.cat((row, more[t]))[None])[0]
        assert torch.allclose(logits[t], alone[: len(row)], atol=1e-5)
        assert torch.allclose(torch.cat(steps, 1)[t], alone[len(row) : -1], atol=1e-5)
        if t in (2, 0):
            assert torch.allclose(last[0 if t == 2 else 1, 0], alone[-1], atol=1e-5)


@torch.no_grad()
def test_packed_prompts_of_one_length_need_no_padding():
    model = make()
    tokens = torch.randint(50, (2, 6))
    cache = model.new_cache()
    model(tokens[:, :4].flatten(), lengths=[4, 4], cache=cache)
    assert cache.lengths is None
    assert torch.allclose(model(tokens[:, 4:], cache=cache), model(tokens)[:, 4:], atol=1e-5)


@torch.no_grad()
def test_no_token_sees_what_comes_later():
    model = make(positions="rotary")
    tokens = torch.randint(50, (1, 10))
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 50
    assert torch.equal(model(tokens)[:, :6], model(changed)[:, :6])
    assert not torch.allclose(model(tokens)[:, 6:], model(changed)[:, 6:])


@torch.no_grad()
def test_padded_rows_equal_each_alone():
    model, rows = make(), prompts()
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    padded = model(batch, lengths=LENGTHS)
    for t, row in enumerate(rows):
        assert torch.allclose(padded[t, : len(row)], model(row[None])[0], atol=1e-5)
    assert torch.allclose(model.logits(model.hidden(batch)), model(batch))


def test_head_is_the_token_table_only_when_tied():
    assert "head.weight" not in make().state_dict()
    assert make(tied=False).state_dict()["head.weight"].shape == (50, 16)


def test_learns_to_count():
    torch.manual_seed(0)
    model = make(width=32, positions="rotary", activation="swiglu", norm="rms", bias="none").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = (torch.arange(12) + torch.randint(50, (16, 1))) % 50
    losses: list[float] = []
    for _ in range(60):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3.5
    assert losses[-1] < 0.5
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


def test_initial_weights_follow_gpt2():
    model = make(width=64, layers=8, vocabulary=500)
    state = model.state_dict()
    assert state["embedding.tokens.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    inputs = state["stack.blocks.3.attention.inputs.weight"]
    assert inputs.std().item() == pytest.approx(0.02, rel=0.05)
    down = state["stack.blocks.3.feedforward.down.weight"]
    assert down.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05)
    assert not state["stack.blocks.3.feedforward.up.bias"].any()


@torch.no_grad()
def test_weights_are_loaded_into_a_model_on_the_meta_device():
    model = make(positions="rotary", tied=False)
    with torch.device("meta"):
        empty = Decoder(model.config)
    empty.load_state_dict(model.state_dict(), assign=True)
    tokens = torch.randint(50, (1, 7))
    assert torch.equal(empty.eval()(tokens), model(tokens))


@torch.no_grad()
def test_wrong_caches_and_lengths_raise():
    model, tokens = make(), torch.zeros(2, 3).long()
    with pytest.raises(OptionError, match=r"lengths with a cache need packed tokens"):
        model(tokens, lengths=[3, 2], cache=model.new_cache())
    with pytest.raises(
        OptionError, match="cache has 3 layers and window None, expected 2 and None"
    ):
        model(tokens, cache=Cache(3))
    with pytest.raises(OptionError, match="window 5, expected 2 and None"):
        model(tokens, cache=Cache(2, window=5))
    with pytest.raises(ShapeError, match="at least 1 token per prompt"):
        model(tokens[0], lengths=[3, 0], cache=model.new_cache())
    cache = model.new_cache()
    model(tokens[0], lengths=[2, 1], cache=cache)
    with pytest.raises(OptionError, match="need an empty cache, found 2 tokens"):
        model(tokens[0], lengths=[2, 1], cache=cache)
    with pytest.raises(ShapeError, match="tokens has b = 3 rows"):
        model(torch.zeros(3, 1).long(), cache=cache)
    with pytest.raises(ShapeError, match="reach position 64, expected at most 63"):
        model(torch.zeros(2, 63).long(), cache=cache)
    with torch.enable_grad(), pytest.raises(OptionError, match=r"torch\.no_grad"):
        model(tokens, cache=model.new_cache())
