"""SmolLM2 through transformers, watched. It is tested here for the fixtures of this folder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import limelight as ll
from limelight.insight.summary import summary

LENS = ll.Lens(top=4, entropy=True, received=True)


def test_smollm2_through_transformers_sees_what_eager_computes(hf_smollm2: Any) -> None:
    inputs = hf_smollm2.tokenizer("The capital of France is", return_tensors="pt")
    before = hf_smollm2.config._attn_implementation
    hf_smollm2.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            eager = hf_smollm2(**inputs, output_attentions=True)
    finally:
        hf_smollm2.set_attn_implementation(before)
    with torch.no_grad(), ll.watch(hf_smollm2, LENS) as watched:
        ours = hf_smollm2(**inputs)
    assert hf_smollm2.config._attn_implementation == before
    torch.testing.assert_close(ours.logits, eager.logits, atol=1e-4, rtol=1e-4)
    for layer, weights in enumerate(eager.attentions):
        seen = watched.seen(layer)
        torch.testing.assert_close(seen.dense(), weights, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.received, weights.sum(2), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.top.weights, weights.topk(4).values, atol=1e-5, rtol=1e-4)


def test_generated_tokens_are_named_and_the_first_is_a_sink(hf_smollm2: Any) -> None:
    tokenizer = hf_smollm2.tokenizer
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    with ll.watch(hf_smollm2, LENS, layers=[3, 29]) as watched:
        tokens = hf_smollm2.generate(**inputs, max_new_tokens=3, do_sample=False)
    recording = watched.recording(tokenizer)
    assert "Paris" in recording.text
    assert len(recording.tokens) == tokens.shape[1] - 1
    assert [token.text for token in recording.tokens[:5]] == [
        "The",
        "capital",
        "of",
        "France",
        "is",
    ]
    assert 0 in summary(recording).sinks
    assert recording.layer_numbers == (3, 29)
    rows = recording.weights(29, 0).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    assert float(recording.received()[..., 0].mean()) == pytest.approx(
        float(
            torch.stack([recording.weights(n, h)[:, 0] for n in (3, 29) for h in range(9)]).mean()
        )
        * len(recording.tokens),
        rel=1e-4,
    )
