"""Tiny models of Hugging Face classes, with random weights and inputs that they accept.

Sizes follow from the names of config fields; where that fails, `families.toml` has an entry.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import nn

SIZES: dict[str, Any] = {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "head_dim": 8, "d_kv": 8, "n_inner": 40, "rotary_dim": 4,
    "attention_window": 4, "sliding_window": 8, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2, "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8),
    "num_mel_bins": 8, "spatial_merge_size": 1, "temporal_patch_size": 1, "num_frames": 2,
    "frames_per_clip": 2, "word_embed_proj_dim": 32,
    "max_source_positions": 50, "vision_feature_layer": -1, "index_topk": 4,
    "num_codebooks": 2, "mamba_n_groups": 1, "n_groups": 1, "window_size": 2,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "prediction_length": 4,
    "context_length": 8, "num_experts_per_tok": 2, "num_time_features": 1,
    "default_language": "en_XX",
    "attention_types": [[["global", "local"], 1]], "axial_pos_embds_dim": (8, 24),
    "axial_pos_shape": (4, 3), "coordinate_size": 6, "shape_size": 4, "num_input_channels": 1,
    "num_windows": 4,
    "vocab_size": 99, "n_shared_experts": 1, "num_groups": 1, "context_size": 8,
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2,
}  # fmt: skip
"""Small values by field name."""

RULES: list[tuple[str, int]] = [
    (r"vocab", 99),
    (r"(key_value|kv)_heads", 2),
    (r"heads$|n_head$", 4),
    (r"head_dim|head_size|kv_channels|d_head|d_kv", 8),
    (r"state_size|d_state", 8),
    (r"lora_rank", 16),
    (r"moe_intermediate|expert\w*intermediate|expert\w*hidden", 16),
    (r"intermediate|ffn|mlp_dim|d_ff|n_inner|feed_?forward|d_inner|ff_dim", 40),
    (r"layers$|n_layer$|depth$|num_blocks$", 2),
    (r"hidden_(size|dim)|d_model|n_embd|dim$|embed_dim|embedding_size|d_embed|hidden_channels", 32),
    (r"(^|_)(output|out|projection|proj|feature|latents?)_?(size|dim)$|feature_size|d_latents", 32),
    (r"positions|max_seq|position_embeddings", 64),
    (r"(image|img|crop|input)_size", 32),
    (r"patch_size", 8),
    (r"experts?$", 4),
    (r"per_tok|top_?k|moe_k$", 2),
    (r"num_quer|query_tokens|num_latents", 5),
]
"""Small sizes by patterns of field names, for fields whose default is larger."""

LISTS: list[tuple[str, list[int]]] = [
    (r"depth|layers|blocks", [1] * 8),
    (r"head", [1, 2, 2, 4, 4, 4, 4, 4]),
    (r"hidden|dims?$|channels|embed|width", [8, 16, 24, 32, 32, 32, 32, 32]),
]
"""The same for fields with one number per stage."""

BACKBONE: dict[str, Any] = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1], "layer_type": "basic",
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
"""In place of one that would be downloaded, or made by a package that is not installed."""

MULTIMODAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 4, "head_dim": None},
    {"rope_parameters": MULTIMODAL_ROPE},
    {"layer_types": ["full_attention"] * 2},
    {"stages": None},  # the default sizes of stages
    {"hidden_size": 48, "head_dim": None},
    {"hidden_size": 128, "head_dim": None, "num_key_value_heads": 4},
    {"image_size": 128},
]
"""Changes to the small sizes, tried in this order; None means the default."""

MAX_PARAMETERS = 20_000_000
"""Parameters of a model that still counts as tiny."""


def tiny(model_class: type[Any], variant: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model of this class, and inputs that it accepts."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        config = model_class.config_class(**options(model_class.config_class, variant))
        if (count := _parameters(model_class, config)) > MAX_PARAMETERS:
            raise ValueError(
                f"the tiny model has {count:,} parameters, expected at most {MAX_PARAMETERS:,}"
            )
        torch.manual_seed(0)
        model = model_class(config).eval()
        return model, inputs_for(model, config)


def by_hand(
    source_modules: list[Any], model: str, config: dict[str, Any], inputs: dict[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """The model of an entry in `families.toml`, and its inputs."""
    model_class = next(getattr(each, model) for each in source_modules if hasattr(each, model))
    torch.manual_seed(0)

    def make_input(name: str, shape: list[int] | dict[str, Any]) -> Any:
        if isinstance(shape, dict):
            return torch.tensor(shape["values"])
        if name.endswith("ids"):
            return torch.randint(30, 60, shape)
        return torch.ones(shape) if name.endswith("mask") else torch.rand(shape)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model = model_class(model_class.config_class(**config)).eval()
    return tiny_model, {name: make_input(name, shape) for name, shape in inputs.items()}


def _parameters(model_class: type[Any], config: Any) -> int:
    """How many parameters a model has, without allocating them."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in model_class(config).parameters())
    except Exception:  # a constructor that computes with values, which "meta" lacks
        return 0


@cache
def _default(config: type[Any]) -> Any:
    return config()


def options(config: type[Any], variant: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Small sizes for the fields of a config and of the configs inside it."""
    default = _default(config)
    names = {name for each in config.__mro__ for name in getattr(each, "__annotations__", {})}
    names |= set(inspect.signature(config.__init__).parameters)
    parts = getattr(config, "sub_configs", {})
    small: dict[str, Any] = {}
    stages = "stages" not in variant
    special = iter(range(3, 30))
    for name in sorted(names - parts.keys() - {"self", "kwargs", "args"}):
        value = smaller(name, _value(default, name), special, stages=stages)
        if name == "num_key_value_heads" and _value(default, "num_attention_heads") == _value(
            default, name
        ):
            value = 4  # not grouped
        value = deepcopy(variant.get(name, value))
        if value is not None:
            small[name] = value
    layers = next((small[name] for name in ("num_hidden_layers", "n_layer") if name in small), 2)
    for name in names & {"layer_types", "layers_block_type", "mlp_layer_types"} - variant.keys():
        if isinstance(layer_types := _value(default, name), list):
            distinct = list(dict.fromkeys(layer_types))
            small[name] = [*distinct, *distinct[-1:] * layers][:layers]
    for name in parts:
        part = _value(default, name)
        if name == "backbone_config" and getattr(part, "model_type", "timm").startswith("timm"):
            small[name] = BACKBONE
        elif depth < 3 and hasattr(part, "to_dict"):
            inner = options(type(part), variant, depth + 1)
            small[name] = {"model_type": part.model_type, **inner}
    return small


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a field that exists only per layer
        return None


def smaller(name: str, value: Any, special: Iterator[int], *, stages: bool) -> Any:
    """A small value for a field with this default; None to keep the default."""
    if name in SIZES:
        listed = isinstance(SIZES[name], tuple)
        if value is None or listed == isinstance(value, list | tuple):
            return type(value)(SIZES[name]) if listed and value else SIZES[name]
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        if re.search(r"token_(id|index)$|_token$", name):
            return next(special) if value > 98 else None
        size = next((size for rule, size in RULES if re.search(rule, name)), None)
        return None if size is None or value <= size else size
    if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        if re.search(r"image_size|patch_size", name):
            return type(value)(32 if "image" in name else 8 for _ in value)
        sizes = next((sizes for rule, sizes in LISTS if re.search(rule, name)), None)
        if not stages or sizes is None or len(value) > 8:
            return None
        return type(value)(map(min, value, sizes))
    return None


def inputs_for(model: Any, config: Any) -> dict[str, Any]:
    """The first inputs that the model accepts."""
    first_error: Exception | None = None
    for inputs in _inputs(model, config):
        try:
            model(**inputs)
        except Exception as error:
            first_error = first_error or error
        else:
            return inputs
    raise first_error or ValueError(f"no inputs are known for {model.main_input_name}")


def _inputs(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Inputs that a model may accept, the likeliest first."""
    name = model.main_input_name
    parameters = inspect.signature(model.forward).parameters
    ids = torch.randint(30, 60, (1, 12))
    extra: dict[str, Any] = {}
    if "decoder_input_ids" in parameters:
        extra["decoder_input_ids"] = ids[:, :4]
    for each, parameter in parameters.items():
        if parameter.default is parameter.empty and re.search(r"_(pixel_values|masks)$", each):
            extra[each] = torch.randn(next(_pixel_shapes(config)))
    if "visual_feats" in parameters:
        size = getattr(config, "visual_feat_dim", 32)
        extra |= {"visual_feats": torch.randn(1, 5, size), "visual_pos": torch.randn(1, 5, 4)}
    if "bbox" in parameters:
        extra["bbox"] = torch.randint(0, 50, (1, 12, 4)).sort(-1).values
    if name == "input_ids" or "input_ids" in parameters:
        for shape in _pixel_shapes(config):
            if "pixel_values" in parameters:
                yield {"input_ids": ids, "pixel_values": torch.randn(shape), **extra}
        yield {"input_ids": ids, **extra}
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), **extra}
        yield {"input_ids": ids}
    if name.startswith("pixel_values") or "pixel_values" in parameters:
        name = name if name in parameters else "pixel_values"
        for shape in _pixel_shapes(config):
            yield {name: torch.randn(shape), **extra}
            yield {name: torch.randn(shape)}
    if "grid_thw" in parameters:
        part = getattr(config, "vision_config", config)
        side = getattr(part, "patch_size", 8)
        for frames in (1, 2):
            yield {
                name if name in parameters else "hidden_states": torch.randn(
                    16, 3 * frames * side * side
                ),
                "grid_thw": torch.tensor([[1, 4, 4]]),
            }
    if "past_values" in parameters:
        length = getattr(config, "context_length", 8)
        past = length + max(getattr(config, "lags_sequence", None) or [0])
        future = getattr(config, "prediction_length", 4)
        yield {
            "past_values": torch.randn(1, past), "past_time_features": torch.randn(1, past, 1),
            "past_observed_mask": torch.ones(1, past), "future_values": torch.randn(1, future),
            "future_time_features": torch.randn(1, future, 1),
        }  # fmt: skip
        for channels in (1, getattr(config, "num_input_channels", 1)):
            yield {"past_values": torch.randn(1, length, channels)}
    bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 8
    length = getattr(config, "max_length", None) or 100
    shapes = [
        (1, length, bins),
        (1, bins, 100),
        (1, 100, bins),
        (1, 2000),
        (1, 1, 2000),
        (1, 12, 32),
        (1, 64),
    ]
    for sound in ("input_features", "input_values", "inputs", "past_values", "inputs_embeds"):
        if sound in parameters:
            for shape in shapes:
                yield {sound: torch.randn(shape), **extra}
                yield {sound: torch.randn(shape)}


def _pixel_shapes(config: Any) -> Iterator[tuple[int, ...]]:
    part = getattr(config, "vision_config", config)
    size = getattr(part, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(part, "num_channels", 3) or 3
    yield 1, channels, height, width
    yield 1, 2, channels, height, width
    yield 1, channels, 64, 64
    yield 2, channels, height, width
    yield 1, channels, 128, 128
