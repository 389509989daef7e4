"""Fields of a config.json, checked to be ones that our models support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from limelight.errors import OptionError
from limelight.fields import take
from limelight.layers.feedforward import Activation

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_GATES = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
"""By the activation of the gate."""


def activation(hf: Mapping[str, Any], name: str, default: str) -> str:
    """Our name of the activation in this field."""
    return _ACTIVATIONS[_known(hf, name, default, list(_ACTIVATIONS))]


def gate(hf: Mapping[str, Any], name: str, default: str) -> Activation:
    """Our name of the gated activation whose gate this field names."""
    gated = [theirs for theirs, ours in _ACTIVATIONS.items() if ours in _GATES]
    return cast("Activation", _GATES[_ACTIVATIONS[_known(hf, name, default, gated)]])


def _known(hf: Mapping[str, Any], name: str, default: str, known: list[str]) -> str:
    value = take(hf, name, str, default)
    if value not in known:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, known))}, found {value!r}")
    return value


def require(hf: Mapping[str, Any], field: str, expected: object) -> None:
    """Raise unless a field is absent, null, or the one value that we support."""
    if hf.get(field, expected) not in (expected, None):
        raise OptionError(f"{field} must be {expected!r}, found {hf[field]!r}")


def same_size(hf: Mapping[str, Any], first: str, second: str, default: int) -> int:
    """A size that encoder and decoder must share."""
    size, other = take(hf, first, int, default), take(hf, second, int, default)
    if size != other:
        raise OptionError(f"{second} must be {first} = {size}, found {other}")
    return size
