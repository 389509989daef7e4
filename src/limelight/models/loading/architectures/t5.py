"""T5, plain and gated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from limelight.errors import OptionError
from limelight.fields import take
from limelight.models.config import Config
from limelight.models.loading.architectures.config_fields import require
from limelight.models.loading.architectures.family import Family


def t5_config(hf: Mapping[str, Any]) -> Config:
    """T5, plain or gated by its feed_forward_proj."""
    require(hf, "relative_attention_num_buckets", 32)
    require(hf, "relative_attention_max_distance", 128)
    act = take(hf, "feed_forward_proj", str, "relu")
    known = {"relu": "relu", "gated-gelu": "geglu_tanh", "gelu": "gelu", "gated-silu": "swiglu"}
    if act not in known:
        names = ", ".join(map(repr, known))
        raise OptionError(f"feed_forward_proj must be one of {names}, found {act!r}")
    width, layers = take(hf, "d_model", int, 512), take(hf, "num_layers", int, 6)
    tied = take(hf, "tie_word_embeddings", bool, True)
    return Config(
        kind="transformer",
        vocabulary=take(hf, "vocab_size", int, 32128),
        width=width,
        layers=layers,
        decoder_layers=take(hf, "num_decoder_layers", int, layers),
        heads=take(hf, "num_heads", int, 8),
        head_size=take(hf, "d_kv", int, 64),
        hidden=take(hf, "d_ff", int, 2048),
        context=take(hf, "n_positions", int, 512),
        positions="relative",
        activation=cast("Any", known[act]),
        norm="rms",
        norm_eps=take(hf, "layer_norm_epsilon", float, 1e-6),
        bias="none",
        scale=1.0,
        tied=tied,
        # In files since transformers 5, which ties the head whatever tie_word_embeddings is.
        logit_scale=width**-0.5 if take(hf, "scale_decoder_outputs", bool, tied) else 1.0,
        dropout=take(hf, "dropout_rate", float, 0.1),
    )


def _t5_stack(ours: str, theirs: str, last: int) -> dict[str, tuple[str, ...]]:
    block, layer = f"{ours}.blocks.{{t}}.", f"{theirs}.block.{{t}}.layer."
    return {
        block + "attention.inputs": tuple(f"{layer}0.SelfAttention.{part}" for part in "qkv"),
        block + "attention.output": (f"{layer}0.SelfAttention.o",),
        block + "attention_norm": (f"{layer}0.layer_norm",),
        block + "cross.inputs": tuple(f"{layer}1.EncDecAttention.{part}" for part in "qkv"),
        block + "cross.output": (f"{layer}1.EncDecAttention.o",),
        block + "cross_norm": (f"{layer}1.layer_norm",),
        block + "feedforward.up": (f"{layer}{last}.DenseReluDense.wi",),
        block + "feedforward.down": (f"{layer}{last}.DenseReluDense.wo",),
        block + "feedforward_norm": (f"{layer}{last}.layer_norm",),
        f"{ours}.norm": (f"{theirs}.final_layer_norm",),
        f"{ours}.relative.table": (
            f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
    }


T5 = Family(
    "T5",
    t5_config,
    "",
    {
        "embedding.tokens": ("shared",),
        **_t5_stack("encoder", "encoder", 1),
        **_t5_stack("decoder", "decoder", 2),
        "head": ("lm_head",),
    },
    unused=(
        r"(en|de)coder\.embed_tokens\.weight",
        r"lm_head\.weight",
        # Some old files hold a bias that no version of the model reads.
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
)


T5_GATED = replace(
    T5,
    modules={
        **T5.modules,
        **{
            name: (f"{theirs[0]}_0", f"{theirs[0]}_1")
            for name, theirs in T5.modules.items()
            if name.endswith("feedforward.up")
        },
    },
)
