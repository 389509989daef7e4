"""Checkpoints in Hugging Face layout: their configs and tensor names, translated to ours.

    config = config_from_hf(json)                    # the folder's config.json
    family = family_of(json)
    for name in model.state_dict():                  # our names
        recipe = family.recipe(name)
        tensor = recipe.join([read(part) for part in recipe.parts])

Our matrices join what others store separately (Q, K, V; gate and up), so a recipe names one or
more tensors to concatenate along the rows. Names in recipes are plain: without the prefix of a
model that was saved with a head (`bert.`, `transformer.`, `model.`), which `family.plain(hf_name)`
removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from limelight.errors import OptionError
from limelight.models.config import Config
from limelight.models.loading.architectures.bart import BART, PEGASUS
from limelight.models.loading.architectures.bert import BERT, DISTILBERT, ELECTRA, ROBERTA
from limelight.models.loading.architectures.family import Family
from limelight.models.loading.architectures.gemma import GEMMA, GEMMA2, GEMMA3
from limelight.models.loading.architectures.gpt2 import GPT2
from limelight.models.loading.architectures.llama import LLAMA, QWEN3
from limelight.models.loading.architectures.t5 import T5, T5_GATED
from limelight.models.loading.architectures.vit import VIT

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
