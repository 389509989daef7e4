"""Damaged files of every kind we read: a LimelightError, or a result; never another error."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load, save

import limelight as ll
from limelight.errors import LimelightError
from limelight.insight.worked.audit import audit
from limelight.insight.worked.parsing import worked
from limelight.models.tokens import Tokens
from limelight.seeing.recording.stored import checksum
from limelight.seeing.recording.tokens import plain_tokens
from limelight.seeing.windows import read
from limelight.training.loop import train
from limelight.training.settings import Settings

TEXT = "The animal didn't cross the street."
WORDS = [b"null", b"-1", b"1e999", b'"x"', b"[]", b"{}", b"NaN", b"99999999999999999999", b"\xff"]

RECORDINGS = ("recording.safetensors", "windows.safetensors", "masked.safetensors")

Reader = Callable[[Path], Any]


def sources(folder: Path) -> dict[Path, Reader]:
    """A small file of each kind that we read, and how it is read."""
    recordings = [folder / name for name in RECORDINGS]
    for path, recording in zip(recordings, _recordings(), strict=True):
        recording.save(path)
    settings = folder / "settings.toml"
    settings.write_text('[model]\nkind = "decoder"\nwidth = 16\nlayers = 1\nheads = 2\n')
    example = folder / "example.toml"
    example.write_bytes(
        (resources.files("limelight.insight") / "examples/causal.toml").read_bytes()
    )
    return {
        **dict.fromkeys(recordings, _strongest),
        settings: Settings.from_file,
        example: _audit,
        _gguf(folder / "model.gguf"): _look,
        **_files(_saved(folder / "saved"), lambda changed: _look(changed.parent)),
        **_files(_hugging_face(folder / "hf"), lambda changed: _look(changed.parent)),
        **_run(folder / "run"),
    }


def _recordings() -> list[ll.Recording]:
    """Of a text, of a text in windows, and of a call with masks of every kind and a bias."""
    model = ll.load("minilm")
    long = read(model, "tick tock " * 60).recording
    torch.manual_seed(0)
    x = torch.randn(1, 2, 9, 4)
    mask = (ll.window(3, 1) | ll.anchors([0])) & ll.padding([9]) & torch.rand(9, 9).gt(0.1)
    mask &= ll.documents([4, 5], inside=ll.dilated(2)) & ll.blocks(
        [[True, False, True]] * 2, (5, 4)
    )
    lens = ll.Lens(
        top=2, value_top=2, entropy=True, distance=True, received=True, map=(3, 3), columns=(0, 1)
    )
    _, seen = ll.attend(
        x, x, x, mask=mask & ll.without([(1, 1)]), bias=torch.randn(9, 9), lens=lens
    )
    text, tokens = plain_tokens(list("abcdefghi"))
    return [ll.look(TEXT, model), long, ll.Recording(text, tokens, (seen,))]


def _files(folder: Path, reader: Reader) -> dict[Path, Reader]:
    return {path: reader for path in sorted(folder.iterdir()) if path.is_file()}


def _saved(folder: Path) -> Path:
    """A model of our own."""
    torch.manual_seed(0)
    model = ll.Encoder(
        ll.Config(kind="encoder", vocabulary=40, width=16, layers=1, heads=2, context=16)
    )
    ll.save(model, folder)
    return folder


def _hugging_face(folder: Path) -> Path:
    """A GPT-2 with a tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 19, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder)
    Tokens.characters("abcdefghijklmnopqrs").save(folder / "tokenizer.json")
    return folder


def _gguf(path: Path) -> Path:
    """A Llama of one layer, in a quantisation."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(chr(97 + letter) for letter in range(26)), "ab"])
    writer.add_token_merges(["a b"])
    writer.add_chat_template("{{ messages[0].content }}")
    shapes = {
        "token_embd": (27, 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (32, 32),
        "blk.0.ffn_up": (32, 32), "blk.0.ffn_down": (32, 32),
    }  # fmt: skip
    kind = gguf.GGMLQuantizationType.Q4_0
    for name, shape in shapes.items():
        tensor = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", tensor)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _run(folder: Path) -> dict[Path, Reader]:
    """The log and the newest checkpoint of a training run, which is resumed."""
    folder.mkdir()
    (folder / "text.txt").write_text("abcdefgh\n" * 200)
    settings = Settings.from_table(
        {
            "folder": str(folder / "run"), "steps": 2, "batch": 2, "save_every": 1, "keep": 2,
            "data": {"text": "text.txt"},
            "model": {"preset": "gpt2", "layers": 1, "heads": 2, "width": 8, "context": 8},
        }
    )  # fmt: skip
    train(settings, base=folder)

    def resume(_: Path) -> None:
        train(settings, base=folder, resume=True)

    checkpoint = folder / "run" / "step-00000002"
    return {folder / "run" / "log.jsonl": resume, **_files(checkpoint, resume)}


def _look(model: Path) -> None:
    ll.look([1, 2, 3], ll.load(model))


def _strongest(path: Path) -> None:
    recording = ll.Recording.load(path)
    recording.strongest()
    recording.top(0, 0, -1)
    recording.links()
    recording.to_json()
    recording.by_words()
    recording.steps(0, 0)
    recording.save(path.with_name("page.html"))


def _audit(path: Path) -> None:
    audit(worked(path))


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with bytes flipped, cut, repeated or replaced by words that parse."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        # Mostly in the header: the rest of a file is mostly numbers, which no reader checks.
        at = rng.randrange(min(len(changed), 2000) or 1) if rng.random() < 0.8 else 0
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randint(1, 64)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 64)] * rng.randint(1, 3)
            case 3:
                changed[at : at + rng.randint(0, 8)] = rng.choice(WORDS)
            case _:
                del changed[rng.randrange(len(changed) or 1) :]
        if not changed:
            return b""
    return bytes(changed)


def mutated_json(rng: random.Random, content: bytes) -> bytes:
    """A document with one value replaced by another kind of value."""
    document = json.loads(content)
    node, steps = document, 0
    while isinstance(node, dict | list) and len(node) and steps < 8:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        steps += 1
        if not isinstance(node[key], dict | list) or rng.random() < 0.3:
            node[key] = rng.choice([None, -1, 0, 2**70, "x", [], {}, True, 1e308, "9" * 5000])
            break
        node = node[key]
    return json.dumps(document).encode()


def forged(rng: random.Random, content: bytes) -> bytes:
    """A recording with one part changed and a checksum that fits."""
    tensors = load(content)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])["__metadata__"]
    if rng.random() < 0.6:
        header["document"] = mutated_json(rng, header["document"].encode()).decode()
    elif rng.random() < 0.2:
        name = rng.choice(["version", "format", "document"])
        header[name] = rng.choice(["", "0", "9" * 6000, "-1", "[", "null"])
    else:
        name = rng.choice(sorted(tensors))
        tensor = tensors[name]
        wide = tensor.double()
        tensors[name] = rng.choice([
            tensor[:0], tensor[..., :1], tensor.flatten(), tensor.bool(), wide, tensor[None],
            (wide * 0 + 40).to(tensor.dtype), wide + math.nan, wide + math.inf, tensor.int(),
            torch.cat((wide, wide)),
        ]).clone()  # fmt: skip
        if rng.random() < 0.2:
            del tensors[name]
    header["checksum"] = checksum(header["document"], tensors)
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, header)


def drawn(
    seed: int, readers: dict[Path, Reader], contents: dict[Path, bytes]
) -> tuple[Path, bytes]:
    """A file, and its damaged content."""
    rng = random.Random(seed)
    path = rng.choice(sorted(readers))
    change = damaged
    if rng.random() < 0.5:
        change_value = mutated_json if path.suffix == ".json" else damaged
        change = forged if path.name in RECORDINGS else change_value
    return path, change(rng, contents[path])


def check(
    path: Path, damage: bytes, readers: dict[Path, Reader], contents: dict[Path, bytes]
) -> None:
    """Read the file with the damaged content; its own is restored afterwards."""
    path.write_bytes(damage)
    try:
        with contextlib.suppress(LimelightError):
            readers[path](path)
    finally:
        path.write_bytes(contents[path])
