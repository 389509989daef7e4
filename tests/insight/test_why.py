"""Why a link: the parts add up to the score that the model computed."""

from __future__ import annotations

import pytest
import torch

import limelight as ll
from limelight.models.tokens import Tokens

TEXT = "The animal didn't cross the street because it was too tired."


def small(config: ll.Config) -> ll.Encoder | ll.Decoder:
    torch.manual_seed(4)
    model = (ll.Decoder if config.kind == "decoder" else ll.Encoder)(config).eval()
    for name, parameter in model.named_parameters():
        parameter.data.mul_(6).add_(0.05 * torch.randn_like(parameter) * ("bias" in name))
    model.tokens = Tokens.characters("abcdefgh")
    return model


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_parts_add_up_to_the_score(kind: str) -> None:
    sizes = {"vocabulary": 20, "width": 16, "layers": 3, "heads": 4}
    options = {**sizes, "kv_heads": 2} if kind == "llama" else sizes
    model = small(getattr(ll.Config, kind)(**options))
    rec = ll.look("abcdefgh", model)
    for layer in range(3):
        for head in range(4):
            found = ll.why(rec, layer, head, 6, 2, model=model)
            assert float(found.parts.sum()) == pytest.approx(found.score, abs=1e-4, rel=1e-4)
    if kind != "bert":
        assert "head 0·3" in found.sources
        assert "token" in found.sources
    else:
        assert "parts of layer 1 only" in found.reach


def test_the_score_is_the_one_behind_the_weight() -> None:
    model = ll.load("minilm")
    rec = ll.look(TEXT, model)
    found = ll.why(rec, 3, 1, "it", "animal", model=model)
    seen = rec.seen(3)
    weight = torch.exp(torch.tensor(found.score) - seen.lse[0, 1, rec.find("it")[0]])
    assert float(weight) == pytest.approx(0.677, abs=1e-3)
    assert float(found.parts.sum()) == pytest.approx(found.score, abs=1e-4)
    with pytest.raises(ll.LimelightError, match="layer and head must be below 6 and 12"):
        ll.why(rec, 6, 0, "it", "animal", model=model)
