"""Why a link: the parts add up to the score that the model computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


SIZES: dict[str, Any] = {"vocabulary": 20, "width": 16, "layers": 3, "heads": 4, "context": 16}
KINDS = {
    "llama": ll.Config.llama(**SIZES, kv_heads=2),
    "gpt2": ll.Config.gpt2(**SIZES),
    "bert": ll.Config.bert(**SIZES),
    "qwen3": ll.Config.llama(**SIZES, kv_heads=2, head_norm=True, head_size=8),
    "gemma": ll.Config.llama(
        **SIZES, kv_heads=2, order="sandwich", head_norm=True, embedding="scaled", softcap=20.0
    ),
    "waves": ll.Config(kind="encoder", **SIZES, positions="sinusoidal", embedding="scaled_normed"),
    "electra": ll.Config.bert(**SIZES, embedding_width=8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_the_score_and_to_what_was_written(kind: str) -> None:
    model = small(KINDS[kind])
    rec = ll.look("abcdefgh", model)
    exact = kind not in ("bert", "electra")
    for layer in range(3):
        for head in range(4):
            score = ll.why(rec, layer, head, 6, 2, model=model)
            assert float(score.parts.sum()) == pytest.approx(score.score, abs=1e-4, rel=1e-4)
            written = ll.wrote(rec, layer, head, 6, model=model)
            assert float(written.parts.sum()) == pytest.approx(written.size, abs=1e-4, rel=1e-4)
            across = written.directions.sum(0)
            assert float(across.norm()) == pytest.approx(written.size, abs=1e-4, rel=1e-4)
            expected = rec.weights(layer, head)[6].double()
            torch.testing.assert_close(written.weights, expected, atol=2e-5, rtol=0)
            assert ("all sources" in score.reach) == (exact or layer == 0)
        if exact and layer == 2:
            assert {"token", "head 0·3", "head 1·0", "ffn 1"} <= set(score.sources)
            assert float(score.parts[score.sources.index("head 1·0")].abs().max()) > 1e-6


def test_what_is_written_is_what_the_layer_adds_head_by_head() -> None:
    """All heads and the output's bias make the output of the attention layer."""
    model = small(KINDS["gpt2"])
    rec = ll.look("abcdefgh", model)
    block: Any = model.stack.blocks[1]
    outputs: list[torch.Tensor] = []
    hook = block.attention.register_forward_hook(lambda _m, _a, output: outputs.append(output))
    with torch.no_grad():
        assert model.tokens is not None
        model(torch.tensor([model.tokens.encode("abcdefgh").ids]))
    hook.remove()
    heads = [ll.wrote(rec, 1, head, 5, model=model).written for head in range(4)]
    whole = torch.stack(heads).sum(0) + block.attention.output.bias.detach()
    torch.testing.assert_close(whole.float(), outputs[0][0, 5], atol=1e-4, rtol=1e-4)


def test_what_a_head_of_minilm_wrote(tmp_path: Path) -> None:
    model = ll.load("minilm")
    found = ll.wrote(ll.look(TEXT, model), 3, 1, "it", model=model)
    assert found.tokens[int(found.norms.argmax())] == "animal"
    assert float(found.parts.sum()) == pytest.approx(found.size, abs=1e-4)
    assert found.table().rows[2][0] == "animal"
    assert len(found.direction_table(3).rows) == 3
    found.save(tmp_path / "wrote.png")
    assert (tmp_path / "wrote.png").stat().st_size > 10_000
    assert json.loads(found.to_json())["query"] == "it"


def test_what_cannot_be_taken_apart_is_said() -> None:
    model = small(ll.Config(kind="encoder", **SIZES, order="late"))
    rec = ll.look("abcdefgh", model)
    for ask in (lambda: ll.why(rec, 0, 0, 1, 2, model=model), lambda: ll.wrote(rec, 0, 0, 1)):
        with pytest.raises(ll.LimelightError, match=r"blocks of order|no such file"):
            ask()


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
