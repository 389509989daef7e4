"""Checkpoints in Hugging Face layout: their configs and tensor names in our words.

    config = config_from_hf(json)                    # the folder's config.json
    family = family_of(json)
    for name in model.state_dict():                  # our names
        recipe = family.recipe(name)
        tensor = recipe.join([read(part) for part in recipe.parts])

Our matrices join what others store apart (Q, K, V; gate and up), so a recipe names one or more
tensors to be laid one below the other. Names in recipes are plain: without the prefix that says
which head the file was saved with (`bert.`, `transformer.`, `model.`); `family.plain(hf_name)`
takes it off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.fields import take
from limelight.models.config import Config
from limelight.models.scalings import scaling_from_hf


class Recipe(NamedTuple):
    """How one of our tensors is made from tensors of a file."""

    parts: tuple[str, ...]
    """plain Hugging Face names, laid one below the other"""
    transpose: bool = False
    """whether the parts are stored as (in, out), as GPT-2 does"""

    def shapes(self, shape: Sequence[int], config: Config) -> list[tuple[int, ...]]:
        """The shape that each part is stored in, for a tensor of ours of this `shape`."""
        rows, *rest = shape
        if len(self.parts) == 3:  # Q, K, V
            counts = [
                heads * config.head_size
                for heads in (config.heads, config.kv_heads, config.kv_heads)
            ]
        else:
            counts = [rows // len(self.parts)] * len(self.parts)
        shapes = [(count, *rest) for count in counts]
        return [part[::-1] for part in shapes] if self.transpose else shapes

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Our tensor from the parts as they are stored."""
        ours = [part.t() for part in parts] if self.transpose else parts
        return ours[0] if len(ours) == 1 else torch.cat(tuple(ours))


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
        vocabulary=take(hf, "vocab_size", int, 30522),
        width=take(hf, "hidden_size", int, 768),
        layers=take(hf, "num_hidden_layers", int, 12),
        heads=take(hf, "num_attention_heads", int, 12),
        hidden=take(hf, "intermediate_size", int, 3072),
        context=take(hf, "max_position_embeddings", int, 512),
        segments=take(hf, "type_vocab_size", int, 2),
        activation=_activation(hf, "hidden_act", "gelu"),
        norm_eps=take(hf, "layer_norm_eps", float, 1e-12),
        dropout=take(hf, "hidden_dropout_prob", float, 0.1),
    )


def _gpt2(hf: Mapping[str, Any]) -> Config:
    _only(hf, "scale_attn_weights", True)
    _only(hf, "scale_attn_by_inverse_layer_idx", False)
    _only(hf, "add_cross_attention", False)
    width = take(hf, "n_embd", int, 768)
    return Config.gpt2(
        vocabulary=take(hf, "vocab_size", int, 50257),
        width=width,
        layers=take(hf, "n_layer", int, 12),
        heads=take(hf, "n_head", int, 12),
        hidden=take(hf, "n_inner", int) or 4 * width,
        context=take(hf, "n_positions", int, 1024),
        activation=_activation(hf, "activation_function", "gelu_new"),
        norm_eps=take(hf, "layer_norm_epsilon", float, 1e-5),
        tied=take(hf, "tie_word_embeddings", bool, True),
        dropout=take(hf, "resid_pdrop", float, 0.1),
    )


def _llama(hf: Mapping[str, Any]) -> Config:
    _only(hf, "hidden_act", "silu")
    _only(hf, "mlp_bias", False)
    base, scaling = scaling_from_hf(hf)
    bias = "attention" if take(hf, "attention_bias", bool, False) else "none"
    heads = take(hf, "num_attention_heads", int, 32)
    return Config.llama(
        vocabulary=take(hf, "vocab_size", int, 32000),
        width=take(hf, "hidden_size", int, 4096),
        layers=take(hf, "num_hidden_layers", int, 32),
        heads=heads,
        kv_heads=take(hf, "num_key_value_heads", int) or heads,
        head_size=take(hf, "head_dim", int),
        hidden=take(hf, "intermediate_size", int, 11008),
        context=take(hf, "max_position_embeddings", int, 2048),
        rotary_base=base,
        rotary_scaling=scaling,
        window=_window(hf),
        norm_eps=take(hf, "rms_norm_eps", float, 1e-6),
        bias="inputs" if hf["model_type"] == "qwen2" else bias,
        tied=take(hf, "tie_word_embeddings", bool, False),
        dropout=take(hf, "attention_dropout", float, 0.0),
    )


def _window(hf: Mapping[str, Any]) -> int | None:
    """Their window counts the token itself; ours counts those before it."""
    kinds = {str(kind) for kind in take(hf, "layer_types", list, [])}
    if len(kinds) > 1:
        raise OptionError(f"layer_types must be alike in all layers, found {sorted(kinds)}")
    width = take(hf, "sliding_window", int)
    used = hf["model_type"] == "mistral" or take(hf, "use_sliding_window", bool, False)
    if width is None or not used or kinds == {"full_attention"}:
        return None
    return width - 1


def _activation(hf: Mapping[str, Any], field: str, default: str) -> str:
    found = take(hf, field, str, default)
    if found not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise OptionError(f"{field} must be one of {known}, found {found!r}")
    return _ACTIVATIONS[found]


def _only(hf: Mapping[str, Any], field: str, expected: object) -> None:
    if hf.get(field, expected) not in (expected, None):
        raise OptionError(f"{field} must be {expected!r}, found {hf[field]!r}")
