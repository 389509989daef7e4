"""The tokens of a watched call: their words, and padding."""

from __future__ import annotations

import pytest
import torch
from hf_models import (
    BERT,
    DECODERS,
)
from watch_checks import GREEDY, IDS, check_statistics

import limelight as ll


def bert_tokenizer(words: str):
    """A WordPiece tokenizer like BERT's, with these words as its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words.split()]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]",
    )  # fmt: skip


def test_words_follow_the_offsets_of_the_tokenizer():
    """Not a guess from the pieces: "didn", "'" and "t" have no ## prefix."""
    model, tokenizer = BERT(), bert_tokenizer("the animal didn ' t cross street ##s")
    inputs = tokenizer("The animal didn't cross the street", return_tensors="pt")
    with torch.no_grad(), ll.watch(model, ll.Lens()) as watched:
        model(**inputs)
    recording = watched.recording(tokenizer)
    assert recording.text == "the animal didn't cross the street"
    words = recording.by_words().tokens
    assert [word.text for word in words] == [
        "[CLS]", "the", "animal", "didn't", "cross", "the", "street", "[SEP]",
    ]  # fmt: skip
    assert recording.strongest().links


def test_padding_is_left_out_of_the_rows_of_a_batch():
    model, tokenizer = BERT(), bert_tokenizer("the animal didn ' t cross street ##s")
    texts = ["the animal didn't cross the streets", "the animal"]
    lens = ll.Lens(top=3, entropy=True, distance=True, received=True, band=2)
    for side in ("right", "left"):
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
        with torch.no_grad(), ll.watch(model, lens) as watched:
            model(**inputs)
        recording = watched.recording(tokenizer, row=1)
        assert [token.text for token in recording.tokens] == ["[CLS]", "the", "animal", "[SEP]"]
        model.set_attn_implementation("eager")
        with torch.no_grad():
            whole = model(**inputs, output_attentions=True).attentions
        kept = inputs["attention_mask"][1].bool()
        for layer, weights in enumerate(whole):
            expected = weights[1:, :, kept][..., kept]
            check_statistics(recording.seen(layer), expected)


@pytest.mark.parametrize("keep", [True, False])
def test_padding_is_left_out_of_a_prompt_and_its_generated_tokens(keep):
    model = DECODERS["llama"]()
    real = torch.ones_like(IDS)
    real[1, :4] = 0
    lens = ll.Lens(top=3, entropy=True, distance=True, keep=keep)
    with ll.watch(model, lens) as watched:
        tokens = model.generate(IDS, attention_mask=real, **GREEDY, max_new_tokens=4)
    recording = watched.recording(row=1)
    assert [token.text for token in recording.tokens] == [str(n) for n in tokens[1, 4:-1].tolist()]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        alone = model(tokens[1:, 4:-1], output_attentions=True).attentions
    for layer, weights in enumerate(alone):
        top = recording.seen(layer).top
        torch.testing.assert_close(top.weights, weights.topk(3).values, atol=1e-5, rtol=1e-4)
        if keep:
            torch.testing.assert_close(recording.seen(layer).dense(), weights, atol=1e-5, rtol=1e-4)
