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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.fields import take
from limelight.layers.positions import sinusoidal
from limelight.models.config import Config
from limelight.models.scalings import scaling_from_hf


class Recipe(NamedTuple):
    """How one of our tensors is made from tensors of a file."""

    parts: tuple[str, ...]
    """plain Hugging Face names, laid one below the other"""
    transpose: bool = False
    """whether the parts are stored as (in, out), as GPT-2 does"""
    plus: float = 0.0
    """added to what is stored: Gemma's norms multiply by 1 + weight"""
    skip: int = 0
    """rows of the part before the first that is ours: RoBERTa's positions begin at the third"""

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
        shapes = [(count + self.skip, *rest) for count in counts]
        return [part[::-1] for part in shapes] if self.transpose else shapes

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Our tensor from the parts as they are stored."""
        ours = [part.t() for part in parts] if self.transpose else parts
        joined = ours[0] if len(ours) == 1 else torch.cat(tuple(ours))
        joined = joined[self.skip :]
        return joined + self.plus if self.plus else joined


Reader = Callable[[Mapping[str, Any]], Config]
"""What turns a config.json into our config."""


@dataclass(frozen=True)
class Family:
    """The names of one architecture: our module → their modules, `{t}` counting the blocks.

    Where ours is a tensor rather than a module, theirs is one too.
    """

    name: str
    config: Reader
    prefix: str
    """what stands before a name when the model was saved with a head"""
    modules: Mapping[str, tuple[str, ...]]
    transposed: frozenset[str] = frozenset()
    """our modules whose weights are stored as (in, out)"""
    plus_one: frozenset[str] = frozenset()
    """our norms whose weights are stored less 1"""
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    """our tables that begin so many rows after theirs"""
    computed: Mapping[str, Callable[[int, int], Tensor]] = field(
        default_factory=dict[str, Callable[[int, int], Tensor]]
    )
    """our tables that follow from their rows and columns, where a file does without"""
    unused: tuple[str, ...] = ()
    """patterns of tensors that we have no use for"""
    prefixes: tuple[str, ...] = ()
    """what else may stand before a name"""

    def plain(self, hf_name: str) -> str:
        """A tensor's name without prefix, in today's spelling."""
        prefixes = (self.prefix, *self.prefixes)
        prefix = next((known for known in prefixes if known and hf_name.startswith(known)), "")
        name = hf_name.removeprefix(prefix)
        if name.endswith((".gamma", ".beta")):
            name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
        return name

    def recipe(self, name: str) -> Recipe:
        """What our tensor `name` is made from.

        >>> family_of({"model_type": "llama"}).recipe("stack.blocks.3.feedforward.up.weight").parts
        ('layers.3.mlp.gate_proj.weight', 'layers.3.mlp.up_proj.weight')
        """
        # An encoder below a head of ours stands one level deeper.
        for ours in (name, name.removeprefix("encoder.")):
            module, _, kind = ours.rpartition(".")
            number = re.search(r"blocks\.(\d+)\.", module)
            block = number[1] if number else ""
            general = module.replace(f"blocks.{block}.", "blocks.{t}.") if block else module
            whole = self.modules.get(f"{general}.{kind}".lstrip("."))
            theirs = whole or [f"{part}.{kind}" for part in self.modules.get(general, ())]
            if theirs:
                break
        else:
            raise OptionError(f"the {self.name} family has no tensor for {name!r}")
        return Recipe(
            tuple(part.replace("{t}", block) for part in theirs),
            transpose=general in self.transposed and kind == "weight",
            plus=1.0 if general in self.plus_one and kind == "weight" else 0.0,
            skip=self.skipped.get(general, 0),
        )

    def is_unused(self, plain_name: str) -> bool:
        """Whether a tensor of the file may be left alone."""
        return any(re.fullmatch(pattern, plain_name) for pattern in self.unused)


_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


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


def _activation(hf: Mapping[str, Any], name: str, default: str) -> str:
    activation = take(hf, name, str, default)
    if activation not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise OptionError(f"{name} must be one of {known}, found {activation!r}")
    return _ACTIVATIONS[activation]


def _only(hf: Mapping[str, Any], field: str, expected: object) -> None:
    if hf.get(field, expected) not in (expected, None):
        raise OptionError(f"{field} must be {expected!r}, found {hf[field]!r}")


def _roberta(hf: Mapping[str, Any]) -> Config:
    """BERT, with positions that begin after those of padding."""
    _only(hf, "pad_token_id", 1)
    config = _bert({"vocab_size": 50265, "type_vocab_size": 1, "layer_norm_eps": 1e-5, **hf})
    return config.changed(context=config.context - 2)


def _electra(hf: Mapping[str, Any]) -> Config:
    width = take(hf, "hidden_size", int, 256)
    inner = take(hf, "embedding_size", int, 128)
    table = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, **hf}
    return _bert(table).changed(embedding_width=None if inner == width else inner)


def _distilbert(hf: Mapping[str, Any]) -> Config:
    return Config.bert(
        vocabulary=take(hf, "vocab_size", int, 30522),
        width=take(hf, "dim", int, 768),
        layers=take(hf, "n_layers", int, 6),
        heads=take(hf, "n_heads", int, 12),
        hidden=take(hf, "hidden_dim", int, 3072),
        context=take(hf, "max_position_embeddings", int, 512),
        segments=0,
        activation=_activation(hf, "activation", "gelu"),
        dropout=take(hf, "dropout", float, 0.1),
    )


def _qwen3(hf: Mapping[str, Any]) -> Config:
    size = take(hf, "head_dim", int, 128)
    return _llama({**hf, "head_dim": size}).changed(head_norm=True)


def _gemma(hf: Mapping[str, Any]) -> Config:
    """Gemma 1, 2 and 3: norms of 1 + weight, scaled embeddings, a gelu gate.

    Gemma 2 adds norms behind each layer, caps and windows in every second layer; Gemma 3 has norms
    on the heads in place of the caps, and another rotary base for layers with a window.
    """
    kind = str(hf["model_type"])
    shown = take(hf, "hidden_activation", str) or take(hf, "hidden_act", str, "gelu_pytorch_tanh")
    if shown not in ("gelu_pytorch_tanh", "gelu"):
        raise OptionError(f"hidden_activation must be 'gelu_pytorch_tanh', found {shown!r}")
    plain = {name: value for name, value in hf.items() if name != "hidden_act"}
    layers, size = take(hf, "num_hidden_layers", int, 26), take(hf, "head_dim", int, 256)
    kinds = take(hf, "layer_types", list, [])
    rope = take(hf, "rope_parameters", dict, {})
    nested = rope.get("full_attention")
    if isinstance(nested, dict):
        plain["rope_parameters"] = nested
    config = _llama(
        {"rope_theta": 1e6 if kind == "gemma3_text" else 1e4, **plain, "head_dim": size,
         "layer_types": [], "tie_word_embeddings": take(hf, "tie_word_embeddings", bool, True)}
    ).changed(activation="geglu_tanh", embedding="scaled")  # fmt: skip
    if kind == "gemma":
        return config
    every = take(hf, "sliding_window_pattern", int, 2 if kind == "gemma2" else 6)
    if not kinds:
        kinds = [
            "sliding_attention" if (t + 1) % every else "full_attention" for t in range(layers)
        ]
    everywhere = tuple(t for t, name in enumerate(kinds) if name == "full_attention")
    window = take(hf, "sliding_window", int, 4096)
    local = rope.get("sliding_attention")
    base = (
        take(cast("dict[str, Any]", local), "rope_theta", float)
        if isinstance(local, dict)
        else None
    )
    base = base or take(hf, "rope_local_base_freq", float, 10000.0)
    scalar = take(hf, "query_pre_attn_scalar", float, 256.0)
    mixed = len(everywhere) < layers
    return config.changed(
        order="sandwich",
        scale=scalar**-0.5,
        head_norm=kind == "gemma3_text",
        softcap=take(hf, "attn_logit_softcapping", float),
        logit_softcap=take(hf, "final_logit_softcapping", float),
        window=window - 1 if mixed else None,
        global_layers=everywhere if mixed else (),
        window_base=base if mixed and kind == "gemma3_text" else None,
    )


def _t5(hf: Mapping[str, Any]) -> Config:
    _only(hf, "relative_attention_num_buckets", 32)
    _only(hf, "relative_attention_max_distance", 128)
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
        # Written since transformers 5, which ties whatever the file says.
        logit_scale=width**-0.5 if take(hf, "scale_decoder_outputs", bool, tied) else 1.0,
        dropout=take(hf, "dropout_rate", float, 0.1),
    )


def _bart(hf: Mapping[str, Any]) -> Config:
    """BART and its kin, by what their configs say and what their code does."""
    kind = str(hf["model_type"])
    normed = kind in ("bart", "mbart", "plbart")
    scaled = take(hf, "scale_embedding", bool, kind == "plbart")
    embedding = {(0, 0): "plain", (0, 1): "scaled", (1, 0): "normed", (1, 1): "scaled_normed"}
    _only(hf, "share_encoder_decoder_embeddings", True)
    _only(hf, "tie_word_embeddings", True)
    heads, hidden = (
        _same(hf, f"encoder_{what}", f"decoder_{what}", default)
        for what, default in (("attention_heads", 16), ("ffn_dim", 4096))
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
        activation=cast("Any", _activation(hf, "activation_function", "gelu")),
        order="pre" if kind in ("mbart", "pegasus") else "post",
        embedding=cast("Any", embedding[normed, scaled]),
        target_embedding="own" if normed else "shared",
        logit_bias=True,
        dropout=take(hf, "dropout", float, 0.1),
    )


def _same(hf: Mapping[str, Any], first: str, second: str, default: int) -> int:
    """A size that source and target must share."""
    size, other = take(hf, first, int, default), take(hf, second, int, default)
    if size != other:
        raise OptionError(f"{second} must be {first} = {size}, found {other}")
    return size


def _vit(hf: Mapping[str, Any]) -> Config:
    _only(hf, "qkv_bias", True)
    _only(hf, "num_channels", 3)
    size: Any = hf.get("image_size", 224)
    sides = (size, size) if type(size) is int else tuple(size) if isinstance(size, list) else ()
    if len(sides) != 2 or not all(type(side) is int for side in sides):
        raise OptionError(f"image_size must be a whole number or two, found {size!r}")
    architectures = [str(name) for name in take(hf, "architectures", list, [])]
    tells = any(name.endswith("ForImageClassification") for name in architectures)
    return Config.vit(
        # transformers leaves out the names of classes where there are as many as by default
        vocabulary=len(take(hf, "id2label", dict, {0: "", 1: ""})) if tells else 0,
        image=sides,
        patch=take(hf, "patch_size", int, 16),
        width=take(hf, "hidden_size", int, 768),
        layers=take(hf, "num_hidden_layers", int, 12),
        heads=take(hf, "num_attention_heads", int, 12),
        hidden=take(hf, "intermediate_size", int, 3072),
        activation=_activation(hf, "hidden_act", "gelu"),
        norm_eps=take(hf, "layer_norm_eps", float, 1e-12),
        dropout=take(hf, "hidden_dropout_prob", float, 0.0),
    )


def _gemma3(hf: Mapping[str, Any]) -> Config:
    """The text part of Gemma 3 with pictures, which stands apart in its config.json."""
    _only(hf, "tie_word_embeddings", True)
    text = take(hf, "text_config", dict, {})
    _only(text, "use_bidirectional_attention", False)
    # Files leave out what is as by default in transformers.
    sizes = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 131072, "sliding_window": 4096,
    }  # fmt: skip
    return _gemma({**sizes, **text, "model_type": "gemma3_text"})


_B = "stack.blocks.{t}."

BERT = Family(
    "BERT",
    _bert,
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
        "bias": ("cls.predictions.bias",),
        "pool": ("pooler.dense",),
        "classes": ("classifier",),
    },
    unused=(r"embeddings\.position_ids", r"pooler\..*", r"cls\..*", r"classifier\..*"),
)

GPT2 = Family(
    "GPT-2",
    _gpt2,
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
    _llama,
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

_HEADS = (r"pooler\..*", r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*", r".*position_ids")

ROBERTA = replace(
    BERT, name="RoBERTa", config=_roberta, prefix="roberta.",
    skipped={"embedding.positions": 2}, unused=_HEADS,
)  # fmt: skip

ELECTRA = replace(
    BERT,
    name="ELECTRA",
    config=_electra,
    prefix="electra.",
    modules={**BERT.modules, "embedding.up": ("embeddings_project",)},
    unused=(*_HEADS, r"discriminator_predictions\..*", r"generator_.*"),
)

DISTILBERT = Family(
    "DistilBERT",
    _distilbert,
    "distilbert.",
    {
        "embedding.tokens": ("embeddings.word_embeddings",),
        "embedding.positions": ("embeddings.position_embeddings",),
        "embedding.norm": ("embeddings.LayerNorm",),
        _B + "attention.inputs": (
            "transformer.layer.{t}.attention.q_lin",
            "transformer.layer.{t}.attention.k_lin",
            "transformer.layer.{t}.attention.v_lin",
        ),
        _B + "attention.output": ("transformer.layer.{t}.attention.out_lin",),
        _B + "attention_norm": ("transformer.layer.{t}.sa_layer_norm",),
        _B + "feedforward.up": ("transformer.layer.{t}.ffn.lin1",),
        _B + "feedforward.down": ("transformer.layer.{t}.ffn.lin2",),
        _B + "feedforward_norm": ("transformer.layer.{t}.output_layer_norm",),
    },
    unused=(*_HEADS, r"vocab_.*", r"pre_classifier\..*"),
)

_HEAD_NORMS = {
    _B + "attention.query_norm": ("layers.{t}.self_attn.q_norm",),
    _B + "attention.key_norm": ("layers.{t}.self_attn.k_norm",),
}

QWEN3 = replace(
    LLAMA, name="Qwen 3", config=_qwen3, modules={**LLAMA.modules, **_HEAD_NORMS}
)  # fmt: skip

GEMMA = replace(
    LLAMA,
    name="Gemma",
    config=_gemma,
    plus_one=frozenset({_B + "attention_norm", _B + "feedforward_norm", "stack.norm"}),
)

GEMMA2 = replace(
    GEMMA,
    name="Gemma",
    modules={
        **LLAMA.modules,
        **_HEAD_NORMS,
        _B + "attention_out_norm": ("layers.{t}.post_attention_layernorm",),
        _B + "feedforward_norm": ("layers.{t}.pre_feedforward_layernorm",),
        _B + "feedforward_out_norm": ("layers.{t}.post_feedforward_layernorm",),
    },
    plus_one=GEMMA.plus_one
    | {_B + "attention_out_norm", _B + "feedforward_out_norm", *_HEAD_NORMS},
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
    _t5,
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
        # Some old files carry a bias that no version of the model reads.
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
    _bart,
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
    # Their tables of positions begin with two rows that nothing reads.
    skipped={"embedding.positions": 2, "target_embedding.positions": 2},
    # Not there in a file that was saved without a head.
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

VIT = Family(
    "ViT",
    _vit,
    "vit.",
    {
        "embedding.patches": ("embeddings.patch_embeddings.projection",),
        "embedding.first": ("embeddings.cls_token",),
        "embedding.positions": ("embeddings.position_embeddings",),
        **{name: theirs for name, theirs in BERT.modules.items() if name.startswith(_B)},
        _B + "attention.inputs": (
            "encoder.layer.{t}.attention.attention.query",
            "encoder.layer.{t}.attention.attention.key",
            "encoder.layer.{t}.attention.attention.value",
        ),
        _B + "attention_norm": ("encoder.layer.{t}.layernorm_before",),
        _B + "feedforward_norm": ("encoder.layer.{t}.layernorm_after",),
        "stack.norm": ("layernorm",),
        "classes": ("classifier",),
    },
    unused=(r"pooler\..*", r"classifier\..*", r"embeddings\.mask_token", r"decoder\..*"),
)

GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    config=_gemma3,
    prefix="language_model.model.",
    # the spelling of some versions, and of the matrix of an untied head
    prefixes=("model.language_model.", "language_model.", "model."),
    unused=(*LLAMA.unused, r"vision_tower\..*", r"multi_modal_projector\..*"),
)

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA2,
    "gemma3": GEMMA3,
    "t5": T5,
    "bart": BART,
    "mbart": BART,
    "plbart": BART,
    "marian": replace(PEGASUS, name="Marian"),
    "pegasus": PEGASUS,
    "vit": VIT,
}
"""By the `model_type` of a config.json."""


def family_of(hf: Mapping[str, Any]) -> Family:
    """The family of a config.json, by its `model_type`."""
    kind = hf.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        known = ", ".join(map(repr, FAMILIES))
        raise OptionError(f"model_type must be one of {known}, found {kind!r}")
    if family is T5 and str(hf.get("feed_forward_proj", "")).startswith("gated"):
        return T5_GATED
    return family


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Our config for a config.json of a known family.

    >>> config_from_hf({"model_type": "gpt2", "n_layer": 2}).layers
    2
    """
    return family_of(hf).config(hf)
