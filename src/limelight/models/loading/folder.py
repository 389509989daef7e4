"""What a Hugging Face folder holds besides weights: tokenizer, pooling, pixel normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from limelight.errors import FileError, OptionError
from limelight.fields import check_names, check_value, take
from limelight.files import read_from, read_json, read_json_list, read_text
from limelight.models.embedding.pooling import Pooling
from limelight.models.tokens import Tokens
from limelight.models.vision import Normalisation


def folder_tokens(folder: Path, config: Mapping[str, Any]) -> Tokens | None:
    """The tokenizer of `tokenizer.json`, or None if there is no such file."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    end = generation.get("eos_token_id", config.get("eos_token_id"))
    # The target of an encoder–decoder starts with decoder_start_token_id.
    begin = config.get("decoder_start_token_id", config.get("bos_token_id"))
    template = settings.get("chat_template")
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        template = read_text(jinja)
    return Tokens.from_file(
        path,
        begin=next(iter(_token_ids(begin)), None),
        end=_token_ids(end),
        chat_template=template if isinstance(template, str) else None,
    )


def folder_pooling(folder: Path) -> Pooling:
    """The pooling that sentence-transformers stores beside an encoder, with limit and normalising.

    Without a modules.json it is the mean, not normalised, as in sentence-transformers.
    """
    path = folder / "modules.json"
    if not path.exists():
        return Pooling()
    kind, normalise = "mean", False
    for module in _modules(path):
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            kind = _pooling_mode(folder / str(module.get("path", "")) / "config.json")
        elif name == "Normalize":
            normalise = True
        elif name != "Transformer":
            raise FileError(
                f"{path}: module {name!r} is unknown, expected Transformer, Pooling or Normalize"
            )
    settings = folder / "sentence_bert_config.json"
    with read_from(settings):
        limit = take(_optional(settings), "max_seq_length", int)
        return Pooling("first" if kind == "cls" else "mean", normalise, limit)


def folder_normalisation(folder: Path) -> Normalisation:
    """The pixel normalisation of a folder's preprocessor_config.json."""
    path = folder / "preprocessor_config.json"
    settings = _optional(path)
    names = {"mean": "image_mean", "std": "image_std"}
    with read_from(path):
        return make_normalisation(
            {ours: settings[name] for ours, name in names.items() if settings.get(name) is not None}
        )


def make_normalisation(values: Mapping[str, Any]) -> Normalisation:
    """A normalisation from plain values: mean and std, each a list of three numbers.

    >>> make_normalisation({"mean": [0, 0, 0]}).mean
    (0.0, 0.0, 0.0)
    """
    check_names("pixels", values, Normalisation._fields)
    for name, numbers in values.items():
        check_value(name, numbers, list)
        if len(numbers) != 3 or any(type(number) not in (int, float) for number in numbers):
            raise OptionError(f"{name} must be three numbers, found {numbers!r}")
    return Normalisation(**{name: tuple(map(float, numbers)) for name, numbers in values.items()})


def _modules(path: Path) -> list[dict[str, Any]]:
    """The entries of a modules.json."""
    modules = read_json_list(path)
    if not all(isinstance(module, dict) for module in modules):
        raise FileError(f"{path}: expected a list of modules, each an object")
    return modules


def _pooling_mode(path: Path) -> str:
    """The pooling that is switched on, in the old or the new spelling of sentence-transformers."""
    settings = read_json(path)
    modes = [
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name, value in settings.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    mode = settings.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else modes
    if len(modes) != 1 or modes[0] not in ("mean", "cls"):
        raise FileError(f"{path}: pooling {modes} is unknown, expected ['mean'] or ['cls']")
    return modes[0]


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _token_ids(value: object) -> tuple[int, ...]:
    """One id or a list of them."""
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    return tuple(item for item in listed if type(item) is int)
