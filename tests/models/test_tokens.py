"""Tokenizers: ids, spans, and the tokenizer inside a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import limelight as ll
from limelight.errors import FileError, OptionError, UnavailableError
from limelight.models.tokens import Tokens, prompt_ids

TEXTS = [
    "Hello world 1234 naïve 🙂 test\n\n  x  don't",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n",
    "def f(x):\n\treturn x ** 2  # comment — déjà vu, 東京, Ω≈ç√",
    "  leading, trailing   ",
    "1999 2024-01-02 3.14159 1,000,000",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_tokenizer_equals_transformers(
    smollm2: ll.Decoder, hf_smollm2: Any, text: str
) -> None:
    assert smollm2.tokens is not None
    assert smollm2.tokens.encode(text).ids == hf_smollm2.tokenizer(text)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_spans_tile_the_text(smollm2: ll.Decoder, text: str) -> None:
    assert smollm2.tokens is not None
    spans = smollm2.tokens.encode(text).spans
    covered = set[int]()
    for start, end in spans:
        covered |= set(range(start, end))
    assert covered == set(range(len(text)))
    assert spans == sorted(spans)


def test_spans_name_the_words(minilm: ll.Encoder) -> None:
    assert minilm.tokens is not None
    text = "The animal didn't cross."
    encoded = minilm.tokens.encode(text)
    words = [text[start:end] for start, end in encoded.spans]
    assert words == ["", "The", "animal", "didn", "'", "t", "cross", ".", ""]
    assert encoded.pieces[0] == "[CLS]"
    assert encoded.pieces[-1] == "[SEP]"


def test_minilm_ids_equal_transformers(minilm: ll.Encoder, minilm_folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(minilm_folder))
    assert minilm.tokens is not None
    for text in TEXTS:
        assert minilm.tokens.encode(text).ids == theirs(text)["input_ids"]
        cut = theirs(text, truncation=True, max_length=6)["input_ids"]
        assert minilm.tokens.encode(text, limit=6).ids == cut
    assert minilm.tokens.ids_of(TEXTS, limit=6) == [
        minilm.tokens.encode(text, limit=6).ids for text in TEXTS
    ]


def test_stream_gives_whole_characters_and_the_same_text(smollm2: ll.Decoder) -> None:
    tokens = smollm2.tokens
    assert tokens is not None
    text = "naïve 🙂🦜 東京 done"
    ids = tokens.encode(text).ids
    stream = tokens.stream()
    pieces = [stream.add(token) for token in ids]
    assert "".join(pieces) == text == tokens.decode(ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert "" in pieces  # some character took more than one token


def test_special_tokens_are_known(minilm: ll.Encoder, smollm2: ll.Decoder) -> None:
    assert minilm.tokens is not None
    assert smollm2.tokens is not None
    assert minilm.tokens.special == {0, 100, 101, 102, 103}
    assert smollm2.tokens.end == (2,)
    assert smollm2.tokens.begin == 1
    assert smollm2.tokens.decode([1, 19556, 2]) == "Hello"


def test_chat_equals_transformers(smollm2: ll.Decoder, hf_smollm2: Any) -> None:
    assert smollm2.tokens is not None
    messages = [{"role": "user", "content": "What is attention?"}]
    expected = hf_smollm2.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert smollm2.tokens.chat(messages) == expected


def test_chat_without_a_template_raises(minilm: ll.Encoder) -> None:
    assert minilm.tokens is not None
    with pytest.raises(UnavailableError, match="chat template"):
        minilm.tokens.chat([{"role": "user", "content": "hi"}])


def test_characters_round_trip(tmp_path: Path) -> None:
    tokens = Tokens.characters("to be, or not to be\n\t“é”")
    text = "not\nto\tbé”"
    assert tokens.decode(tokens.encode(text).ids) == text
    assert tokens.encode(text).spans == [(start, start + 1) for start in range(len(text))]
    assert tokens.encode("z").ids == [0]
    tokens.save(tmp_path / "tokenizer.json")
    again = Tokens.from_file(tmp_path / "tokenizer.json", end=[1])
    assert again.encode(text) == tokens.encode(text)
    assert again.end == (1,)
    assert len(again) == len(tokens)


def test_bad_tokenizer_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.json: no such file"):
        Tokens.from_file(tmp_path / "none.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match=r"tokenizer\.json: not a tokenizer"):
        Tokens.from_file(tmp_path / "tokenizer.json")


def test_wrong_texts_and_ids_raise(minilm: ll.Encoder, untyped: None) -> None:
    assert minilm.tokens is not None
    with pytest.raises(OptionError, match="a text must be a str, found int"):
        minilm.tokens.encode_all(["fine", 3])  # pyright: ignore
    with pytest.raises(OptionError, match="token must be an id below"):
        minilm.tokens.piece(10**6)
    with pytest.raises(UnavailableError, match="without a tokenizer"):
        prompt_ids(None, "text")
    assert prompt_ids(None, [1, 2]) == [1, 2]
