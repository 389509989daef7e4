"""A model's architecture and sizes, from its files alone: no weights are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from limelight.fields import take
from limelight.files import is_file, read_from, read_json
from limelight.models.config import Config
from limelight.models.loading.families import config_from_hf, family_of
from limelight.models.loading.gguf import Gguf
from limelight.models.loading.pretrained import OWN, empty_model, locate
from limelight.models.loading.weights import Safetensors, Weights, check_sizes, refuse_pickle

_HUGGING_FACE: dict[str, tuple[str, ...]] = {
    "vocabulary": ("vocab_size",),
    "width": ("hidden_size", "n_embd", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim", "d_kv"),
    "hidden": ("intermediate_size", "n_inner", "hidden_dim", "d_ff", "encoder_ffn_dim"),
    "context": ("max_position_embeddings", "n_positions"),
    "segments": ("type_vocab_size",),
    "activation": (
        "hidden_activation", "hidden_act", "activation_function", "activation", "feed_forward_proj",
    ),
    "norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"),
    "rotary_base": ("rope_theta", "rope_parameters"),
    "rotary_scaling": ("rope_scaling", "rope_parameters"),
    "window": ("sliding_window",),
    "global_layers": ("layer_types", "sliding_window_pattern"),
    "window_base": ("rope_local_base_freq", "rope_parameters"),
    "scale": ("query_pre_attn_scalar",),
    "softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "embedding_width": ("embedding_size",),
    "embedding": ("scale_embedding",),
    "image": ("image_size",),
    "patch": ("patch_size",),
    "tied": ("tie_word_embeddings",),
    "dropout": (
        "hidden_dropout_prob", "resid_pdrop", "dropout", "attention_dropout", "dropout_rate",
    ),
}  # fmt: skip
"""Our fields and their names in config.json, which depend on the family."""

_GGUF: dict[str, str] = {
    "width": "embedding_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_size": "attention.key_length",
    "hidden": "feed_forward_length",
    "context": "context_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rotary_base": "rope.freq_base",
    "rotary_scaling": "rope.scaling.type",
    "window": "attention.sliding_window",
}
"""Our fields and their names in the metadata of a GGUF file, without the architecture's prefix."""

_ALWAYS = ("positions", "activation", "norm", "order")
"""Fields that are listed even at their defaults."""

_DERIVED = {"kv_heads": "heads", "head_size": "width / heads", "hidden": "4 · width"}


@dataclass(frozen=True)
class Description:
    """A model as its files describe it."""

    name: str
    path: str
    family: str
    """the architecture that it is loaded as"""
    model_type: str
    """its name in the files: a Mistral model has the architecture of Llama"""
    config: Config
    sources: Mapping[str, str]
    """where each field of the config comes from"""
    parameters: int
    tensors: int
    formats: Mapping[str, int]
    """how many tensors are stored in each type"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        config = self.config
        values = {field.name: getattr(config, field.name) for field in fields(config)}
        plain = {**values, **config.as_dict()}
        return {
            "name": self.name,
            "path": self.path,
            "family": self.family,
            "model_type": self.model_type,
            "kind": config.kind,
            "parameters": self.parameters,
            "tensors": self.tensors,
            "formats": dict(self.formats),
            "config": {
                name: {"value": plain[name], "source": source}
                for name, source in self.sources.items()
            },
        }


def describe(name_or_path: str | Path) -> Description:
    """What `load` would load: architecture, sizes, parameters, and where each number comes from.

    >>> description = describe("minilm")
    >>> description.family, description.config.heads, description.sources["heads"]
    ('BERT', 12, 'config.json: num_attention_heads')
    """
    path = locate(name_or_path)
    if is_file(path):
        refuse_pickle(path)
        gguf = Gguf(path)
        hf = gguf.config()
        with read_from(path):
            family, config = family_of(hf).name, config_from_hf(hf)
        model_type = gguf.architecture
        weights, sources = gguf, _gguf_sources(config, gguf, family)
    elif is_file(path / OWN):
        stored = take(read_json(path / OWN), "config", dict, {})
        with read_from(path / OWN):
            family, config = "Limelight", Config.from_dict(stored)
        model_type = "limelight"
        weights = Safetensors.in_folder(path)
        sources = _sources(config, {name: f"{OWN}: {name}" for name in stored}, default="Config")
    else:
        hf = read_json(path / "config.json")
        with read_from(path / "config.json"):
            family, config = family_of(hf).name, config_from_hf(hf)
        model_type = str(hf.get("model_type"))
        weights = Safetensors.in_folder(path)
        sources = _sources(config, _hugging_face_sources(hf), default=f"the {family} family")
    check_sizes(config, weights)
    return Description(
        name=str(name_or_path),
        path=str(path),
        family=family,
        model_type=model_type,
        config=config,
        sources=sources,
        parameters=sum(p.numel() for p in empty_model(config).parameters()),
        tensors=len(list(weights.names())),
        formats=_formats(weights),
    )


def _formats(weights: Weights) -> dict[str, int]:
    return dict(Counter(weights.stored_type(name) for name in weights.names()).most_common())


def _hugging_face_sources(hf: Mapping[str, Any]) -> dict[str, str]:
    text = hf.get("text_config")
    if isinstance(text, dict):  # a multimodal model, of which the text model is loaded
        nested = _hugging_face_sources(cast("dict[str, Any]", text))
        return {name: source.replace(": ", ": text_config.") for name, source in nested.items()}
    return {
        name: f"config.json: {key}"
        for name, keys in _HUGGING_FACE.items()
        for key in reversed(keys)
        if hf.get(key) is not None
    }


def _gguf_sources(config: Config, file: Gguf, family: str) -> dict[str, str]:
    named = {
        name: f"{file.architecture}.{key}"
        for name, key in _GGUF.items()
        if file.architecture_value(key) is not None
    }
    named["vocabulary"] = "the rows of token_embd.weight"
    named["tied"] = "whether there is an output.weight"
    return _sources(config, named, default=f"the {family} family")


def _sources(config: Config, named: Mapping[str, str], *, default: str) -> dict[str, str]:
    """Where each field comes from: those in a file, those derived, and others not at a default."""
    sources: dict[str, str] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in named:
            sources[field.name] = named[field.name]
        elif field.name in _DERIVED:
            sources[field.name] = _DERIVED[field.name]
        elif field.name in _ALWAYS or value not in (field.default, None):
            sources[field.name] = default
    return {
        name: source
        for name, source in sources.items()
        # A file may hold fields that this model does not use: null, or those of another family.
        if getattr(config, name) not in (None, ())
    }
