from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from limelight.errors import DtypeError, LimelightError, OptionError, ShapeError
from limelight.models.config import Config
from limelight.models.encoder import Encoder
from limelight.models.heads import Classifier, MaskedLM, mean_pool
from limelight.ops.calls import AttentionCall, intercept

POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
LENGTHS = [5, 1, 9, 3]


def make(**changes: Any) -> Encoder:
    small = {"vocabulary": 50, "width": 16, "layers": 2, "heads": 4, "context": 32}
    return Encoder(Config.bert(**{**small, **changes})).eval()


def texts() -> list[Tensor]:
    return [torch.randint(50, (length,)) for length in LENGTHS]


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=49)


@torch.no_grad()
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("window", [None, 2])
def test_packed_padded_and_alone_agree(positions: str, window: int | None):
    encoder, rows = make(positions=positions, window=window), texts()
    packed = encoder(torch.cat(rows), lengths=LENGTHS).split(LENGTHS)
    batch = encoder(padded(rows), lengths=torch.tensor(LENGTHS))
    for t, row in enumerate(rows):
        alone = encoder(row[None])[0]
        assert torch.allclose(packed[t], alone, atol=1e-5)
        assert torch.allclose(batch[t, : len(row)], alone, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        {"order": "pre"}, {"order": "late"}, {"norm": "rms"}, {"activation": "swiglu"},
        {"kv_heads": 2}, {"value_rank": 2}, {"head_size": 6}, {"bias": "none"},
        {"bias": "inputs"}, {"bias": "attention"}, {"embedding": "scaled"}, {"segments": 0},
    ],
)  # fmt: skip
def test_every_choice_of_the_config_changes_the_output(changes: dict[str, Any]):
    """On the same weights, as far as both have them, so that nothing but the choice differs."""
    plain, other = make(), make(**changes)
    for parameter in [*plain.parameters(), *other.parameters()]:
        torch.nn.init.normal_(parameter, std=0.5)
    own = other.state_dict()
    shared = {
        name: weight
        for name, weight in plain.state_dict().items()
        if name in own and own[name].shape == weight.shape
    }
    other.load_state_dict(shared, strict=False)
    tokens = torch.randint(50, (2, 7))
    assert other(tokens).shape == (2, 7, 16)
    assert other(tokens).isfinite().all()
    assert not torch.allclose(other(tokens), plain(tokens), atol=1e-3)


@torch.no_grad()
def test_without_positions_order_does_not_matter():
    encoder, tokens, order = make(positions="none"), torch.arange(8)[None], torch.randperm(8)
    assert torch.allclose(encoder(tokens)[:, order], encoder(tokens[:, order]), atol=1e-5)
    encoder = make(positions="rotary")
    assert not torch.allclose(encoder(tokens)[:, order], encoder(tokens[:, order]), atol=1e-5)


@torch.no_grad()
def test_segments_change_the_hidden_states():
    encoder, tokens = make(), torch.arange(6)
    marked = encoder(tokens[None], segments=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    assert not torch.allclose(marked, encoder(tokens[None]))
    packed = encoder(tokens, lengths=[6], segments=torch.tensor([0, 0, 0, 1, 1, 1]))
    assert torch.allclose(packed, marked[0], atol=1e-6)


def test_an_interceptor_sees_every_layer_in_order():
    encoder, layers = make(), []

    def interceptor(call: AttentionCall) -> Tensor:
        layers.append(call.module)
        return call.attend()

    with intercept(interceptor):
        encoder(torch.arange(5)[None])
    assert layers == [block.attention for block in encoder.stack.blocks]


def test_every_weight_has_a_gradient():
    encoder = make(positions="relative", segments=2).train().double()
    hidden = encoder(torch.arange(6)[None])
    # The final norm fixes the sum of squares, so the loss is a random projection.
    (hidden * torch.randn_like(hidden)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name


def test_mean_pooling_counts_real_tokens_only():
    rows = [torch.randn(length, 4) for length in LENGTHS]
    expected = torch.stack([row.mean(0) for row in rows])
    assert torch.allclose(mean_pool(torch.cat(rows), LENGTHS), expected, atol=1e-6)
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan"))
    assert torch.allclose(mean_pool(batch, torch.tensor(LENGTHS)), expected, atol=1e-6)
    with pytest.raises(ShapeError, match="lengths sum to 3, expected 18"):
        mean_pool(torch.cat(rows), [1, 2])
    with pytest.raises(ShapeError, match="at least 1 token"):
        mean_pool(torch.cat(rows), [18, 0])
    with pytest.raises(ShapeError, match=r"expected .* with b lengths of at most n"):
        mean_pool(batch, [1, 2])


@torch.no_grad()
def test_heads_give_the_same_for_packed_and_padded_tokens():
    rows = texts()
    masked_lm = MaskedLM(make()).eval()
    packed = masked_lm(torch.cat(rows), lengths=LENGTHS)
    batch = masked_lm(padded(rows), lengths=LENGTHS)
    assert torch.allclose(packed[:5], batch[0, :5], atol=1e-5)
    classifier = Classifier(make(), classes=3).eval()
    assert torch.allclose(
        classifier(torch.cat(rows), lengths=LENGTHS),
        classifier(padded(rows), lengths=LENGTHS),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("tokens", "options", "error", "message"),
    [
        (torch.zeros(2, 3), {}, DtypeError, "tokens is torch.float32, expected whole numbers"),
        (torch.zeros(1, 2, 3).long(), {}, ShapeError, r"tokens has shape \(1, 2, 3\)"),
        (torch.zeros(3).long(), {}, ShapeError, "need lengths="),
        (torch.zeros(3).long(), {"lengths": [1, 1]}, ShapeError, "sum to 2, expected 3"),
        (torch.zeros(3).long(), {"lengths": [4, -1]}, OptionError, "found -1"),
        (torch.zeros(2, 3).long(), {"lengths": [3]}, ShapeError, r"\[3\], expected 2 numbers"),
        (torch.zeros(2, 3).long(), {"lengths": [3, 4]}, ShapeError, "at most n = 3"),
        (torch.full((1, 3), 50), {}, OptionError, "from 50 to 50, expected 0 to 49"),
        (torch.full((1, 3), -1), {}, OptionError, "from -1 to -1, expected 0 to 49"),
        (torch.zeros(1, 33).long(), {}, ShapeError, "reach position 32, expected at most 31"),
        (torch.zeros(1, 3).long(), {"segments": torch.zeros(1, 4).long()}, ShapeError, "segments"),
    ],
)
def test_bad_input_is_named(
    tokens: Tensor, options: Any, error: type[LimelightError], message: str
):
    with pytest.raises(error, match=message):
        make()(tokens, **options)


def test_segments_raise_in_a_model_without_them():
    with pytest.raises(OptionError, match="this model has no segment embeddings"):
        make(segments=0)(torch.zeros(1, 3).long(), segments=torch.zeros(1, 3).long())
