"""Values of a config.json that we serve, checked."""

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
    """The activation by its name with us."""
    return _ACTIVATIONS[_known(hf, name, default, list(_ACTIVATIONS))]


def gate(hf: Mapping[str, Any], name: str, default: str) -> Activation:
    """The activation of a feed-forward layer whose gate has this one."""
    gated = [theirs for theirs, ours in _ACTIVATIONS.items() if ours in _GATES]
    return cast("Activation", _GATES[_ACTIVATIONS[_known(hf, name, default, gated)]])


def _known(hf: Mapping[str, Any], name: str, default: str, known: list[str]) -> str:
    found = take(hf, name, str, default)
    if found not in known:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, known))}, found {found!r}")
    return found


def require(hf: Mapping[str, Any], field: str, expected: object) -> None:
    """Raise where a field is neither absent nor of the one value that we serve."""
    if hf.get(field, expected) not in (expected, None):
        raise OptionError(f"{field} must be {expected!r}, found {hf[field]!r}")


def same_size(hf: Mapping[str, Any], first: str, second: str, default: int) -> int:
    """A size that source and target must share."""
    size, other = take(hf, first, int, default), take(hf, second, int, default)
    if size != other:
        raise OptionError(f"{second} must be {first} = {size}, found {other}")
    return size
