"""What the heads of the shipped models do, measured in advance for views to label them by.

`dev/head_labels.py` measures them by `heads` and writes `head_labels.json`; tests keep it current.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from limelight.fields import checked
from limelight.files import read_json

FILE = Path(__file__).with_suffix(".json")


@checked
def head_labels(model: str) -> dict[str, list[str]]:
    """The roles of a shipped model's heads: `{"layer.head": [role, ...]}`, the clearest first.

    The same as `heads(model).labels()`, without running the model. Heads without a role are left
    out; a model that was not measured has no labels.

    Args:
        model: the name of the model, as in a recording: "minilm" or "smollm2".

    >>> head_labels("minilm")["0.2"][0]
    'previous'
    >>> head_labels("another model")
    {}
    """
    return {head: list(roles) for head, roles in _measured().get(model, {}).items()}


@cache
def _measured() -> dict[str, dict[str, list[str]]]:
    return read_json(FILE)
