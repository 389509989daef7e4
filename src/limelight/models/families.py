"""Checkpoints in Hugging Face layout: their configs and tensor names in our words.

    config = config_from_hf(json)                    # the folder's config.json
    family = family_of(json)
    for name in model.state_dict():                  # our names
        tensor = assemble(family.recipe(name), read) # read(hf_name) gives a tensor of the file

Our matrices join what others store apart (Q, K, V; gate and up), so a recipe names one or more
tensors to be laid one below the other. Names in recipes are plain: without the prefix that says
which head the file was saved with (`bert.`, `transformer.`, `model.`); `family.plain(hf_name)`
takes it off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from limelight.models.config import Config
from limelight.models.scalings import scaling_from_hf
from limelight.shapes import OptionError, ShapeError


class Recipe(NamedTuple):
    """How one of our tensors is made from tensors of a file."""

    parts: tuple[str, ...]
    """plain Hugging Face names, laid one below the other"""
    transpose: bool = False
    """whether the parts are stored as (in, out), as GPT-2 does"""


def assemble(recipe: Recipe, read: Callable[[str], Tensor]) -> Tensor:
    """The tensor that a recipe describes; `read` gives a part by its plain name."""
    parts = [read(name) for name in recipe.parts]
    if recipe.transpose:
        parts = [part.t() for part in parts]
    if len(parts) == 1:
        return parts[0]
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        shapes = ", ".join(
            f"{name} {tuple(part.shape)}" for name, part in zip(recipe.parts, parts, strict=True)
        )
        raise ShapeError(f"tensors do not fit one below the other: {shapes}")
    return torch.cat(parts)


@dataclass(frozen=True)
class Family:
    """The names of one architecture: our module → their modules, `{t}` counting the blocks."""

    name: str
    prefix: str
    """what stands before a name when the model was saved with a head"""
    modules: Mapping[str, tuple[str, ...]]
    transposed: frozenset[str] = frozenset()
    """our modules whose weights are stored as (in, out)"""
    unused: tuple[str, ...] = ()
    """patterns of tensors that we have no use for"""

    def plain(self, hf_name: str) -> str:
        """A tensor's name without prefix, in today's spelling."""
        name = hf_name.removeprefix(self.prefix)
        if name.endswith((".gamma", ".beta")):
            name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
        return name

    def recipe(self, name: str) -> Recipe:
        """What our tensor `name` is made from.

        >>> family_of({"model_type": "llama"}).recipe("stack.blocks.3.feedforward.up.weight").parts
        ('layers.3.mlp.gate_proj.weight', 'layers.3.mlp.up_proj.weight')
        """
        module, _, kind = name.removeprefix("encoder.").rpartition(".")
        number = re.search(r"blocks\.(\d+)\.", module)
        block = number[1] if number else ""
        general = module.replace(f"blocks.{block}.", "blocks.{t}.") if block else module
        theirs = self.modules.get(general) or self.modules.get(f"{general}.{kind}".lstrip("."))
        if theirs is None:
            raise OptionError(f"the {self.name} family has no tensor for {name!r}")
        parts = tuple(f"{part}.{kind}".replace("{t}", block) for part in theirs)
        return Recipe(parts, general in self.transposed and kind == "weight")

    def is_unused(self, plain_name: str) -> bool:
        """Whether a tensor of the file may be left alone."""
        return any(re.fullmatch(pattern, plain_name) for pattern in self.unused)


_B = "stack.blocks.{t}."

BERT = Family(
    "BERT",
    "bert.",
    {
        "embedding.tokens": ("embeddings.word_embeddings",),
        "embedding.positions": ("embeddings.position_embeddings",),
        "embedding.segments": ("embeddings.token_type_embeddings",),
        "embedding.norm": ("embeddings.LayerNorm",),
        _B + "attention.inputs": (
            "encoder.layer.{t}.attention.self.query",
            "encoder.layer.{t}.attention.self.key",
            "encoder.layer.{t}.attention.self.value",
        ),
        _B + "attention.output": ("encoder.layer.{t}.attention.output.dense",),
        _B + "attention_norm": ("encoder.layer.{t}.attention.output.LayerNorm",),
        _B + "feedforward.up": ("encoder.layer.{t}.intermediate.dense",),
        _B + "feedforward.down": ("encoder.layer.{t}.output.dense",),
        _B + "feedforward_norm": ("encoder.layer.{t}.output.LayerNorm",),
        # MaskedLM and Classifier
        "transform": ("cls.predictions.transform.dense",),
        "norm": ("cls.predictions.transform.LayerNorm",),
        "bias": ("cls.predictions",),
        "pool": ("pooler.dense",),
        "classes": ("classifier",),
    },
    unused=(r"embeddings\.position_ids", r"pooler\..*", r"cls\..*", r"classifier\..*"),
)

GPT2 = Family(
    "GPT-2",
    "transformer.",
    {
        "embedding.tokens": ("wte",),
        "embedding.positions": ("wpe",),
        _B + "attention.inputs": ("h.{t}.attn.c_attn",),
        _B + "attention.output": ("h.{t}.attn.c_proj",),
        _B + "attention_norm": ("h.{t}.ln_1",),
        _B + "feedforward.up": ("h.{t}.mlp.c_fc",),
        _B + "feedforward.down": ("h.{t}.mlp.c_proj",),
        _B + "feedforward_norm": ("h.{t}.ln_2",),
        "stack.norm": ("ln_f",),
        "head": ("lm_head",),
    },
    transposed=frozenset(
        _B + name
        for name in ("attention.inputs", "attention.output", "feedforward.up", "feedforward.down")
    ),
    # Old files store the causal mask; lm_head repeats the token table where they are tied.
    unused=(r"h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight"),
)

LLAMA = Family(
    "Llama",
    "model.",
    {
        "embedding.tokens": ("embed_tokens",),
        _B + "attention.inputs": (
            "layers.{t}.self_attn.q_proj",
            "layers.{t}.self_attn.k_proj",
            "layers.{t}.self_attn.v_proj",
        ),
        _B + "attention.output": ("layers.{t}.self_attn.o_proj",),
        _B + "attention_norm": ("layers.{t}.input_layernorm",),
        _B + "feedforward.up": ("layers.{t}.mlp.gate_proj", "layers.{t}.mlp.up_proj"),
        _B + "feedforward.down": ("layers.{t}.mlp.down_proj",),
        _B + "feedforward_norm": ("layers.{t}.post_attention_layernorm",),
        "stack.norm": ("norm",),
        "head": ("lm_head",),
    },
    unused=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight"),
)

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
}
"""By the `model_type` of a config.json."""

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def family_of(hf: Mapping[str, Any]) -> Family:
    """The family of a config.json, by its `model_type`."""
    kind = hf.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        known = ", ".join(map(repr, FAMILIES))
        raise OptionError(f"model_type must be one of {known}, found {kind!r}")
    return family


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Our config for a config.json of the BERT, GPT-2 or Llama family.

    >>> config_from_hf({"model_type": "gpt2", "n_layer": 2}).layers
    2
    """
    family = family_of(hf)
    if family is BERT:
        return _bert(hf)
    return _gpt2(hf) if family is GPT2 else _llama(hf)


def _bert(hf: Mapping[str, Any]) -> Config:
    _only(hf, "position_embedding_type", "absolute")
    _only(hf, "is_decoder", False)
    return Config.bert(
        vocabulary=hf.get("vocab_size", 30522),
        width=hf.get("hidden_size", 768),
        layers=hf.get("num_hidden_layers", 12),
        heads=hf.get("num_attention_heads", 12),
        hidden=hf.get("intermediate_size", 3072),
        context=hf.get("max_position_embeddings", 512),
        segments=hf.get("type_vocab_size", 2),
        activation=_activation(hf, "hidden_act", "gelu"),
        norm_eps=hf.get("layer_norm_eps", 1e-12),
        dropout=float(hf.get("hidden_dropout_prob", 0.1)),
    )


def _gpt2(hf: Mapping[str, Any]) -> Config:
    _only(hf, "scale_attn_weights", True)
    _only(hf, "scale_attn_by_inverse_layer_idx", False)
    _only(hf, "add_cross_attention", False)
    width = hf.get("n_embd", 768)
    return Config.gpt2(
        vocabulary=hf.get("vocab_size", 50257),
        width=width,
        layers=hf.get("n_layer", 12),
        heads=hf.get("n_head", 12),
        hidden=hf.get("n_inner") or 4 * width,
        context=hf.get("n_positions", 1024),
        activation=_activation(hf, "activation_function", "gelu_new"),
        norm_eps=hf.get("layer_norm_epsilon", 1e-5),
        tied=bool(hf.get("tie_word_embeddings", True)),
        dropout=float(hf.get("resid_pdrop", 0.1)),
    )


def _llama(hf: Mapping[str, Any]) -> Config:
    _only(hf, "hidden_act", "silu")
    _only(hf, "mlp_bias", False)
    base, scaling = scaling_from_hf(hf)
    bias = "attention" if hf.get("attention_bias", False) else "none"
    heads = hf.get("num_attention_heads", 32)
    return Config.llama(
        vocabulary=hf.get("vocab_size", 32000),
        width=hf.get("hidden_size", 4096),
        layers=hf.get("num_hidden_layers", 32),
        heads=heads,
        kv_heads=hf.get("num_key_value_heads") or heads,
        head_size=hf.get("head_dim"),
        hidden=hf.get("intermediate_size", 11008),
        context=hf.get("max_position_embeddings", 2048),
        rotary_base=base,
        rotary_scaling=scaling,
        window=_window(hf),
        norm_eps=hf.get("rms_norm_eps", 1e-6),
        bias="inputs" if hf["model_type"] == "qwen2" else bias,
        tied=bool(hf.get("tie_word_embeddings", False)),
        dropout=float(hf.get("attention_dropout") or 0.0),
    )


def _window(hf: Mapping[str, Any]) -> int | None:
    """Their window counts the token itself; ours counts those before it."""
    kinds = set(cast("list[str]", hf.get("layer_types") or []))
    if len(kinds) > 1:
        raise OptionError(f"layer_types must be alike in all layers, found {sorted(kinds)}")
    width = hf.get("sliding_window")
    used = hf["model_type"] == "mistral" or hf.get("use_sliding_window", False)
    if width is None or not used or kinds == {"full_attention"}:
        return None
    return int(width) - 1


def _activation(hf: Mapping[str, Any], field: str, default: str) -> str:
    found = hf.get(field, default)
    if found not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise OptionError(f"{field} must be one of {known}, found {found!r}")
    return _ACTIVATIONS[found]


def _only(hf: Mapping[str, Any], field: str, expected: object) -> None:
    if hf.get(field, expected) not in (expected, None):
        raise OptionError(f"{field} must be {expected!r}, found {hf[field]!r}")
