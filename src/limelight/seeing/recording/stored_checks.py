"""Checks that the parts of a recording's file agree: a checksum finds damage, not wrong writers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limelight.checks import FLOATING, check_broadcast
from limelight.errors import FileError
from limelight.ops.lens.spec import Links, Pooled, Statistics
from limelight.ops.masks.mask import Extent
from limelight.ops.problem import Problem
from limelight.seeing.recording.tokens import Token
from limelight.seeing.steps.flow import Flow


def check_tensor(
    name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None
) -> None:
    """Raise unless a tensor has this shape, and this type or any that attention takes."""
    if tuple(tensor.shape) != tuple(shape):
        raise FileError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if tensor.dtype not in ((dtype,) if dtype else FLOATING):
        expected = dtype or "a floating-point type that attention takes"
        raise FileError(f"{name} is of {tensor.dtype}, expected {expected}")


def check_statistics(statistics: Statistics, extent: Extent) -> None:
    """Raise unless all statistics fit weights of this extent, in one type."""
    b, h, i, j = extent
    check_tensor("lse", statistics.lse, (b, h, i))
    dtype = statistics.lse.dtype
    for name, part in statistics._asdict().items():
        if part is None:
            continue
        if isinstance(part, Links):
            size = part.weights.shape[-1] if part.weights.ndim else 0
            check_tensor(f"{name} weights", part.weights, (b, h, i, size), dtype)
            if part.indices.shape != part.weights.shape:
                raise FileError(
                    f"{name} has indices {tuple(part.indices.shape)} for weights "
                    f"{tuple(part.weights.shape)}"
                )
            if part.indices.numel() and not -1 <= int(part.indices.min()) <= int(
                part.indices.max()
            ) < max(j, 1):
                raise FileError(f"{name} has indices beyond its {j} keys")
        elif isinstance(part, Pooled):
            for tensor in part:
                cells = tensor.shape[2:] if tensor.ndim == 4 else ()
                check_tensor(name, tensor, (b, h, *cells), dtype)
        elif name == "received":
            check_tensor(name, part, (b, h, j), dtype)
        elif name == "columns":
            check_tensor(name, part, (b, h, i, *part.shape[3:4]), dtype)
        else:
            check_tensor(name, part, (b, h, i), dtype)


def check_call(problem: Problem, extent: Extent, dtype: torch.dtype) -> None:
    """Raise unless query, key and value give weights of this extent and type."""
    b, h, i, j = extent
    query, key, value = problem.query, problem.key, problem.value
    if not all(part.ndim == 4 for part in (query, key, value)):
        raise FileError("query, key and value must have four axes")
    groups, size = key.shape[1], query.shape[3]
    check_tensor("query", query, (b, h, i, size))
    check_tensor("key", key, (b, groups, j, size))
    check_tensor("value", value, (b, groups, j, value.shape[3]))
    if not groups or h % groups:
        raise FileError(f"{h} query heads cannot share {groups} key heads")
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        raise FileError(f"query, key and value are of {query.dtype}, {key.dtype}, {value.dtype}")
    computed = torch.promote_types(query.dtype, torch.float32)
    if computed != dtype:
        raise FileError(f"weights of a {query.dtype} query are {computed}, found {dtype}")
    for name, shape in (("slopes", (h,)), ("sinks", (h,)), ("lse", (b, h, i))):
        tensor = getattr(problem, name)
        if tensor is not None:
            check_tensor(name, tensor, shape)
    for name in ("bias", "factors"):
        table = getattr(problem, name)
        if table is not None:
            check_broadcast(name, table, "b h i j", tuple(extent))
            check_tensor(name, table, table.shape)
    if problem.sinks is not None and problem.lse is not None:
        raise FileError("found sinks and a log-sum-exp, expected only one of them")


def check_flow(flow: Flow, extent: Extent) -> None:
    """Raise unless the input and output of a layer have one row for each token that it saw."""
    for name, tensor, rows in (
        ("x", flow.x, extent.i),
        ("memory", flow.memory, extent.j),
        ("output", flow.output, extent.i),
    ):
        if tensor is not None:
            check_tensor(name, tensor, (rows, *tensor.shape[1:2]))


def check_tokens(name: str, tokens: Sequence[Token], text: str) -> None:
    """Raise unless each token lies within the text, and word numbers never decrease."""
    word = 0
    for index, token in enumerate(tokens):
        if not 0 <= token.start <= token.end <= len(text):
            raise FileError(
                f"{name} {index} spans {token.start} to {token.end}, the text 0 to {len(text)}"
            )
        if not word <= token.word < 1 << 31:
            raise FileError(f"{name} {index} is in word {token.word}, after word {word}")
        word = token.word
