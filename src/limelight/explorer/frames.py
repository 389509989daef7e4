"""The binary format of arrays for the page: a JSON header, then the raw numbers.

4 bytes      length of the header, little-endian
header       JSON, padded with spaces; `arrays` has the name, dtype, shape and start of each array
arrays       one after another, each at a multiple of 8 bytes after the header
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_DTYPE_NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.int32: "int32",
    torch.uint8: "uint8",
}


def frame(header: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> bytes:
    """The header and its arrays as bytes.

    >>> data = frame({"n": 2}, {"x": torch.tensor([1.0, 2.0])})
    >>> parse_frame(data)
    ({'n': 2}, {'x': tensor([1., 2.])})
    """
    layout: list[dict[str, Any]] = []
    parts: list[bytes] = []
    start = 0
    for name, array in arrays.items():
        array = array.detach().cpu().contiguous()
        data = array.numpy().tobytes()
        dtype, shape = _DTYPE_NAMES[array.dtype], list(array.shape)
        layout.append({"name": name, "dtype": dtype, "shape": shape, "start": start})
        data += bytes(-len(data) % 8)
        parts.append(data)
        start += len(data)
    text = json.dumps({**header, "arrays": layout}, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def parse_frame(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the arrays of a frame."""
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    dtypes = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
    arrays: dict[str, Tensor] = {}
    for entry in header.pop("arrays"):
        dtype, count = dtypes[entry["dtype"]], math.prod(entry["shape"])
        offset = 4 + size + entry["start"]
        flat = (
            torch.frombuffer(bytearray(data), dtype=dtype, count=count, offset=offset)
            if count
            else torch.empty(0, dtype=dtype)
        )
        arrays[entry["name"]] = flat.view(entry["shape"])
    return header, arrays
