"""Vision transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limelight.errors import OptionError
from limelight.fields import take
from limelight.models.config import Config
from limelight.models.loading.architectures.bert import BERT
from limelight.models.loading.architectures.config_fields import activation, require
from limelight.models.loading.architectures.family import BLOCK, Family


def vit_config(hf: Mapping[str, Any]) -> Config:
    """ViT, with classes if it was saved with a classifier."""
    require(hf, "qkv_bias", True)
    require(hf, "num_channels", 3)
    size: Any = hf.get("image_size", 224)
    sides = (size, size) if type(size) is int else tuple(size) if isinstance(size, list) else ()
    if len(sides) != 2 or not all(type(side) is int for side in sides):
        raise OptionError(f"image_size must be one or two whole numbers, found {size!r}")
    architectures = [str(name) for name in take(hf, "architectures", list, [])]
    classifies = any(name.endswith("ForImageClassification") for name in architectures)
    return Config.vit(
        # transformers leaves id2label out if there are two classes, its default.
        vocabulary=len(take(hf, "id2label", dict, {0: "", 1: ""})) if classifies else 0,
        image=sides,
        patch=take(hf, "patch_size", int, 16),
        width=take(hf, "hidden_size", int, 768),
        layers=take(hf, "num_hidden_layers", int, 12),
        heads=take(hf, "num_attention_heads", int, 12),
        hidden=take(hf, "intermediate_size", int, 3072),
        activation=activation(hf, "hidden_act", "gelu"),
        norm_eps=take(hf, "layer_norm_eps", float, 1e-12),
        dropout=take(hf, "hidden_dropout_prob", float, 0.0),
    )


VIT = Family(
    "ViT",
    vit_config,
    "vit.",
    {
        "embedding.patches": ("embeddings.patch_embeddings.projection",),
        "embedding.first": ("embeddings.cls_token",),
        "embedding.positions": ("embeddings.position_embeddings",),
        **{name: theirs for name, theirs in BERT.modules.items() if name.startswith(BLOCK)},
        BLOCK + "attention.inputs": (
            "encoder.layer.{t}.attention.attention.query",
            "encoder.layer.{t}.attention.attention.key",
            "encoder.layer.{t}.attention.attention.value",
        ),
        BLOCK + "attention_norm": ("encoder.layer.{t}.layernorm_before",),
        BLOCK + "feedforward_norm": ("encoder.layer.{t}.layernorm_after",),
        "stack.norm": ("layernorm",),
        "classes": ("classifier",),
    },
    unused=(r"pooler\..*", r"classifier\..*", r"embeddings\.mask_token", r"decoder\..*"),
)
