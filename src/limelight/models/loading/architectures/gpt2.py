"""GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limelight.fields import take
from limelight.models.config import Config
from limelight.models.loading.architectures.config_fields import activation, require
from limelight.models.loading.architectures.family import BLOCK, Family


def gpt2_config(hf: Mapping[str, Any]) -> Config:
    """GPT-2."""
    require(hf, "scale_attn_weights", True)
    require(hf, "scale_attn_by_inverse_layer_idx", False)
    require(hf, "add_cross_attention", False)
    width = take(hf, "n_embd", int, 768)
    return Config.gpt2(
        vocabulary=take(hf, "vocab_size", int, 50257),
        width=width,
        layers=take(hf, "n_layer", int, 12),
        heads=take(hf, "n_head", int, 12),
        hidden=take(hf, "n_inner", int) or 4 * width,
        context=take(hf, "n_positions", int, 1024),
        activation=activation(hf, "activation_function", "gelu_new"),
        norm_eps=take(hf, "layer_norm_epsilon", float, 1e-5),
        tied=take(hf, "tie_word_embeddings", bool, True),
        dropout=take(hf, "resid_pdrop", float, 0.1),
    )


GPT2 = Family(
    "GPT-2",
    gpt2_config,
    "transformer.",
    {
        "embedding.tokens": ("wte",),
        "embedding.positions": ("wpe",),
        BLOCK + "attention.inputs": ("h.{t}.attn.c_attn",),
        BLOCK + "attention.output": ("h.{t}.attn.c_proj",),
        BLOCK + "attention_norm": ("h.{t}.ln_1",),
        BLOCK + "feedforward.up": ("h.{t}.mlp.c_fc",),
        BLOCK + "feedforward.down": ("h.{t}.mlp.c_proj",),
        BLOCK + "feedforward_norm": ("h.{t}.ln_2",),
        "stack.norm": ("ln_f",),
        "head": ("lm_head",),
    },
    transposed=frozenset(
        BLOCK + name
        for name in ("attention.inputs", "attention.output", "feedforward.up", "feedforward.down")
    ),
    # Old files store the causal mask; a tied lm_head repeats the token table.
    unused=(r"h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight"),
)
