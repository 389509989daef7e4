"""Worked examples from TOML, every field checked with an error that names its key."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from limelight.errors import FileError, OptionError
from limelight.files import check_path, is_file, read_from, read_toml
from limelight.insight.worked.example import (
    HEAD_STEPS,
    LAYER_STEPS,
    HeadMatrices,
    Layer,
    Printed,
    Worked,
)
from limelight.ops.masks.band import causal
from limelight.ops.masks.mask import Mask

EXAMPLES = Path(__file__).parent.parent / "examples"

_MATRICES = ("w_query", "w_key", "w_value")
_HEAD_KEYS = (*_MATRICES, "printed")
_LAYER_KEYS = (*_MATRICES, "heads", "w_output", "mask", "scale", "residual", "printed")
_KEYS = ("title", "tokens", "x", "memory_tokens", "memory", "layers", *_LAYER_KEYS)
_MOST = {"tokens": 64, "heads": 16, "layers": 8, "columns": 64}
"""Larger examples cannot be followed by hand."""
_GREATEST = 1e6
"""The largest absolute value of a number."""
_NUMBER = re.compile(r"[-−+]?\d{1,15}(?:\.(\d{0,15}))?")
_BLANKS = {"_", "?", "…", "..."}


def worked(name_or_path: str | Path = "apple-phones") -> Worked:
    """A worked example by its name (`known_examples`), or from a TOML file of your own.

        tokens = ["I", "love", "you"]
        x = [[1.0, 0.5], [0.9, 1.1], [0.1, 0.2]]
        w_query = [[1, 0], [0, 1]]      # or a table [[heads]] for each head
        w_key = [[0, 1], [1, 0]]
        w_value = [[1, 0], [0, 1]]
        w_output = [[1, 0], [0, 1]]     # optional, as all below
        mask = "causal"                 # or rows of 0 and 1
        scale = false                   # scores as they are; or a number; true: 1/√d
        residual = true                 # the input is added to the output
        memory_tokens, memory           # cross-attention: what is looked at
        [printed]                       # the printed numbers: rows in quotes
        query = ["1.0 0.5", "0.9 1.1", "0.1 0.2"]

    Several layers are tables `[[layers]]`, each with keys from `w_query` on.

    >>> worked("causal").tokens
    ('The', 'cat', 'sat', 'down')
    """
    path = _path(name_or_path)
    with read_from(path):
        return _example(_read(path), path.stem)


def known_examples() -> list[str]:
    """The names of the examples that ship with Limelight."""
    return sorted(path.stem for path in EXAMPLES.glob("*.toml"))


def _path(name_or_path: str | Path) -> Path:
    if str(name_or_path) in known_examples():
        return EXAMPLES / f"{name_or_path}.toml"
    return check_path(name_or_path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except (FileError, ValueError) as error:  # a path with a null byte is a ValueError
        if is_file(path):
            raise
        known = ", ".join(known_examples())
        raise FileError(f"no worked example: {error}; known: {known}") from None


def _example(data: dict[str, Any], name: str) -> Worked:
    _check_keys("", data, _KEYS)
    title = data.get("title", name)
    if not isinstance(title, str):
        raise OptionError(f"title must be a text, found {_short(title)}")
    tokens = _words("tokens", data.get("tokens"))
    x = _matrix("x", data.get("x"), rows=(len(tokens), "one for each token"))
    memory_tokens, memory = (), None
    if "memory" in data or "memory_tokens" in data:
        memory_tokens = _words("memory_tokens", data.get("memory_tokens"))
        memory = _matrix(
            "memory",
            data.get("memory"),
            rows=(len(memory_tokens), "one for each of memory_tokens"),
            columns=(x.shape[1], "as in x"),
        )
    size = len(tokens), len(memory_tokens) if memory is not None else len(tokens)
    layers: list[Layer] = []
    width = x.shape[1]
    for where, table in _tables("layers", data, _LAYER_KEYS):
        if layers and memory is not None and memory.shape[1] != width:
            raise OptionError(
                f"memory has {memory.shape[1]} columns, expected {width}, as in the input of "
                f"{where[:-1]}"
            )
        layers.append(_layer(where, table, width, size))
        width = _output_width(layers[-1])
    return Worked(title, tokens, x, tuple(layers), memory_tokens, memory)


def _layer(where: str, data: dict[str, Any], width: int, size: tuple[int, int]) -> Layer:
    """A layer whose input has `width` columns; `size` is how many queries and keys there are."""
    heads = _heads(where, data, width)
    w_output = None
    if "w_output" in data:
        w_output = _matrix(
            f"{where}w_output",
            data["w_output"],
            rows=(len(heads) * heads[0].w_value.shape[1], "one for each column of the heads"),
        )
    mask, mask_name = _mask(f"{where}mask", data.get("mask"), size)
    layer = Layer(
        heads,
        w_output,
        mask,
        mask_name,
        _scale(f"{where}scale", data.get("scale")),
        _flag(f"{where}residual", data.get("residual", False)),
    )
    if layer.residual and _output_width(layer) != width:
        raise OptionError(
            f"{where}residual needs an output of {width} columns, as in the input, found "
            f"{_output_width(layer)}: w_output can make them equal"
        )
    return _with_printed(layer, where, data, size)


def _heads(where: str, data: dict[str, Any], width: int) -> tuple[HeadMatrices, ...]:
    """The matrices of every head of a layer."""
    rows = width, "one for each column of its input"
    heads: list[HeadMatrices] = []
    for prefix, table in _tables("heads", data, _HEAD_KEYS, where):
        w_query = _matrix(f"{prefix}w_query", table.get("w_query"), rows=rows)
        columns = w_query.shape[1], "as in w_query"
        w_key = _matrix(f"{prefix}w_key", table.get("w_key"), rows=rows, columns=columns)
        w_value = _matrix(f"{prefix}w_value", table.get("w_value"), rows=rows)
        if heads and (
            w_query.shape != heads[0].w_query.shape or w_value.shape != heads[0].w_value.shape
        ):
            raise OptionError(
                f"{prefix[:-1]} must have matrices of the same sizes as the first head"
            )
        heads.append(HeadMatrices(w_query, w_key, w_value))
    return tuple(heads)


def _with_printed(layer: Layer, where: str, data: dict[str, Any], size: tuple[int, int]) -> Layer:
    """The layer and its heads with their printed tables; one head shares the table of its layer."""
    sizes = _sizes(layer, size)
    shared = "heads" not in data
    known = (*HEAD_STEPS, *LAYER_STEPS) if shared else LAYER_STEPS
    printed = _printed(f"{where}printed", data.get("printed", {}), known, sizes)
    if shared:
        by_head = [{name: table for name, table in printed.items() if name in HEAD_STEPS}]
    else:
        by_head = [
            _printed(f"{prefix}printed", table.get("printed", {}), HEAD_STEPS, sizes)
            for prefix, table in _tables("heads", data, _HEAD_KEYS, where)
        ]
    heads = tuple(
        replace(head, printed=tables) for head, tables in zip(layer.heads, by_head, strict=True)
    )
    of_layer = {name: table for name, table in printed.items() if name in LAYER_STEPS}
    return replace(layer, heads=heads, printed=of_layer)


def _output_width(layer: Layer) -> int:
    if layer.w_output is not None:
        return layer.w_output.shape[1]
    return len(layer.heads) * layer.heads[0].w_value.shape[1]


def _sizes(layer: Layer, size: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Rows and columns of each step."""
    queries, keys = size
    channels, value_channels = layer.heads[0].w_query.shape[1], layer.heads[0].w_value.shape[1]
    square = (queries, keys)
    return {
        "query": (queries, channels),
        "key": (keys, channels),
        "value": (keys, value_channels),
        "scores": square,
        "scaled": square,
        "masked": square,
        "weights": square,
        "head": (queries, value_channels),
        "concatenation": (queries, len(layer.heads) * value_channels),
        "output": (queries, _output_width(layer)),
        "sum": (queries, _output_width(layer)),
    }


def _tables(
    name: str, data: dict[str, Any], keys: Iterable[str], where: str = ""
) -> list[tuple[str, dict[str, Any]]]:
    """The tables of this name, each with its prefix; without them, `data` as the only one."""
    if name not in data:
        return [(where, data)]
    tables = data[name]
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise OptionError(f"{where}{name} must be tables [[{name}]], found {_short(tables)}")
    if len(tables) > _MOST[name]:
        raise OptionError(f"{where}{name} has {len(tables)} tables, expected at most {_MOST[name]}")
    keys = [key for key in keys if key != "printed" or name == "layers"]
    outside = [key for key in data if key in keys]
    if outside:
        raise OptionError(f"{where}{outside[0]} belongs in a table [[{name}]], found outside")
    prefixed = [(f"{where}{name}[{number}].", table) for number, table in enumerate(tables, 1)]
    for prefix, table in prefixed:
        _check_keys(prefix, table, _LAYER_KEYS if name == "layers" else _HEAD_KEYS)
    return prefixed


def _check_keys(where: str, data: dict[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key[:40], known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise OptionError(f"unknown key {where}{_short(key)[1:-1]}: {hint}")


def _words(name: str, words: Any) -> tuple[str, ...]:
    if not isinstance(words, list) or not words:
        raise OptionError(f"{name} is missing or empty, expected a list of words")
    if len(words) > _MOST["tokens"]:
        raise OptionError(f"{name} has {len(words)} words, expected at most {_MOST['tokens']}")
    for number, word in enumerate(words, 1):
        if not isinstance(word, str):
            raise OptionError(f"{name}: word {number} must be a text, found {_short(word)}")
    return tuple(words)


Size = tuple[int, str]
"""How many are expected, and why."""


def _matrix(
    name: str, value: Any, *, rows: Size | None = None, columns: Size | None = None
) -> Tensor:
    if value is None:
        raise OptionError(f"{name} is missing, expected rows of numbers")
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise OptionError(f"{name} must be rows of numbers, found {_short(value)}")
    table = cast("list[list[Any]]", value)
    for number, row in enumerate(table, 1):
        if not row or len(row) != len(table[0]):
            raise OptionError(
                f"{name} must be rows of numbers, all of one length: row 1 has {len(table[0])}, "
                f"row {number} has {len(row)}"
            )
        for cell in row:
            if isinstance(cell, bool) or not isinstance(cell, int | float):
                raise OptionError(f"{name} row {number} must be numbers, found {_short(cell)}")
            if not abs(cell) <= _GREATEST:
                raise OptionError(
                    f"{name} row {number} must be numbers of at most {_GREATEST:,.0f}, "
                    f"found {_short(cell)}"
                )
    _check_size(name, (len(table), len(table[0])), rows, columns)
    return torch.tensor(table, dtype=torch.float64)


def _check_size(name: str, size: tuple[int, int], rows: Size | None, columns: Size | None) -> None:
    for what, count, expected in (("rows", size[0], rows), ("columns", size[1], columns)):
        if expected is not None and count != expected[0]:
            raise OptionError(f"{name} has {count} {what}, expected {expected[0]}, {expected[1]}")
    if max(size) > _MOST["columns"]:
        raise OptionError(f"{name} is {size[0]} x {size[1]}, expected at most {_MOST['columns']}")


def _mask(name: str, mask: Any, size: tuple[int, int]) -> tuple[Mask | Tensor | None, str]:
    if mask is None:
        return None, ""
    if mask == "causal":
        return causal(), "causal: no token sees a later one"
    if not isinstance(mask, list):
        raise OptionError(f'{name} must be "causal" or rows of 0 and 1, found {_short(mask)}')
    table = _matrix(
        name, mask, rows=(size[0], "one for each query"), columns=(size[1], "one for each key")
    )
    if not bool(((table == 0) | (table == 1)).all()):
        raise OptionError(f"{name} must be rows of 0 and 1, where 1 means: may attend")
    return table.bool(), "mask: 1 may attend"


def _scale(name: str, scale: Any) -> float | None:
    if scale is None or scale is True:
        return None
    if scale is False:
        return 1.0
    if not isinstance(scale, int | float) or not math.isfinite(scale) or not 0 < scale <= _GREATEST:
        raise OptionError(f"{name} must be true, false or a positive number, found {_short(scale)}")
    return float(scale)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, found {_short(value)}")
    return value


def _printed(
    name: str, data: Any, known: Iterable[str], sizes: dict[str, tuple[int, int]]
) -> dict[str, Printed]:
    if not isinstance(data, dict):
        raise OptionError(f"{name} must be a table [{name}], found {_short(data)}")
    _check_keys(f"{name}.", data, known)
    return {
        step: _printed_table(f"{name}.{step}", rows, sizes[step]) for step, rows in data.items()
    }


def _printed_table(name: str, rows: Any, size: tuple[int, int]) -> Printed:
    if not isinstance(rows, list) or not rows:
        raise OptionError(f"{name} must be rows of numbers in quotes, found {_short(rows)}")
    words: list[tuple[str, ...]] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str):
            raise OptionError(
                f'{name} row {number} must be numbers in quotes, such as "1.20 0.60", '
                f"so that their digits are known, found {_short(row)}"
            )
        words.append(tuple(row.split()))
        if len(words[-1]) != len(words[0]):
            raise OptionError(
                f"{name} row {number} has {len(words[-1])} numbers, "
                f"expected {len(words[0])}, as in row 1"
            )
    expected = [(count, "as the step has") for count in size]
    _check_size(name, (len(words), len(words[0])), *expected)
    cells = [[_cell(name, number, word) for word in row] for number, row in enumerate(words, 1)]
    return Printed(
        tuple(tuple("" if word in _BLANKS else word for word in row) for row in words),
        torch.tensor([[value for value, _ in row] for row in cells], dtype=torch.float64),
        torch.tensor([[half for _, half in row] for row in cells], dtype=torch.float64),
    )


def _cell(name: str, row: int, word: str) -> tuple[float, float]:
    """The value of a printed number, and half of its last digit; NaN for a cell left open."""
    if word in _BLANKS:
        return math.nan, 0.0
    if word.lstrip("-−").lower() in ("inf", "∞") and word[0] in "-−":
        return -math.inf, 0.0
    number = _NUMBER.fullmatch(word)
    if number is None:
        raise OptionError(
            f"{name} row {row} must be numbers such as 1.20, or _ where a cell is still "
            f"open, found {_short(word)}"
        )
    return float(word.replace("−", "-")), 0.5 * 10 ** -len(number.group(1) or "")


def _short(value: Any) -> str:
    """A value from a file as a message shows it: short, on one line, and harmless."""
    try:
        text = reprlib.repr(value)
    except RecursionError:
        text = type(value).__name__
    return ascii(text)[1:-1].replace("\\\\", "\\")
