"""The rotary settings of a Hugging Face config.json, in the old and the new spelling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from limelight.errors import OptionError
from limelight.fields import take
from limelight.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
)


def scaling_from_hf(hf: Mapping[str, Any]) -> tuple[float, Scaling | None]:
    """The base of the rotary angles and how they are scaled.

    >>> scaling_from_hf({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    (500000.0, LinearScaling(factor=2.0))
    """
    rope = take(hf, "rope_parameters", dict) or take(hf, "rope_scaling", dict, {})
    base = take(rope, "rope_theta", float) or take(hf, "rope_theta", float) or 10000.0
    kind = take(rope, "rope_type", str) or take(rope, "type", str, "default")
    if kind == "default":
        return base, None
    context = take(hf, "max_position_embeddings", int, 2048)
    trained = take(rope, "original_max_position_embeddings", int) or context
    return base, _make_scaling(kind, rope, context, trained)


def _make_scaling(kind: str, rope: Mapping[str, Any], context: int, trained: int) -> Scaling:
    def need(name: str) -> float:
        value = take(rope, name, float)
        if value is None:
            raise OptionError(f"rotary scaling {kind!r} needs {name!r}, found {sorted(rope)}")
        return value

    if kind == "linear":
        return LinearScaling(need("factor"))
    if kind == "dynamic":
        return DynamicScaling(need("factor"), trained=context)
    if kind == "yarn":
        factor = take(rope, "factor", float) or context / trained
        return YarnScaling(
            factor,
            trained=trained,
            fast=take(rope, "beta_fast", float) or 32.0,
            slow=take(rope, "beta_slow", float) or 1.0,
            attention=_amplitude(rope, factor),
            whole=take(rope, "truncate", bool, True),
        )
    if kind == "llama3":
        return Llama3Scaling(
            need("factor"),
            trained=trained,
            low=need("low_freq_factor"),
            high=need("high_freq_factor"),
        )
    kinds = "'default', 'linear', 'dynamic', 'yarn' or 'llama3'"
    raise OptionError(f"rope_type must be {kinds}, found {kind!r}")


def _amplitude(rope: Mapping[str, Any], factor: float) -> float | None:
    """YaRN's factor on cos and sin, if the file gives it or the two numbers it follows from."""
    amplitude = take(rope, "attention_factor", float)
    if amplitude is not None:
        return amplitude
    mscale, all_dim = take(rope, "mscale", float), take(rope, "mscale_all_dim", float)
    if not mscale or not all_dim or factor <= 1:
        return None
    growth = 0.1 * math.log(factor)
    return (growth * mscale + 1) / (growth * all_dim + 1)
