"""BERT and its relatives: RoBERTa, ELECTRA, DistilBERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from limelight.fields import take
from limelight.models.config import Config
from limelight.models.loading.architectures.config_fields import activation, require
from limelight.models.loading.architectures.family import BLOCK, Family


def bert_config(hf: Mapping[str, Any]) -> Config:
    """BERT."""
    require(hf, "position_embedding_type", "absolute")
    require(hf, "is_decoder", False)
    return Config.bert(
        vocabulary=take(hf, "vocab_size", int, 30522),
        width=take(hf, "hidden_size", int, 768),
        layers=take(hf, "num_hidden_layers", int, 12),
        heads=take(hf, "num_attention_heads", int, 12),
        hidden=take(hf, "intermediate_size", int, 3072),
        context=take(hf, "max_position_embeddings", int, 512),
        segments=take(hf, "type_vocab_size", int, 2),
        activation=activation(hf, "hidden_act", "gelu"),
        norm_eps=take(hf, "layer_norm_eps", float, 1e-12),
        dropout=take(hf, "hidden_dropout_prob", float, 0.1),
    )


def roberta_config(hf: Mapping[str, Any]) -> Config:
    """BERT with position ids that start after the padding id."""
    require(hf, "pad_token_id", 1)
    config = bert_config({"vocab_size": 50265, "type_vocab_size": 1, "layer_norm_eps": 1e-5, **hf})
    return config.changed(context=config.context - 2)


def electra_config(hf: Mapping[str, Any]) -> Config:
    """BERT, whose token vectors are narrower than the model in the smaller sizes."""
    width = take(hf, "hidden_size", int, 256)
    inner = take(hf, "embedding_size", int, 128)
    table = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, **hf}
    return bert_config(table).changed(embedding_width=None if inner == width else inner)


def distilbert_config(hf: Mapping[str, Any]) -> Config:
    """BERT without segments, with field names of its own."""
    return Config.bert(
        vocabulary=take(hf, "vocab_size", int, 30522),
        width=take(hf, "dim", int, 768),
        layers=take(hf, "n_layers", int, 6),
        heads=take(hf, "n_heads", int, 12),
        hidden=take(hf, "hidden_dim", int, 3072),
        context=take(hf, "max_position_embeddings", int, 512),
        segments=0,
        activation=activation(hf, "activation", "gelu"),
        dropout=take(hf, "dropout", float, 0.1),
    )


BERT = Family(
    "BERT",
    bert_config,
    "bert.",
    {
        "embedding.tokens": ("embeddings.word_embeddings",),
        "embedding.positions": ("embeddings.position_embeddings",),
        "embedding.segments": ("embeddings.token_type_embeddings",),
        "embedding.norm": ("embeddings.LayerNorm",),
        BLOCK + "attention.inputs": (
            "encoder.layer.{t}.attention.self.query",
            "encoder.layer.{t}.attention.self.key",
            "encoder.layer.{t}.attention.self.value",
        ),
        BLOCK + "attention.output": ("encoder.layer.{t}.attention.output.dense",),
        BLOCK + "attention_norm": ("encoder.layer.{t}.attention.output.LayerNorm",),
        BLOCK + "feedforward.up": ("encoder.layer.{t}.intermediate.dense",),
        BLOCK + "feedforward.down": ("encoder.layer.{t}.output.dense",),
        BLOCK + "feedforward_norm": ("encoder.layer.{t}.output.LayerNorm",),
        # MaskedLM and Classifier
        "transform": ("cls.predictions.transform.dense",),
        "norm": ("cls.predictions.transform.LayerNorm",),
        "bias": ("cls.predictions.bias",),
        "pool": ("pooler.dense",),
        "classes": ("classifier",),
    },
    unused=(r"embeddings\.position_ids", r"pooler\..*", r"cls\..*", r"classifier\..*"),
)


_HEADS = (r"pooler\..*", r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*", r".*position_ids")


ROBERTA = replace(
    BERT, name="RoBERTa", config=roberta_config, prefix="roberta.",
    skipped={"embedding.positions": 2}, unused=_HEADS,
)  # fmt: skip


ELECTRA = replace(
    BERT,
    name="ELECTRA",
    config=electra_config,
    prefix="electra.",
    modules={**BERT.modules, "embedding.up": ("embeddings_project",)},
    unused=(*_HEADS, r"discriminator_predictions\..*", r"generator_.*"),
)


DISTILBERT = Family(
    "DistilBERT",
    distilbert_config,
    "distilbert.",
    {
        "embedding.tokens": ("embeddings.word_embeddings",),
        "embedding.positions": ("embeddings.position_embeddings",),
        "embedding.norm": ("embeddings.LayerNorm",),
        BLOCK + "attention.inputs": (
            "transformer.layer.{t}.attention.q_lin",
            "transformer.layer.{t}.attention.k_lin",
            "transformer.layer.{t}.attention.v_lin",
        ),
        BLOCK + "attention.output": ("transformer.layer.{t}.attention.out_lin",),
        BLOCK + "attention_norm": ("transformer.layer.{t}.sa_layer_norm",),
        BLOCK + "feedforward.up": ("transformer.layer.{t}.ffn.lin1",),
        BLOCK + "feedforward.down": ("transformer.layer.{t}.ffn.lin2",),
        BLOCK + "feedforward_norm": ("transformer.layer.{t}.output_layer_norm",),
    },
    unused=(*_HEADS, r"vocab_.*", r"pre_classifier\..*"),
)
