"""GGUF files: every quantisation against the gguf package's own, names, scaling, damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import limelight as ll
from limelight.errors import FileError
from limelight.models.loading.gguf import Gguf
from limelight.models.loading.gguf_tokens import gguf_tokens

KINDS = [
    gguf.GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
]


def write(
    path: Path, tensors: dict[str, np.ndarray], kind: gguf.GGMLQuantizationType, **metadata: Any
) -> Path:
    """A GGUF file of a small Llama; matrices in the given quantisation."""
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    for name, value in metadata.items():
        name = name.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_array(name, value)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama(width: int = 64, vocabulary: int = 40) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Two layers, 4 heads of 16 channels, 2 key/value heads."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)

    tensors = {
        "token_embd.weight": matrix(vocabulary, width),
        "output_norm.weight": np.ones(width, np.float32),
        "output.weight": matrix(vocabulary, width),
    }
    for layer in range(2):
        tensors |= {
            f"blk.{layer}.{name}.weight": matrix(*shape) if len(shape) > 1 else 1 + matrix(*shape)
            for name, shape in {
                "attn_norm": (width,), "ffn_norm": (width,),
                "attn_q": (64, width), "attn_k": (32, width), "attn_v": (32, width),
                "attn_output": (width, 64),
                "ffn_gate": (96, width), "ffn_up": (96, width), "ffn_down": (width, 96),
            }.items()
        }  # fmt: skip
    metadata = {
        "llama__block_count": 2, "llama__context_length": 128, "llama__embedding_length": width,
        "llama__feed_forward_length": 96, "llama__attention__head_count": 4,
        "llama__attention__head_count_kv": 2, "llama__attention__layer_norm_rms_epsilon": 1e-5,
        "tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "gpt-2",
        "tokenizer__ggml__tokens": [chr(97 + t) for t in range(26)]
        + ["ab", *(f"<{t}>" for t in range(vocabulary - 27))],
        "tokenizer__ggml__merges": ["a b"], "tokenizer__ggml__eos_token_id": 3,
    }  # fmt: skip
    return tensors, metadata


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_dequantised_tensors_equal_those_of_the_package(tmp_path: Path, kind: Any) -> None:
    tensors, metadata = llama()
    file = Gguf(write(tmp_path / "m.gguf", tensors, kind, **metadata))
    for theirs, ours in (
        ("blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"),
        ("token_embd.weight", "model.embed_tokens.weight"),
    ):
        expected = gguf.dequantize(gguf.quantize(tensors[theirs], kind), kind)
        assert np.array_equal(file.read(ours).numpy(), expected)


def test_every_tensor_of_smollm2_is_as_transformers_reads_it(
    smollm2_file: Path, hf_smollm2: Any
) -> None:
    file = Gguf(smollm2_file)
    theirs = hf_smollm2.state_dict()
    assert set(file.names()) == set(theirs) - {"lm_head.weight"}
    for name in file.names():
        assert torch.equal(file.read(name), theirs[name]), name


def test_small_llama_runs_as_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tensors, metadata = llama()
    path = write(tmp_path / "m.gguf", tensors, KINDS[0], **metadata)
    model = ll.load(path)
    assert isinstance(model, ll.Decoder)
    assert model.name == "m"
    assert not model.config.tied
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf").eval()
    tokens = torch.randint(40, (2, 20))
    with torch.inference_mode():
        assert torch.allclose(model(tokens), theirs(tokens).logits, atol=1e-4)


def scaled(factor: float) -> np.ndarray:
    """Llama 3's divisors of the 8 frequencies of a head of 16 channels, base 10,000."""
    wavelength = 2 * np.pi * 10000.0 ** (np.arange(8) / 8)
    smooth = np.clip((8192 / wavelength - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def test_rotary_scaling_is_read(tmp_path: Path) -> None:
    tensors, metadata = llama()
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    path = write(tmp_path / "linear.gguf", tensors, KINDS[0], **metadata, **linear)
    assert Gguf(path).config()["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    with_factors = {**tensors, "rope_freqs.weight": scaled(8.0)}
    path = write(tmp_path / "llama3.gguf", with_factors, KINDS[0], **metadata)
    scaling = Gguf(path).config()["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == 8.0
    assert isinstance(ll.load(path), ll.Decoder)
    odd = {**tensors, "rope_freqs.weight": np.linspace(1, 8, 8).astype(np.float32) ** 2}
    path = write(tmp_path / "odd.gguf", odd, KINDS[0], **metadata)
    with pytest.raises(FileError, match=r"odd\.gguf: tensor 'rope_freqs\.weight'"):
        ll.load(path)


def test_the_merges_of_a_sentence_piece_tokenizer_follow_from_its_scores(tmp_path: Path) -> None:
    """The best-scored pair is joined first."""
    tensors, metadata = llama()
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "c",
    ]
    pieces += ["ab", "bc", "▁a", "▁ab", "abc"]
    scores = [0.0] * 259 + [-100.0] * 4 + [-3.0, -1.0, -2.0, -4.0, -5.0]
    types = [2, 3, 3] + [6] * 256 + [1] * 9
    metadata |= {
        "tokenizer__ggml__model": "llama", "tokenizer__ggml__tokens": pieces,
        "tokenizer__ggml__scores": scores, "tokenizer__ggml__token_type": types,
        "tokenizer__ggml__bos_token_id": 1, "tokenizer__ggml__eos_token_id": 2,
        "tokenizer__ggml__unknown_token_id": 0,
    }  # fmt: skip
    tensors["token_embd.weight"] = np.zeros((len(pieces), 64), np.float32)
    path = write(tmp_path / "m.gguf", tensors, KINDS[0], **metadata)
    tokens = gguf_tokens(Gguf(path))
    # "bc" (-1) is joined before "▁a" (-2) and "ab" (-3).
    assert tokens.encode("abc").pieces == ["<s>", "▁a", "bc"]
    assert tokens.encode("ab").pieces == ["<s>", "▁ab"]
    assert tokens.encode("é").pieces == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert tokens.decode(tokens.encode("abc é a").ids) == "abc é a"


def damaged(tmp_path: Path, **changes: Any) -> Path:
    tensors, metadata = llama()
    for name in changes.pop("without", []):
        del tensors[name]
    tensors |= changes.pop("tensors", {})
    return write(tmp_path / "bad.gguf", tensors, KINDS[0], **(metadata | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gemma"}, "architecture 'gemma' is unknown"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"without": ["blk.1.attn_v.weight"]}, r"holds no tensor 'blk\.1\.attn_v\.weight'"),
        ({"without": ["token_embd.weight"]}, r"holds no tensor 'token_embd\.weight'"),
        ({"without": ["output_norm.weight"]}, r"holds no tensor 'output_norm\.weight'"),
        (
            {"tensors": {"blk.0.ffn_down.weight": np.zeros((64, 32), np.float32)}},
            r"'blk\.0\.ffn_down\.weight' has shape \(64, 32\), expected \(64, 96\)",
        ),
        (
            {"tensors": {"blk.0.attn_k.weight": np.zeros((64, 64), np.float32)}},
            r"'blk\.0\.attn_k\.weight' has shape \(64, 64\), expected \(32, 64\)",
        ),
        (
            {"tensors": {"blk.0.attn_q.weight": np.zeros((62, 64), np.float32)}},
            r"'blk\.0\.attn_q\.weight' has shape \(62, 64\), expected a multiple of 8 rows",
        ),
        ({"llama__attention__head_count": 0}, r"llama\.attention\.head_count must be .* found 0"),
        (
            {"llama__attention__head_count_kv": 0},
            r"head_count_kv must be a whole number .* found 0",
        ),
        ({"llama__attention__head_count": [4, 4]}, "head_count differs from layer to layer"),
        ({"llama__attention__head_count_kv": [2, 2]}, "head_count_kv differs from layer to layer"),
        ({"llama__block_count": "two"}, r"llama\.block_count must be a whole number, found 'two'"),
        ({"llama__rope__freq_base": "x"}, r"llama\.rope\.freq_base must be a number, found 'x'"),
        ({"tokenizer__ggml__tokens": "abc"}, r"tokenizer\.ggml\.tokens must be a list"),
        ({"tokenizer__ggml__eos_token_id": 40}, "eos_token_id is 40, expected one of 40 tokens"),
        (
            {"tensors": {"blk.0.attn_q_norm.weight": np.zeros(16, np.float32)}},
            "'blk.0.attn_q_norm.weight' has no place",
        ),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer 'bert' is unknown"),
        ({"tokenizer__ggml__pre": "odd"}, "pre-tokenizer 'odd' is unknown"),
        ({"tokenizer__ggml__merges": ["x y"]}, "tokenizer is damaged: .*`xy` out of vocabulary"),
        (
            {"llama__rope__scaling__type": "odd", "llama__rope__scaling__factor": 2.0},
            "scaling 'odd'",
        ),
    ],
)
def test_wrong_contents_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message) as error:
        ll.load(damaged(tmp_path, **changes))
    assert "bad.gguf" in str(error.value)


def test_truncated_files_are_named(tmp_path: Path, smollm2_file: Path) -> None:
    whole = write(tmp_path / "whole.gguf", llama()[0], KINDS[0], **llama()[1])
    data = whole.read_bytes()
    for size in (0, 3, 20, 200, 900, len(data) // 2, len(data) - 64):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(data[:size])
        with pytest.raises(FileError, match=r"cut\.gguf"):
            ll.load(cut)
    cut = tmp_path / "smollm2.gguf"
    shutil.copyfile(smollm2_file, cut)
    with cut.open("r+b") as file:
        file.truncate(90_000_000)
    with pytest.raises(FileError, match=r"smollm2\.gguf: truncated: tensor 'blk\.\d+\..*' needs"):
        ll.load(cut)


def test_the_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    assert isinstance(ll.load(damaged(tmp_path).rename(tmp_path / "M.GGUF")), ll.Decoder)


def test_a_file_that_is_not_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("not a model, only text " * 10)
    with pytest.raises(FileError, match=r"text\.gguf: not a whole GGUF file: GGUF magic"):
        ll.load(path)
