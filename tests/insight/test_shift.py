"""`shift`: apple and bank end near the groups that their sentences suggest."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import limelight as ll
from limelight.insight.shift import Shift

GROUPS = {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]}


@pytest.fixture(scope="module")
def minilm() -> ll.Encoder:
    return ll.load("minilm")


@pytest.fixture(scope="module")
def apple(minilm: ll.Encoder) -> Shift:
    return ll.shift("apple", ["I love apple phones.", "I love apple pie."], GROUPS, model=minilm)


def test_apple_ends_nearer_its_sense_in_each_sentence(apple: Shift) -> None:
    phones, pie = apple.similarity[:, -1].tolist()  # fruit, tech
    assert phones == pytest.approx([0.24, 0.37], abs=0.02)
    assert pie == pytest.approx([0.44, 0.15], abs=0.02)
    # before attention the word is the same in both sentences
    torch.testing.assert_close(apple.similarity[0, 0], apple.similarity[1, 0], atol=1e-4, rtol=0)
    assert apple.nearest(0) == "tech"
    assert apple.nearest(1) == "fruit"


def test_took_equals_the_norms_of_weighted_values(apple: Shift, minilm: ll.Encoder) -> None:
    assert "phones" in apple.sources(0, 3)
    rec = ll.look("I love apple pie.", minilm)
    place = rec.find("apple")[0]
    seen = rec.seen(2)
    value: Any = seen.source.problem.value[0]  # pyright: ignore
    expected = (seen.dense()[0, :, place, :, None] * value).norm(dim=-1).sum(0)
    torch.testing.assert_close(apple.took[1][2], expected.double(), atol=1e-4, rtol=1e-4)


def test_bank_ends_nearer_its_sense_in_each_sentence(minilm: ll.Encoder) -> None:
    groups = {"water": ["river", "lake", "shore"], "money": ["cash", "loan", "vault"]}
    texts = ["She sat on the bank of the river.", "The bank kept the money in a vault."]
    result = ll.shift("bank", texts, groups, model=minilm)
    river, vault = result.similarity[:, -1].tolist()  # water, money
    assert river[0] > vault[0] + 0.1
    assert vault[1] > river[1] + 0.1


class PlainMiniLM(torch.nn.Module):
    """MiniLM's weights in PyTorch's own encoder."""

    def __init__(self, model: ll.Encoder) -> None:
        super().__init__()
        config = model.config
        layer = torch.nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, activation="gelu", batch_first=True,
            layer_norm_eps=1e-12,
        )  # fmt: skip
        self.embedding = model.embedding
        self.encoder = torch.nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        names = {
            "attention.inputs.weight": "self_attn.in_proj_weight",
            "attention.inputs.bias": "self_attn.in_proj_bias",
            "attention.output": "self_attn.out_proj", "attention_norm": "norm1",
            "feedforward.up": "linear1", "feedforward.down": "linear2", "feedforward_norm": "norm2",
        }  # fmt: skip
        for block, own in zip(model.stack.blocks, self.encoder.layers, strict=True):
            state = block.state_dict()
            for name, theirs in names.items():
                state = {key.replace(name, theirs): value for key, value in state.items()}
            own.load_state_dict(state)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts: Any = self.embedding
        places = torch.arange(ids.shape[1])
        x = parts.tokens(ids) + parts.positions(places) + parts.segments.weight[0]
        return self.encoder(parts.norm(x))


def test_a_plain_module_gives_the_same_shift(apple: Shift, minilm: ll.Encoder) -> None:
    """MiniLM's weights in PyTorch's own encoder: the same stages and source tokens."""
    from transformers import PreTrainedTokenizerFast

    assert minilm.tokens is not None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=minilm.tokens.tokenizer)
    plain = PlainMiniLM(minilm).eval()
    texts = list(apple.sentences)
    result = ll.shift("apple", texts, GROUPS, model=plain, tokenizer=tokenizer)
    torch.testing.assert_close(result.similarity, apple.similarity, atol=1e-4, rtol=0)
    for took, expected in zip(result.took, apple.took, strict=True):
        torch.testing.assert_close(took, expected, atol=1e-3, rtol=1e-3)
    assert result.tokens == apple.tokens
    with pytest.raises(ll.LimelightError, match="has no tokenizer"):
        ll.shift("apple", texts, GROUPS, model=plain)
    without_attention = torch.nn.Sequential(minilm.embedding.tokens)
    with pytest.raises(ll.LimelightError, match="makes no attention call"):
        ll.shift("apple", texts, GROUPS, model=without_attention, tokenizer=tokenizer)


def test_hugging_face_models_shift_by_their_blocks() -> None:
    """Stages are a Hugging Face model's `hidden_states`, except for the final norm."""
    from tests.seeing.hf_models import BERT, DECODERS
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(("a", "b", "c", "d", "e", "?"))}
    words = Tokenizer(models.WordLevel(vocabulary, "?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    for maker in (BERT, DECODERS["gpt2"], DECODERS["llama"]):
        model = maker()
        result = ll.shift(
            "c", ["a b c d", "e c a"], {"one": ["d"]},
            model=model, tokenizer=tokenizer, template="a {}",
        )  # fmt: skip
        with torch.no_grad():
            inputs = tokenizer("a b c d", return_tensors="pt")["input_ids"]
            group = tokenizer("a d", return_tensors="pt")["input_ids"]
            stages, toward = (
                torch.cat(model(ids, output_hidden_states=True).hidden_states[:-1]).double()
                for ids in (inputs, group)
            )
        expected = torch.cosine_similarity(stages[:, 2], toward[:, 1], dim=-1)
        torch.testing.assert_close(result.similarity[0, :-1, 0], expected, atol=1e-5, rtol=0)
        assert result.similarity.shape[1] == 3


def test_paths_start_together_and_end_toward_their_groups(apple: Shift) -> None:
    """Before attention both are at one point; at the end each is nearer to its group's side."""
    starts, ends = apple.paths[:, 0], apple.paths[:, -1]
    torch.testing.assert_close(starts[0], starts[1], atol=1e-5, rtol=0)
    fruit, tech = apple.group_ends
    torch.testing.assert_close(fruit + tech, torch.zeros_like(fruit), atol=1e-9, rtol=0)
    toward_tech = (ends - starts) @ (tech - fruit)
    assert toward_tech[0] > 0 > toward_tech[1]
    assert apple.source_table().rows[0][2].startswith("phones")


def test_the_result_saves_its_figure_and_json(apple: Shift, tmp_path: Any) -> None:
    apple.save(tmp_path / "shift.png")
    assert (tmp_path / "shift.png").stat().st_size > 10_000
    values = json.loads(apple.to_json())
    assert values["nearest"] == ["tech", "fruit"]
    assert len(values["similarity"][0]) == 7


@pytest.mark.parametrize(
    ("word", "sentences", "toward", "message"),
    [
        ("pear", ["I love apple pie."], GROUPS, "must occur once"),
        ("apple", ["An apple is an apple."], GROUPS, "found 2 times"),
        ("apple", [], GROUPS, "one or more sentences"),
        ("apple", ["An apple."], {}, "groups of words"),
    ],
)
def test_wrong_arguments_raise_errors_that_say_why(
    minilm: ll.Encoder, word: str, sentences: list[str], toward: Any, message: str
) -> None:
    with pytest.raises(ll.LimelightError, match=message):
        ll.shift(word, sentences, toward, model=minilm)
