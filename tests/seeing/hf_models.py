"""Small Hugging Face models with random weights, one for each kind of attention."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}


def make(module: str, model: str, config: str, **options: Any) -> Callable[[], Any]:
    """A function that makes a model, so that only tests which need it import `transformers`."""

    def maker() -> Any:
        module_ = importlib.import_module(f"transformers.models.{module}")
        torch.manual_seed(1)
        instance = getattr(module_, model)(getattr(module_, config)(**options))
        # Initial weights are tiny; larger ones make attention far from uniform.
        with torch.no_grad():
            for name, parameter in instance.named_parameters():
                if parameter.ndim == 2 and "embed" not in name:
                    parameter.mul_(8)
        return instance.eval()

    return maker


DECODERS = {
    "gpt2": make(
        "gpt2", "GPT2LMHeadModel", "GPT2Config",
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
    ),
    "llama": make("llama", "LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "mistral": make("mistral", "MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=5),
    "gemma2": make(
        "gemma2", "Gemma2ForCausalLM", "Gemma2Config",
        **GROUPED, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0,
    ),
    "gemma3": make(
        "gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED, head_dim=8, sliding_window=5
    ),
    "qwen2": make("qwen2", "Qwen2ForCausalLM", "Qwen2Config", **GROUPED),
    "qwen3": make("qwen3", "Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=8),
    "gpt_oss": make(
        "gpt_oss", "GptOssForCausalLM", "GptOssConfig",
        **GROUPED, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}  # fmt: skip
"""gpt_oss has attention sinks, gemma2 a soft cap, mistral and the gemmas sliding windows."""

BERT = make("bert", "BertModel", "BertConfig", **SIZES)

T5 = make(
    "t5", "T5ForConditionalGeneration", "T5Config",
    vocab_size=99, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0,
)  # fmt: skip

VIT = make(
    "vit", "ViTModel", "ViTConfig",
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
    image_size=12, patch_size=4,
)  # fmt: skip

WHISPER = make(
    "whisper", "WhisperForConditionalGeneration", "WhisperConfig",
    vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, num_mel_bins=8,
    max_source_positions=20, max_target_positions=32, decoder_start_token_id=1, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip

BART = make(
    "bart", "BartForConditionalGeneration", "BartConfig",
    vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=2,
    forced_eos_token_id=None,
)  # fmt: skip

ALBERT = {
    groups: make(
        "albert", "AlbertModel", "AlbertConfig",
        **{**SIZES, "num_hidden_layers": 2 * groups}, num_hidden_groups=groups, embedding_size=16,
    )
    for groups in (1, 2)
}  # fmt: skip
"""Every two layers share one module."""

DIFFLLAMA = make("diffllama", "DiffLlamaForCausalLM", "DiffLlamaConfig", **GROUPED)
"""Each layer attends twice."""

QWEN2_VL_VISION = make(
    "qwen2_vl.modeling_qwen2_vl", "Qwen2VisionTransformerPretrainedModel", "Qwen2VLVisionConfig",
    depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=2, mlp_ratio=2, in_channels=3,
    temporal_patch_size=1, spatial_merge_size=1,
)  # fmt: skip
"""Each layer attends once for each image."""

LONGT5 = make(
    "longt5", "LongT5ForConditionalGeneration", "LongT5Config",
    vocab_size=99, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, local_radius=3,
    decoder_start_token_id=0,
)  # fmt: skip
"""Its encoder computes attention by itself."""

LONGFORMER = make("longformer", "LongformerModel", "LongformerConfig", **SIZES, attention_window=4)

OFF_THE_INTERFACE = {
    "longformer": LONGFORMER,
    "mpnet": make("mpnet", "MPNetModel", "MPNetConfig", **SIZES),
    "bloom": make(
        "bloom", "BloomForCausalLM", "BloomConfig", vocab_size=99, hidden_size=32, n_layer=2,
        n_head=4,
    ),
    "mpt": make(
        "mpt", "MptForCausalLM", "MptConfig", vocab_size=99, d_model=32, n_layers=2, n_heads=4,
        max_seq_len=64,
    ),
    "codegen": make(
        "codegen", "CodeGenForCausalLM", "CodeGenConfig", vocab_size=99, n_embd=32, n_layer=2,
        n_head=4, n_positions=64, rotary_dim=4,
    ),
}  # fmt: skip
"""These take a mask and compute their attention by themselves."""
