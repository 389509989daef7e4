"""What stands beside the weights in a Hugging Face folder: the tokenizer, and how to pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from limelight.errors import FileError
from limelight.fields import take
from limelight.files import read_from
from limelight.models.embedding.pooling import Pooling
from limelight.models.loading.weights import read_json
from limelight.models.tokens import Tokens


def folder_tokens(folder: Path, config: Mapping[str, Any]) -> Tokens | None:
    """The tokenizer of `tokenizer.json`, or None where there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    end = generation.get("eos_token_id", config.get("eos_token_id"))
    begin = config.get("bos_token_id")
    template = settings.get("chat_template")
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        template = jinja.read_text(encoding="utf-8")
    return Tokens.from_file(
        path,
        begin=begin if isinstance(begin, int) else None,
        end=_whole_numbers(end),
        chat_template=template if isinstance(template, str) else None,
    )


def folder_pooling(folder: Path) -> Pooling:
    """What sentence-transformers wrote beside an encoder: pooling, cutting, normalising.

    A folder without its modules.json is pooled by the mean and not normalised, as it does too.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return Pooling()
    kind, normalise = "mean", False
    for module in _modules(path):
        what = str(module.get("type", "")).rpartition(".")[2]
        if what == "Pooling":
            kind = _pool(folder / str(module.get("path", "")) / "config.json")
        elif what == "Normalize":
            normalise = True
        elif what != "Transformer":
            raise FileError(f"{path}: module {what!r} is unknown")
    settings = folder / "sentence_bert_config.json"
    with read_from(settings):
        limit = take(_optional(settings), "max_seq_length", int)
        return Pooling("first" if kind == "cls" else "mean", normalise, limit)


def _modules(path: Path) -> list[dict[str, Any]]:
    """modules.json, alone among these files, holds a list."""
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, list) or not all(
        isinstance(module, dict) for module in cast("list[Any]", found)
    ):
        raise FileError(f"{path}: expected a list of modules")
    return cast("list[dict[str, Any]]", found)


def _pool(path: Path) -> str:
    """Which of sentence-transformers' poolings is on, in its old or its new spelling."""
    settings = read_json(path)
    on = [
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name, value in settings.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    new = settings.get("pooling_mode")
    on = [new] if isinstance(new, str) else on
    if len(on) != 1 or on[0] not in ("mean", "cls"):
        raise FileError(f"{path}: pooling {on} is unknown, expected ['mean'] or ['cls']")
    return on[0]


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _whole_numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    if isinstance(value, list):
        return tuple(item for item in cast("list[Any]", value) if isinstance(item, int))
    return ()
