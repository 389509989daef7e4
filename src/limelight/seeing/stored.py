"""Recordings as files: one `.safetensors` with the tensors, and a JSON document in its header.

What a recording holds is written as it is: the statistics; and, where the recording can recompute
weights, the query, key and value they come from, or the weights themselves where those are smaller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.files import writing
from limelight.ops.lens import Lens, Links, Pooled, Statistics
from limelight.ops.mask import Extent
from limelight.ops.problem import Problem
from limelight.ops.seen import Seen
from limelight.ops.sources import Call, Dense, Source
from limelight.seeing.flow import UNKNOWN, Flow, Formulas
from limelight.seeing.recording import Recording
from limelight.seeing.stored_masks import get_mask, put_mask
from limelight.seeing.tokens import Token
from limelight.shapes import FileError

FORMAT = "limelight.recording"
VERSION = 1


def write(recording: Recording, path: Path) -> None:
    """Write a recording in one step: the file is there whole, or not at all."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    document = {
        "text": recording.text,
        "query_text": recording.query_text,
        "model": recording.model,
        "made": dict(recording.made),
        "layer_numbers": recording.layer_numbers,
        "head_numbers": recording.head_numbers,
        "tokens": recording.tokens,
        "queries": None if recording.queries is recording.tokens else recording.queries,
        "layers": [
            _put_seen(f"layers.{number}", seen, tensors)
            for number, seen in zip(recording.layer_numbers, recording.layers, strict=True)
        ],
        "flows": bool(recording.flows),
        "formulas": [flow.formulas for flow in recording.flows],
    }
    for number, flow in zip(recording.layer_numbers, recording.flows, strict=False):
        tensors[f"flows.{number}.x"], tensors[f"flows.{number}.output"] = flow.x, flow.output
        if flow.memory is not None:
            tensors[f"flows.{number}.memory"] = flow.memory
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "document": json.dumps(document, ensure_ascii=False),
    }
    # A tensor may be a view of another's storage; a file holds each on its own.
    alone = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with writing(path) as temporary:
        save_file(alone, temporary, metadata=header)


def read(path: Path) -> Recording:
    """Read what `write` wrote; anything else is refused in words."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(f"{path}: no such file, expected a recording (.safetensors)")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            _check_header(path, header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: damaged, or not a safetensors file: {error}") from error
    try:
        return _build(json.loads(header["document"]), tensors)
    except KeyError as error:
        raise FileError(f"{path}: damaged recording: {error} is missing") from error
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise FileError(f"{path}: damaged recording: {error}") from error


def _check_header(path: Path, header: Mapping[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise FileError(f"{path}: a safetensors file, but not a recording")
    version = header.get("version", "")
    if not version.isdecimal() or int(version) > VERSION:
        raise FileError(
            f"{path}: a recording of version {version!r}, expected at most {VERSION}: "
            "it was written by a newer limelight"
        )


def _build(document: dict[str, Any], tensors: dict[str, Tensor]) -> Recording:
    numbers = tuple(int(number) for number in document["layer_numbers"])
    layers = tuple(
        _get_seen(f"layers.{number}", one, tensors)
        for number, one in zip(numbers, document["layers"], strict=True)
    )
    flows: tuple[Flow, ...] = ()
    if document["flows"]:
        # The first files of this version hold no formulas.
        formulas = document.get("formulas", [UNKNOWN] * len(numbers))
        flows = tuple(
            Flow(
                tensors[f"flows.{number}.x"],
                tensors.get(f"flows.{number}.memory"),
                tensors[f"flows.{number}.output"],
                Formulas(*map(str, one)),
            )
            for number, one in zip(numbers, formulas, strict=True)
        )
    queries = document["queries"]
    return Recording(
        text=document["text"],
        tokens=_tokens(document["tokens"]),
        layers=layers,
        model=document["model"],
        made=document["made"],
        layer_numbers=numbers,
        head_numbers=tuple(int(number) for number in document["head_numbers"]),
        queries=() if queries is None else _tokens(queries),
        query_text=document["query_text"],
        flows=flows,
    )


def _tokens(rows: list[list[Any]]) -> tuple[Token, ...]:
    return tuple(
        Token(str(text), int(start), int(end), int(word), bool(special))
        for text, start, end, word, special in rows
    )


def _put_seen(prefix: str, seen: Seen, tensors: dict[str, Tensor]) -> dict[str, Any]:
    for name, part in seen.statistics._asdict().items():
        if isinstance(part, Links):
            tensors[f"{prefix}.{name}.weights"] = part.weights
            tensors[f"{prefix}.{name}.indices"] = part.indices.to(torch.int32)
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
    if not isinstance(seen.source, Call):
        tensors[f"{prefix}.weights"] = seen.dense()
        return {"kind": "weights"}
    problem = seen.source.problem
    for name in ("query", "key", "value", "bias", "slopes"):
        tensor = getattr(problem, name)
        if tensor is not None:
            tensors[f"{prefix}.{name}"] = tensor
    mask = problem.mask
    return {
        "kind": "call",
        "scale": problem.scale,
        "softcap": problem.softcap,
        "mask": None if mask is None else put_mask(f"{prefix}.mask", mask, tensors),
    }


def _get_seen(prefix: str, one: dict[str, Any], tensors: dict[str, Tensor]) -> Seen:
    lens = one["lens"]
    for name in ("columns", "map", "value_map"):
        lens[name] = None if lens[name] is None else tuple(lens[name])
    found: dict[str, Any] = {}
    for name in Statistics._fields:
        if f"{prefix}.{name}" in tensors:
            found[name] = tensors[f"{prefix}.{name}"]
        elif f"{prefix}.{name}.indices" in tensors:
            indices = tensors[f"{prefix}.{name}.indices"].long()
            found[name] = Links(tensors[f"{prefix}.{name}.weights"], indices)
        elif f"{prefix}.{name}.mean" in tensors:
            found[name] = Pooled(tensors[f"{prefix}.{name}.mean"], tensors[f"{prefix}.{name}.max"])
    statistics = Statistics(**found)
    extent = Extent(*one["extent"])
    if statistics.lse.shape != extent[:3]:
        raise FileError(f"lse has shape {tuple(statistics.lse.shape)}, expected {extent[:3]}")
    return Seen(extent, Lens(**lens), statistics, _get_source(f"{prefix}.source", one, tensors))


def _get_source(prefix: str, one: dict[str, Any], tensors: dict[str, Tensor]) -> Source | None:
    stored, extent = one["source"], Extent(*one["extent"])
    if stored is None:
        return None
    if stored["kind"] == "weights":
        weights = tensors[f"{prefix}.weights"]
        if weights.shape != extent:
            raise FileError(f"weights have shape {tuple(weights.shape)}, expected {extent}")
        return Dense(weights)
    mask = stored["mask"]
    problem = Problem(
        query=tensors[f"{prefix}.query"],
        key=tensors[f"{prefix}.key"],
        value=tensors[f"{prefix}.value"],
        mask=None if mask is None else get_mask(mask, tensors),
        bias=tensors.get(f"{prefix}.bias"),
        slopes=tensors.get(f"{prefix}.slopes"),
        scale=float(stored["scale"]),
        softcap=float(stored["softcap"]),
        dropout=0.0,
        seed=None,
    )
    if problem.extent != extent:
        raise FileError(f"query and key are of {tuple(problem.extent)}, expected {tuple(extent)}")
    if problem.mask is not None:
        problem.mask.check(extent)
    return Call(problem)
