"""Model files that are damaged or contradict themselves, and chat templates without end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_gguf import KINDS, llama, write

import limelight as ll
from limelight.errors import FileError, LimelightError, OptionError
from limelight.models.chat import render
from limelight.models.tokens import Tokens

SMALL = {
    "model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2,
    "n_positions": 16,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder of a tiny GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(**SMALL)).save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 2**31}, r"holds \d+ tensors, but layers is 2147483648"),
        ({"n_embd": 10**30, "n_head": 1}, "but width is 1000000"),
        ({"vocab_size": 2**40}, "but vocabulary is 1099511627776"),
        ({"n_positions": 2**40}, "but context is 1099511627776"),
        ({"n_inner": 2**40}, "but hidden is 1099511627776"),
    ],
)
def test_sizes_that_no_tensor_has_are_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    assert ll.load(folder).config.layers == 2
    change(folder, **changes)
    with pytest.raises(FileError, match=message):
        ll.load(folder)


def test_wrong_sizes_of_a_gguf_and_of_our_own_checkpoints_are_refused(tmp_path: Path) -> None:
    tensors, metadata = llama()
    big = metadata | {"llama__block_count": 2**20}
    with pytest.raises(FileError, match="but layers is 1048576"):
        ll.load(write(tmp_path / "m.gguf", tensors, KINDS[0], **big))
    big = metadata | {"llama__attention__key_length": 2**31}
    with pytest.raises(FileError, match="but heads × head_size is 8589934592"):
        ll.load(write(tmp_path / "h.gguf", tensors, KINDS[0], **big))
    ll.save(ll.Decoder(ll.Config.gpt2(vocabulary=20, width=8, layers=1, heads=2)), tmp_path)
    own = json.loads((tmp_path / "limelight.json").read_text())
    own["config"]["layers"] = 2**31
    (tmp_path / "limelight.json").write_text(json.dumps(own))
    with pytest.raises(FileError, match="but layers is 2147483648"):
        ll.load(tmp_path)


def test_flipped_bits_of_a_saved_model_are_detected(tmp_path: Path) -> None:
    ll.save(ll.Decoder(ll.Config.gpt2(vocabulary=20, width=8, layers=1, heads=2)), tmp_path)
    path = tmp_path / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FileError, match=r"model\.safetensors: damaged: its sha256"):
        ll.load(tmp_path)


def test_shards_outside_the_folder_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = folder / "model.safetensors.index.json"
    for name in ("../a.safetensors", "/etc/passwd", "", "a\0.safetensors"):
        index.write_text(json.dumps({"weight_map": {"wte.weight": name}}))
        with pytest.raises(FileError, match="expected a file in its folder"):
            ll.load(folder)
    index.write_text(json.dumps({"weight_map": {"wte.weight": "x" * 300}}))
    with pytest.raises(FileError, match="no such file"):
        ll.load(folder)


def test_unknown_special_tokens_are_dropped_and_an_empty_vocabulary_raises(folder: Path) -> None:
    Tokens.characters("abcdefghijklmnopqrs").save(folder / "tokenizer.json")
    (folder / "generation_config.json").unlink()
    change(folder, bos_token_id=-1, eos_token_id=[-1, 2, 50256])
    tokens = ll.load(folder).tokens
    assert tokens is not None
    assert (tokens.begin, tokens.end) == (None, (2,))
    broken = json.loads((folder / "tokenizer.json").read_text())
    broken["model"]["vocab"] = {}
    (folder / "tokenizer.json").write_text(json.dumps(broken))
    with pytest.raises(FileError, match=r"tokenizer\.json: its vocabulary is empty"):
        ll.load(folder)


def test_text_that_is_not_unicode_raises() -> None:
    with pytest.raises(OptionError, match=r"a text must be Unicode, found .* at character 2"):
        Tokens.characters("abc").encode("ab\udcff")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         "ran for more than 5 s"),
        ("{{ '%1000000000d' % 1 }}", "needs more memory than 1024 MB|ran for more"),
        ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "makes more than 1048576 char"),
        ("{{ messages[9].content }}", "messages do not fit the chat template: UndefinedError"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ " + "(" * 3000, "messages do not fit the chat template"),
        ("x" * 2_000_000, "has 2000000 characters, expected at most"),
    ],
    ids=range(9),
)  # fmt: skip
def test_templates_have_limits(template: str, message: str) -> None:
    with pytest.raises(LimelightError, match=message):
        render(template, {"messages": [{"role": "user", "content": "hi"}]})


def gguf_with(path: Path, **changes: Any) -> Path:
    tensors, metadata = llama()
    return write(path, tensors, KINDS[0], **{**metadata, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__chat_template": 5}, "tokenizer.chat_template must be a text, found 5"),
        ({"tokenizer__ggml__token_type": "odd"}, "token_type must be a list, found 'odd'"),
        ({"tokenizer__ggml__tokens": [1, 2]}, "tokenizer.ggml.tokens must be texts"),
        ({"odd__nested": [[1, 2], [3, 4]]}, "the metadata holds an array of arrays"),
    ],
)
def test_wrong_metadata_of_a_gguf_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FileError, match=message):
        ll.load(gguf_with(tmp_path / "m.gguf", **changes))


def test_tensors_of_a_gguf_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    tensors, metadata = llama()
    path = write(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0, **metadata)
    raw = path.read_bytes()
    name = b"blk.0.ffn_up.weight"
    # Name, number of axes (4 bytes), 2 axes (8 bytes each), kind (4 bytes).
    start = raw.index(name) + len(name)
    axes = slice(start + 4, start + 20)
    kind = slice(start + 20, start + 24)
    odd = bytearray(raw)
    odd[kind] = int(gguf.GGMLQuantizationType.Q8_1).to_bytes(4, "little")
    path.write_bytes(odd)
    with pytest.raises(FileError, match=r"'blk.0.ffn_up.weight' is stored as Q8_1, which cannot"):
        ll.load(path)
    odd = bytearray(raw)
    odd[axes] = np.array([64, 0], np.uint64).tobytes()
    path.write_bytes(odd)
    with pytest.raises(FileError, match=r"'blk.0.ffn_up.weight' has shape \(0, 64\), expected at"):
        ll.load(path)


def test_weights_missing_from_their_shard_are_named(folder: Path) -> None:
    save_file({"other": torch.ones(2)}, folder / "b.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"wte.weight": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileError, match=r"b\.safetensors: holds no tensor 'wte\.weight'"):
        ll.load(folder)
