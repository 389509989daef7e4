"""BART and its relatives: mBART, PLBART, Marian, Pegasus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from limelight.fields import take
from limelight.layers.positions import sinusoidal
from limelight.models.config import Config
from limelight.models.loading.architectures.config_fields import activation, require, same_size
from limelight.models.loading.architectures.family import Family


def bart_config(hf: Mapping[str, Any]) -> Config:
    """BART and its relatives: some choices are in the config.json, others only in their code."""
    kind = str(hf["model_type"])
    normed = kind in ("bart", "mbart", "plbart")
    scaled = take(hf, "scale_embedding", bool, kind == "plbart")
    embedding = {(0, 0): "plain", (0, 1): "scaled", (1, 0): "normed", (1, 1): "scaled_normed"}
    require(hf, "share_encoder_decoder_embeddings", True)
    require(hf, "tie_word_embeddings", True)
    heads, hidden = (
        same_size(hf, f"encoder_{name}", f"decoder_{name}", default)
        for name, default in (("attention_heads", 16), ("ffn_dim", 4096))
    )
    return Config(
        kind="transformer",
        vocabulary=take(hf, "vocab_size", int, 50265),
        width=take(hf, "d_model", int, 1024),
        layers=take(hf, "encoder_layers", int, 12),
        decoder_layers=take(hf, "decoder_layers", int, 12),
        heads=heads,
        hidden=hidden,
        context=take(hf, "max_position_embeddings", int, 1024),
        activation=cast("Any", activation(hf, "activation_function", "gelu")),
        order="pre" if kind in ("mbart", "pegasus") else "post",
        embedding=cast("Any", embedding[normed, scaled]),
        target_embedding="own" if normed else "shared",
        logit_bias=True,
        dropout=take(hf, "dropout", float, 0.1),
    )


def _bart_stack(ours: str) -> dict[str, tuple[str, ...]]:
    block, layer = f"{ours}.blocks.{{t}}.", f"{ours}.layers.{{t}}."

    def inputs(name: str) -> tuple[str, ...]:
        return tuple(f"{layer}{name}.{part}_proj" for part in "qkv")

    return {
        block + "attention.inputs": inputs("self_attn"),
        block + "attention.output": (f"{layer}self_attn.out_proj",),
        block + "attention_norm": (f"{layer}self_attn_layer_norm",),
        block + "cross.inputs": inputs("encoder_attn"),
        block + "cross.output": (f"{layer}encoder_attn.out_proj",),
        block + "cross_norm": (f"{layer}encoder_attn_layer_norm",),
        block + "feedforward.up": (f"{layer}fc1",),
        block + "feedforward.down": (f"{layer}fc2",),
        block + "feedforward_norm": (f"{layer}final_layer_norm",),
        f"{ours}.norm": (f"{ours}.layer_norm",),
    }


BART = Family(
    "BART",
    bart_config,
    "model.",
    {
        "embedding.tokens": ("shared",),
        "embedding.positions": ("encoder.embed_positions",),
        "embedding.norm": ("encoder.layernorm_embedding",),
        "target_embedding.positions": ("decoder.embed_positions",),
        "target_embedding.norm": ("decoder.layernorm_embedding",),
        **_bart_stack("encoder"),
        **_bart_stack("decoder"),
        "logit_bias": ("final_logits_bias",),
    },
    # Their position tables begin with two rows that are never read.
    skipped={"embedding.positions": 2, "target_embedding.positions": 2},
    # Missing in a file that was saved without a head.
    computed={"logit_bias": torch.zeros},
    unused=(r"(en|de)coder\.embed_tokens\.weight", r"lm_head\.weight", r"classification_head\..*"),
)


def _sines(rows: int, columns: int) -> Tensor:
    """Positions as Marian and Pegasus compute them: the sines, then the cosines."""
    table = sinusoidal(torch.arange(rows), columns)
    return torch.cat([table[:, 0::2], table[:, 1::2]], 1)


PEGASUS = replace(
    BART,
    name="Pegasus",
    skipped={},
    computed={**BART.computed, "embedding.positions.weight": _sines},
    unused=(*BART.unused, r"decoder\.embed_positions\.weight"),
)
