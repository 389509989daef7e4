"""Recordings as files: one `.safetensors` with the tensors, and a JSON document in its header.

A file holds the statistics and, where the recording can recompute weights, the query, key and value
they come from, or the weights themselves. For a long text these would be most of the file (8,192
tokens on 270 heads: 0.9 GB of 1.1), so beyond `MOST_SOURCE` they are left out, and `made` says so:
what is read back has every statistic and no other weight. A checksum over all of it reveals a
damaged file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.checks import check_number
from limelight.errors import FileError, LimelightError
from limelight.files import is_file, is_folder, writing
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed, Source, StoredWeights
from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics
from limelight.ops.masks.mask import mask_from_json
from limelight.ops.masks.region import Extent
from limelight.ops.problem import Problem
from limelight.seeing.recording.picture import Picture
from limelight.seeing.recording.recording import Recording, Window
from limelight.seeing.recording.stored_checks import (
    check_call,
    check_flow,
    check_statistics,
    check_tensor,
    check_tokens,
)
from limelight.seeing.recording.tokens import Token
from limelight.seeing.steps.flow import UNKNOWN, Flow, Formulas

FORMAT = "limelight.recording"
VERSION = 2
"""Files of version 1, which hold no checksum, are still read."""
MOST_SOURCE = 128 << 20
"""Bytes of queries, keys, values and weights in a file; beyond, it holds statistics only."""


def write(recording: Recording, path: Path) -> None:
    """Write a recording atomically: the file is complete or not there."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    recording = _without_large_sources(recording)
    document: dict[str, Any] = {
        "text": recording.text,
        "query_text": recording.query_text,
        "model": recording.model,
        "made": dict(recording.made),
        "layer_numbers": recording.layer_numbers,
        "head_numbers": recording.head_numbers,
        "tokens": recording.tokens,
        "queries": None if recording.queries is recording.tokens else recording.queries,
        "windows": recording.windows,
        "layers": [
            _put_seen(f"layers.{number}", seen, tensors)
            for number, seen in zip(recording.layer_numbers, recording.layers, strict=True)
        ],
        "flows": bool(recording.flows),
        "formulas": [flow.formulas for flow in recording.flows],
    }
    if (picture := recording.picture) is not None:
        grid = {"rows": picture.rows, "columns": picture.columns, "leading": picture.leading}
        document["picture"], tensors["picture"] = grid, picture.pixels
    for number, flow in zip(recording.layer_numbers, recording.flows, strict=False):
        parts = {"x": flow.x, "memory": flow.memory, "output": flow.output}
        tensors |= {
            f"flows.{number}.{name}": part for name, part in parts.items() if part is not None
        }
    # Tensors may share storage, which safetensors does not write.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(document, ensure_ascii=False)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "document": text,
        "checksum": checksum(text, copies),
    }
    with writing(path) as temporary:
        save_file(copies, temporary, metadata=header)


def _without_large_sources(recording: Recording) -> Recording:
    size = sum(_source_size(seen) for seen in recording.layers)
    if size <= MOST_SOURCE:
        return recording
    layers = tuple(
        replace(seen, source=None, lens=replace(seen.lens, keep=False)) for seen in recording.layers
    )
    remark = f"left out of the file ({size / 1e6:,.0f} MB): it holds what the lens recorded"
    return replace(recording, layers=layers, made={**recording.made, "weights": remark})


def _source_size(seen: Seen) -> int:
    """Bytes that `_put_source` would write."""
    if seen.source is None:
        return 0
    if not isinstance(seen.source, Recomputed):
        return math.prod(seen.extent) * seen.dtype.itemsize
    problem = seen.source.problem
    parts = (problem.query, problem.key, problem.value, problem.bias, problem.slopes)
    return sum(part.numel() * part.element_size() for part in parts if part is not None)


def read(path: Path) -> Recording:
    """Read what `write` wrote; anything else raises a FileError."""
    from safetensors import SafetensorError, safe_open

    if is_folder(path):
        raise FileError(f"{path}: a folder, expected a recording (.safetensors)")
    if not is_file(path):
        raise FileError(f"{path}: no such file, expected a recording (.safetensors)")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            version = _version(path, header)
            # copied: a mapped tensor would change with the file after it was checked
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: damaged, or not a safetensors file: {error}") from error
    try:
        if version > 1 and header["checksum"] != checksum(header["document"], tensors):
            raise FileError("its content does not agree with its checksum")
        return _build(_document(header["document"]), tensors)
    except KeyError as error:
        raise FileError(f"{path}: damaged recording: {error} is missing") from error
    except LimelightError as error:
        raise FileError(f"{path}: damaged recording: {error}") from error
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise FileError(f"{path}: damaged recording: its parts do not fit together") from error


def checksum(document: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the document and of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(document.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _version(path: Path, header: Mapping[str, str]) -> int:
    if header.get("format") != FORMAT:
        raise FileError(f"{path}: a safetensors file, but not a recording")
    version = header.get("version", "")
    if not (version.isascii() and version.isdecimal() and len(version) < 10 and int(version)):
        raise FileError(f"{path}: damaged recording: version {version[:20]!r}, expected 1 or more")
    if int(version) > VERSION:
        raise FileError(
            f"{path}: a recording of version {version!r}, expected at most {VERSION}: "
            "it was written by a newer limelight"
        )
    return int(version)


def _document(text: str) -> dict[str, Any]:
    try:
        return _check_type("document", json.loads(text), dict)
    except json.JSONDecodeError as error:
        raise FileError("the document in its header is not JSON") from error


_SURROGATE = re.compile("[\ud800-\udfff]")
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a map",
}


def _check_type(name: str, value: Any, expected: type[Any]) -> Any:
    """The value, which must be of exactly this type: JSON's true is not a number."""
    if type(value) is not expected:
        raise FileError(f"{name} must be {_TYPE_NAMES[expected]}, found {json.dumps(value)[:40]}")
    if expected is str and _SURROGATE.search(value):
        raise FileError(f"{name} must be Unicode, found half a character")
    return value


def _numbers(document: dict[str, Any], name: str) -> tuple[int, ...]:
    numbers = _check_type(name, document[name], list)
    return tuple(_check_type(f"each of {name}", number, int) for number in numbers)


def _build(document: dict[str, Any], tensors: dict[str, Tensor]) -> Recording:
    numbers = _numbers(document, "layer_numbers")
    stored = _check_type("layers", document["layers"], list)
    if len(stored) != len(numbers):
        raise FileError(f"it names {len(numbers)} layers and holds {len(stored)}")
    layers = tuple(
        _get_seen(f"layers.{number}", layer, tensors)
        for number, layer in zip(numbers, stored, strict=True)
    )
    flows: tuple[Flow, ...] = ()
    if _check_type("flows", document["flows"], bool):
        # The first files of version 1 hold no formulas.
        formulas = document.get("formulas", [UNKNOWN] * len(numbers))
        flows = tuple(
            Flow(
                tensors[f"flows.{number}.x"],
                tensors.get(f"flows.{number}.memory"),
                tensors.get(f"flows.{number}.output"),
                Formulas(*(_check_type("each formula", formula, str) for formula in texts)),
            )
            for number, texts in zip(numbers, formulas, strict=True)
        )
        for flow, seen in zip(flows, layers, strict=True):
            check_flow(flow, seen.extent)
    queries, made = document["queries"], _check_type("made", document["made"], dict)
    recording = Recording(
        text=_check_type("text", document["text"], str),
        tokens=_tokens("tokens", document["tokens"]),
        layers=layers,
        model=_check_type("model", document["model"], str),
        made={
            _check_type("each name in made", name, str): _check_type(f"made {name!r}", text, str)
            for name, text in made.items()
        },
        layer_numbers=numbers,
        head_numbers=_numbers(document, "head_numbers"),
        queries=() if queries is None else _tokens("queries", queries),
        query_text=_check_type("query_text", document["query_text"], str),
        flows=flows,
        picture=_picture(document, tensors),
        windows=_windows(document),
    )
    check_tokens("tokens", recording.tokens, recording.text)
    check_tokens("queries", recording.queries, recording.query_text)
    return recording


def _picture(document: dict[str, Any], tensors: dict[str, Tensor]) -> Picture | None:
    if "picture" not in document:
        return None
    stored = _check_type("picture", document["picture"], dict)
    rows, columns, leading = (
        _check_type(f"{name} of the picture", stored[name], int)
        for name in ("rows", "columns", "leading")
    )
    return Picture(tensors["picture"], rows, columns, leading)


def _windows(document: dict[str, Any]) -> tuple[Window, ...]:
    # Older files have no windows.
    rows = _check_type("windows", document.get("windows", []), list)
    return tuple(
        Window(*(_check_type("each number of a window", number, int) for number in row))
        for row in rows
    )


def _tokens(name: str, rows: Any) -> tuple[Token, ...]:
    types = {"text": str, "start": int, "end": int, "word": int, "special": bool}
    tokens: list[Token] = []
    for index, row in enumerate(_check_type(name, rows, list)):
        if len(_check_type(f"{name} {index}", row, list)) != len(types):
            raise FileError(f"{name} {index} has {len(row)} parts, expected {', '.join(types)}")
        fields = (
            _check_type(f"{field} of {name} {index}", value, expected)
            for (field, expected), value in zip(types.items(), row, strict=True)
        )
        tokens.append(Token(*fields))
    return tuple(tokens)


def _put_seen(prefix: str, seen: Seen, tensors: dict[str, Tensor]) -> dict[str, Any]:
    for name, part in seen.statistics._asdict().items():
        if isinstance(part, Links):
            tensors[f"{prefix}.{name}.weights"] = part.weights
            # −1 becomes 65,535, which no key of a text this short has
            short = seen.extent.j < 1 << 16
            dtype = torch.uint16 if short else torch.int32
            tensors[f"{prefix}.{name}.indices"] = part.indices.to(torch.int32).to(dtype)
        elif isinstance(part, Pooled):
            tensors[f"{prefix}.{name}.mean"], tensors[f"{prefix}.{name}.max"] = part
        elif part is not None:
            tensors[f"{prefix}.{name}"] = part
    return {
        "extent": seen.extent,
        "lens": asdict(seen.lens),
        "source": _put_source(f"{prefix}.source", seen, tensors),
    }


def _put_source(prefix: str, seen: Seen, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    if seen.source is None:
        return None
    if not isinstance(seen.source, Recomputed):
        tensors[f"{prefix}.weights"] = seen.dense()
        return {"kind": "weights"}
    problem = seen.source.problem
    for name, tensor in problem.tensors().items():
        tensors[f"{prefix}.{name}"] = tensor
    mask = problem.mask
    return {
        "kind": "call",
        "scale": problem.scale,
        "softcap": problem.softcap,
        "mask": None if mask is None else mask.to_json(f"{prefix}.mask", tensors),
    }


def _get_seen(prefix: str, layer: dict[str, Any], tensors: dict[str, Tensor]) -> Seen:
    lens = layer["lens"]
    lens.pop("value_map", None)  # a statistic of older files
    for name in ("columns", "map"):
        lens[name] = None if lens[name] is None else tuple(lens[name])
    parts: dict[str, Any] = {}
    for name in Statistics._fields:
        if f"{prefix}.{name}" in tensors:
            parts[name] = tensors[f"{prefix}.{name}"]
        elif f"{prefix}.{name}.indices" in tensors:
            indices = _indices(tensors[f"{prefix}.{name}.indices"])
            parts[name] = Links(tensors[f"{prefix}.{name}.weights"], indices)
        elif f"{prefix}.{name}.mean" in tensors:
            parts[name] = Pooled(tensors[f"{prefix}.{name}.mean"], tensors[f"{prefix}.{name}.max"])
    statistics = Statistics(**parts)
    extent = Extent(*(_check_type("each of extent", size, int) for size in layer["extent"]))
    check_statistics(statistics, extent)
    source = _get_source(f"{prefix}.source", layer, tensors, statistics.lse.dtype)
    return Seen(extent, Lens(**lens), statistics, source)


def _indices(stored: Tensor) -> Tensor:
    indices = stored.to(torch.int32).long() if stored.dtype == torch.uint16 else stored.long()
    return indices.where(indices != 0xFFFF, -1) if stored.dtype == torch.uint16 else indices


def _get_source(
    prefix: str, layer: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype
) -> Source | None:
    """What weights of this type are recomputed from."""
    stored, extent = layer["source"], Extent(*layer["extent"])
    if stored is None:
        return None
    if stored["kind"] == "weights":
        weights = tensors[f"{prefix}.weights"]
        check_tensor("weights", weights, extent, dtype)
        if bool((weights < 0).any()):
            raise FileError("weights must be at least 0, found some below")
        return StoredWeights(weights)
    mask = stored["mask"]
    problem = Problem(
        query=tensors[f"{prefix}.query"],
        key=tensors[f"{prefix}.key"],
        value=tensors[f"{prefix}.value"],
        mask=None if mask is None else mask_from_json(mask, tensors),
        bias=tensors.get(f"{prefix}.bias"),
        slopes=tensors.get(f"{prefix}.slopes"),
        scale=check_number("scale", stored["scale"], "a finite number"),
        softcap=check_number("softcap", stored["softcap"], "a number of at least 0", low=0.0),
        dropout=0.0,
        seed=None,
        sinks=tensors.get(f"{prefix}.sinks"),
        lse=tensors.get(f"{prefix}.lse"),
        factors=tensors.get(f"{prefix}.factors"),
    )
    check_call(problem, extent, dtype)
    if problem.mask is not None:
        problem.mask.check(extent)
    return Recomputed(problem)
