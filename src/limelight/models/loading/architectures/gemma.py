"""Gemma 1, 2 and 3: Llama with norms that multiply by 1 + weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from limelight.errors import OptionError
from limelight.fields import take
from limelight.models.config import Config
from limelight.models.loading.architectures.config_fields import require
from limelight.models.loading.architectures.family import BLOCK
from limelight.models.loading.architectures.llama import HEAD_NORMS, LLAMA, llama_config, windowed


def gemma_config(hf: Mapping[str, Any]) -> Config:
    """Gemma 1, 2 and 3: norms of 1 + weight, scaled embeddings, a gelu gate.

    Gemma 2 adds norms after each sublayer, softcaps, and windows in every second layer; Gemma 3 has
    norms on the heads in place of the softcaps, and another rotary base for layers with a window.
    """
    kind = str(hf["model_type"])
    tanh = "gelu_pytorch_tanh"
    if kind == "gemma":
        require(hf, "hidden_activation", tanh)
        act = take(hf, "hidden_act", str, tanh)
        act = tanh if act == "gelu" else act  # the first files say gelu and mean its approximation
    else:
        act = take(hf, "hidden_activation", str, tanh)
    layers, size = take(hf, "num_hidden_layers", int, 26), take(hf, "head_dim", int, 256)
    kinds = take(hf, "layer_types", list, [])
    rope = take(hf, "rope_parameters", dict, {})
    nested = rope.get("full_attention")
    if isinstance(nested, dict) and "rope_type" in rope:
        raise OptionError("rope_parameters must be for all layers or by layer type, found both")
    config = llama_config(
        {"rope_theta": 1e6 if kind == "gemma3_text" else 1e4, **hf, "hidden_act": act,
         "head_dim": size, "rope_parameters": nested if isinstance(nested, dict) else rope,
         "tie_word_embeddings": take(hf, "tie_word_embeddings", bool, True)}
    ).changed(embedding="scaled")  # fmt: skip
    if kind == "gemma":
        return config
    every = take(hf, "sliding_window_pattern", int, 2 if kind == "gemma2" else 6)
    if not kinds:
        kinds = [
            "sliding_attention" if (t + 1) % every else "full_attention" for t in range(layers)
        ]
    sliding = [t for t, name in enumerate(kinds) if name != "full_attention"]
    base = None
    if kind == "gemma3_text" and sliding:
        local: Any = rope.get("sliding_attention")
        local = cast("dict[str, Any]", local) if isinstance(local, dict) else {}
        require(local, "rope_type", "default")
        base = take(local, "rope_theta", float) or take(hf, "rope_local_base_freq", float, 10000.0)
    scalar = take(hf, "query_pre_attn_scalar", float, 256.0)
    return config.changed(
        order="sandwich",
        scale=scalar**-0.5,
        head_norm=kind == "gemma3_text",
        # Gemma 3 has the field and ignores it.
        softcap=take(hf, "attn_logit_softcapping", float) if kind == "gemma2" else None,
        logit_softcap=take(hf, "final_logit_softcapping", float),
        window_base=base,
        **windowed(take(hf, "sliding_window", int, 4096), sliding, layers),
    )


def gemma3_config(hf: Mapping[str, Any]) -> Config:
    """The text model of a multimodal Gemma 3, which has a table of its own in config.json."""
    require(hf, "tie_word_embeddings", True)
    text = take(hf, "text_config", dict, {})
    # The defaults of transformers, which files leave out.
    sizes = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 131072, "sliding_window": 4096,
    }  # fmt: skip
    return gemma_config({**sizes, **text, "model_type": "gemma3_text"})


GEMMA = replace(
    LLAMA,
    name="Gemma",
    config=gemma_config,
    plus_one=frozenset({BLOCK + "attention_norm", BLOCK + "feedforward_norm", "stack.norm"}),
)


GEMMA2 = replace(
    GEMMA,
    name="Gemma",
    modules={
        **LLAMA.modules,
        **HEAD_NORMS,
        BLOCK + "attention_out_norm": ("layers.{t}.post_attention_layernorm",),
        BLOCK + "feedforward_norm": ("layers.{t}.pre_feedforward_layernorm",),
        BLOCK + "feedforward_out_norm": ("layers.{t}.post_feedforward_layernorm",),
    },
    plus_one=GEMMA.plus_one
    | {BLOCK + "attention_out_norm", BLOCK + "feedforward_out_norm", *HEAD_NORMS},
)


GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    config=gemma3_config,
    prefix="language_model.model.",
    # The prefixes of some versions, and of the matrix of an untied head.
    prefixes=("model.language_model.", "language_model.", "model."),
    unused=(*LLAMA.unused, r"vision_tower\..*", r"multi_modal_projector\..*"),
)
