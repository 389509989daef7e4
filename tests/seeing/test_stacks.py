"""Which stack a call of a Hugging Face encoder-decoder belongs to."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close as close

import limelight as ll
from limelight.errors import OptionError

SIZES = {
    "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 32,
    "vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=3, num_heads=4
    )
    return T5ForConditionalGeneration(config), {"input_ids": torch.randint(3, 90, (1, 7))}


def bart():
    from transformers import BartConfig, BartForConditionalGeneration

    model = BartForConditionalGeneration(BartConfig(**SIZES, max_position_embeddings=32))
    return model, {"input_ids": torch.randint(3, 90, (1, 7))}


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(**SIZES, num_mel_bins=8, max_source_positions=7, max_target_positions=20)
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(1, 8, 14)}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("maker", [t5, bart, whisper])
def test_each_stack_holds_the_weights_that_the_model_returns_for_it(maker):
    torch.manual_seed(0)
    model, inputs = maker()
    model.eval().set_attn_implementation("eager")
    inputs["decoder_input_ids"] = torch.tensor([[1, 5, 6, 8]])
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
        with ll.watch(model) as watched:
            output = model(**inputs)
    close(output.logits, expected.logits, atol=1e-5, rtol=1e-4)
    assert watched.stacks == ("encoder", "decoder", "cross")
    assert not watched.is_dense
    for stack, keys, queries in (("encoder", 7, 7), ("decoder", 4, 4), ("cross", 7, 4)):
        recording = watched.recording(stack=stack)
        layers = getattr(expected, f"{stack}_attentions")
        assert len(recording.layers) == len(layers) == (2 if stack == "encoder" else 3)
        assert (len(recording.tokens), len(recording.queries)) == (keys, queries)
        for seen, weights in zip(recording.layers, layers, strict=True):
            close(seen.dense(), weights, atol=1e-5, rtol=1e-4)
    for wrong in (None, "self"):
        with pytest.raises(OptionError, match="stack must be one of 'encoder', 'decoder', 'cross'"):
            watched.recording(stack=wrong)
