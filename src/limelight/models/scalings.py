"""The rotary part of a Hugging Face config.json, old and new spelling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from limelight.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
)
from limelight.shapes import OptionError


def scaling_from_hf(hf: Mapping[str, Any]) -> tuple[float, Scaling | None]:
    """The base of the angles and the rule that stretches them.

    >>> scaling_from_hf({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    (500000.0, LinearScaling(factor=2.0))
    """
    found = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    rope = cast("dict[str, Any]", found)
    base = float(rope.get("rope_theta") or hf.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    context = int(hf.get("max_position_embeddings", 2048))
    trained = int(rope.get("original_max_position_embeddings") or context)
    try:
        return base, _make(kind, rope, context, trained)
    except KeyError as error:
        raise OptionError(f"rotary scaling {kind!r} needs {error}, found {sorted(rope)}") from error


def _make(kind: str, rope: Mapping[str, Any], context: int, trained: int) -> Scaling:
    if kind == "linear":
        return LinearScaling(float(rope["factor"]))
    if kind == "dynamic":
        return DynamicScaling(float(rope["factor"]), trained=context)
    if kind == "yarn":
        factor = float(rope.get("factor") or context / trained)
        return YarnScaling(
            factor,
            trained=trained,
            fast=float(rope.get("beta_fast") or 32),
            slow=float(rope.get("beta_slow") or 1),
            attention=_amplitude(rope, factor),
            whole=bool(rope.get("truncate", True)),
        )
    if kind == "llama3":
        return Llama3Scaling(
            float(rope["factor"]),
            trained=trained,
            low=float(rope["low_freq_factor"]),
            high=float(rope["high_freq_factor"]),
        )
    kinds = "'default', 'linear', 'dynamic', 'yarn' or 'llama3'"
    raise OptionError(f"rope_type must be {kinds}, found {kind!r}")


def _amplitude(rope: Mapping[str, Any], factor: float) -> float | None:
    """YaRN's factor on cos and sin where the file gives one, itself or as a ratio of two."""
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    if not over or not under or factor <= 1:
        return None
    growth = 0.1 * math.log(factor)
    return (growth * float(over) + 1) / (growth * float(under) + 1)
