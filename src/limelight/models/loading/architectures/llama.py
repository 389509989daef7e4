"""Llama and its relatives: Mistral, Qwen 2 and 3, SmolLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from limelight.fields import take
from limelight.models.config import Config
from limelight.models.loading.architectures.config_fields import gate, require
from limelight.models.loading.architectures.family import BLOCK, Family
from limelight.models.scalings import scaling_from_hf


def llama_config(hf: Mapping[str, Any]) -> Config:
    """Llama, Mistral or Qwen 2; Qwen 3 and Gemma build on it."""
    require(hf, "mlp_bias", False)
    require(hf, "use_bidirectional_attention", False)
    base, scaling = scaling_from_hf(hf)
    bias = "attention" if take(hf, "attention_bias", bool, False) else "none"
    heads = take(hf, "num_attention_heads", int, 32)
    layers = take(hf, "num_hidden_layers", int, 32)
    return Config.llama(
        vocabulary=take(hf, "vocab_size", int, 32000),
        width=take(hf, "hidden_size", int, 4096),
        layers=layers,
        heads=heads,
        kv_heads=take(hf, "num_key_value_heads", int) or heads,
        head_size=take(hf, "head_dim", int),
        hidden=take(hf, "intermediate_size", int, 11008),
        context=take(hf, "max_position_embeddings", int, 2048),
        rotary_base=base,
        rotary_scaling=scaling,
        norm_eps=take(hf, "rms_norm_eps", float, 1e-6),
        bias="inputs" if hf["model_type"] == "qwen2" else bias,
        tied=take(hf, "tie_word_embeddings", bool, False),
        dropout=take(hf, "attention_dropout", float, 0.0),
        activation=gate(hf, "hidden_act", "silu"),
    ).changed(**_windows(hf, layers))


def _windows(hf: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The window of Mistral and Qwen, and the layers without it; Llama ignores these fields."""
    kind, width = hf["model_type"], take(hf, "sliding_window", int)
    if kind == "mistral":
        return {} if width is None else windowed(width, range(layers), layers)
    if kind not in ("qwen2", "qwen3") or not take(hf, "use_sliding_window", bool, False):
        return {}
    first = take(hf, "max_window_layers", int, 28)
    kinds = take(hf, "layer_types", list, [])
    sliding = [t for t, name in enumerate(kinds) if name == "sliding_attention"]
    return windowed(width or 4096, sliding if kinds else range(first, layers), layers)


def windowed(width: int, sliding: Sequence[int], layers: int) -> dict[str, Any]:
    """The config fields of a model in which the `sliding` layers have a window.

    Their window counts the token itself; ours counts those before it.
    """
    if not sliding:
        return {}
    global_layers = tuple(t for t in range(layers) if t not in sliding)
    return {"window": width - 1, "global_layers": global_layers}


def qwen3_config(hf: Mapping[str, Any]) -> Config:
    """Llama with norms on the heads."""
    size = take(hf, "head_dim", int, 128)
    return llama_config({**hf, "head_dim": size}).changed(head_norm=True)


LLAMA = Family(
    "Llama",
    llama_config,
    "model.",
    {
        "embedding.tokens": ("embed_tokens",),
        BLOCK + "attention.inputs": (
            "layers.{t}.self_attn.q_proj",
            "layers.{t}.self_attn.k_proj",
            "layers.{t}.self_attn.v_proj",
        ),
        BLOCK + "attention.output": ("layers.{t}.self_attn.o_proj",),
        BLOCK + "attention_norm": ("layers.{t}.input_layernorm",),
        BLOCK + "feedforward.up": ("layers.{t}.mlp.gate_proj", "layers.{t}.mlp.up_proj"),
        BLOCK + "feedforward.down": ("layers.{t}.mlp.down_proj",),
        BLOCK + "feedforward_norm": ("layers.{t}.post_attention_layernorm",),
        "stack.norm": ("norm",),
        "head": ("lm_head",),
    },
    unused=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight"),
)


HEAD_NORMS = {
    BLOCK + "attention.query_norm": ("layers.{t}.self_attn.q_norm",),
    BLOCK + "attention.key_norm": ("layers.{t}.self_attn.k_norm",),
}


QWEN3 = replace(
    LLAMA, name="Qwen 3", config=qwen3_config, modules={**LLAMA.modules, **HEAD_NORMS}
)  # fmt: skip
