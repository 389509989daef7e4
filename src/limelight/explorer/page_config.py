"""The page's configuration: model names, examples, limits, colours."""

from __future__ import annotations

from typing import Any

from limelight.colours import DARK, LIGHT
from limelight.explorer.model_store import ModelStore
from limelight.explorer.schemas import MAX_CHARACTERS, MAX_TOKENS
from limelight.version import __version__

EXAMPLES = [
    {
        "name": "too tired / too wide",
        "text": "The animal didn't cross the street because it was too tired.",
        "other": "The animal didn't cross the street because it was too wide.",
        "about": "What does “it” mean? One word at the end decides.",
    },
    {
        "name": "apple phones / apple pie",
        "text": "I love apple phones",
        "other": "I love apple pie",
        "about": "The same word, a company and a fruit.",
    },
    {
        "name": "bank",
        "text": "She sat on the river bank and watched the water.",
        "other": "She went to the bank and opened an account.",
        "about": "The words around it tell which bank is meant.",
    },
    {
        "name": "agreement over distance",
        "text": "The keys that the man with the old brown coats lost are on the table.",
        "other": "The key that the men with the old brown coats lost is on the table.",
        "about": "“are” agrees with “keys”, ten words before it.",
    },
    {
        "name": "a repeated name",
        "text": "When Mary and John went to the store, John gave a drink to Mary.",
        "other": "When Mary and John went to the store, Mary gave a drink to John.",
        "about": "Some heads find the earlier mention of a name.",
    },
]


def page_config(store: ModelStore) -> dict[str, Any]:
    """The configuration as JSON values."""
    return {
        "version": __version__,
        "models": store.names,
        "recording": store.shown,
        "examples": EXAMPLES,
        "limits": {"characters": MAX_CHARACTERS, "tokens": MAX_TOKENS},
        "colours": {"light": LIGHT._asdict(), "dark": DARK._asdict()},
    }
