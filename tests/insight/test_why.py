"""`why` and `wrote`: parts that add up to the model's own score and to the head's output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import limelight as ll
from limelight.models.tokens import Tokens

TEXT = "The animal didn't cross the street because it was too tired."


def random_model(config: ll.Config) -> ll.Encoder | ll.Decoder:
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
    "sinusoidal": ll.Config(
        kind="encoder", **SIZES, positions="sinusoidal", embedding="scaled_normed"
    ),
    "electra": ll.Config.bert(**SIZES, embedding_width=8),
    "late": ll.Config(kind="encoder", **SIZES, order="late"),
    "slices": ll.Config(kind="encoder", **SIZES, heads_see="slice"),
    "low-rank values": ll.Config.llama(**SIZES, kv_heads=2, value_rank=3),
}
POST_NORM = ("bert", "electra", "late")
"""those that normalise only after each layer"""


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_the_score_and_to_what_was_written(kind: str) -> None:
    model = random_model(KINDS[kind])
    rec = ll.look("abcdefgh", model)
    exact = kind not in POST_NORM
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


def test_vectors_written_by_all_heads_sum_to_the_attention_output() -> None:
    """With the output's bias they are the output of the attention layer."""
    model = random_model(KINDS["gpt2"])
    rec = ll.look("abcdefgh", model)
    block: Any = model.stack.blocks[1]
    outputs: list[torch.Tensor] = []
    hook = block.attention.register_forward_hook(lambda _m, _a, output: outputs.append(output))
    with torch.no_grad():
        assert model.tokens is not None
        model(torch.tensor([model.tokens.encode("abcdefgh").ids]))
    hook.remove()
    heads = [ll.wrote(rec, 1, head, 5, model=model).written for head in range(4)]
    total = torch.stack(heads).sum(0) + block.attention.output.bias.detach()
    torch.testing.assert_close(total.float(), outputs[0][0, 5], atol=1e-4, rtol=1e-4)


def test_wrote_on_minilm_names_the_source_token_and_saves_its_views(tmp_path: Path) -> None:
    model = ll.load("minilm")
    output = ll.wrote(ll.look(TEXT, model), 3, 1, "it", model=model)
    assert output.tokens[int(output.norms.argmax())] == "animal"
    assert float(output.parts.sum()) == pytest.approx(output.size, abs=1e-4)
    assert output.table().rows[2][0] == "animal"
    assert len(output.direction_table(3).rows) == 3
    output.save(tmp_path / "wrote.png")
    assert (tmp_path / "wrote.png").stat().st_size > 10_000
    assert json.loads(output.to_json())["query"] == "it"


def test_the_parts_of_a_late_block_are_those_of_the_block_before() -> None:
    """Nothing bypasses its attention: heads, output bias and feed-forward are all there is."""
    model = random_model(KINDS["late"])
    score = ll.why(ll.look("abcdefgh", model), 2, 0, 6, 2, model=model)
    heads = {f"head 1·{head}" for head in range(4)}
    assert set(score.sources) == {*heads, "output bias 1", "ffn 1", "ffn norm bias", "bias"}
    assert "the parts of layer 1 only" in score.reach


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_recording_of_token_ids_is_split_as_well(tokenizer: bool) -> None:
    """Ids that do not come from a text: a special token in the middle, or no tokenizer at all."""
    model = random_model(KINDS["llama"])
    known = model.tokens
    assert known is not None
    ids = [*known.encode("abc").ids, *sorted(known.special)[:1], *known.encode("fed").ids]
    if not tokenizer:
        model.tokens = None
    rec = ll.look(torch.tensor(ids), model)
    score = ll.why(rec, 2, 1, 5, 2, model=model)
    assert float(score.parts.sum()) == pytest.approx(score.score, abs=1e-4, rel=1e-4)
    weight = torch.exp(torch.tensor(score.score) - rec.seen(2).lse[0, 1, 5])
    assert float(weight) == pytest.approx(float(rec.weights(2, 1)[5, 2]), abs=1e-5)
    assert score.query == rec.tokens[5].text


@pytest.mark.parametrize("split", [lambda *a, **o: ll.why(*a, 2, **o), ll.wrote])
def test_recordings_that_cannot_be_split_are_refused(split: Any) -> None:
    model = random_model(KINDS["bert"])
    rec = ll.look("abcdefgh", model)
    without_tokenizer = random_model(KINDS["bert"])
    without_tokenizer.tokens = None
    for other, message in (
        (random_model(KINDS["late"]), "does not attend to this text as recorded"),
        (without_tokenizer, "tokens of the recording are not those of"),
        (random_model(ll.Config.bert(**SIZES | {"context": 4})), "texts of up to 4 tokens"),
        (torch.nn.Linear(2, 2), "found a Linear"),
    ):
        with pytest.raises(ll.LimelightError, match=message):
            split(rec, 0, 0, 1, model=other)
    with ll.cutting(model, [ll.Link(0, 0, 1, 3)]):
        cut = ll.look("abcdefgh", model)
        split(cut, 0, 0, 1, model=model)
    with pytest.raises(ll.LimelightError, match="links cut"):
        split(cut, 0, 0, 1, model=model)


def test_the_score_is_the_one_behind_the_weight() -> None:
    model = ll.load("minilm")
    rec = ll.look(TEXT, model)
    score = ll.why(rec, 3, 1, "it", "animal", model=model)
    seen = rec.seen(3)
    weight = torch.exp(torch.tensor(score.score) - seen.lse[0, 1, rec.find("it")[0]])
    assert float(weight) == pytest.approx(0.677, abs=1e-3)
    assert float(score.parts.sum()) == pytest.approx(score.score, abs=1e-4)
    with pytest.raises(ll.LimelightError, match="layer and head must be below 6 and 12"):
        ll.why(rec, 6, 0, "it", "animal", model=model)
