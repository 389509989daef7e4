"""Numbers on their way to the page: a JSON header and the arrays after it, as they lie in memory.

4 bytes      length of the header, little-endian
header       JSON, filled up with spaces; `arrays` says name, dtype, shape and where it starts
arrays       one after another, each starting at a multiple of 8
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_NAMES = {
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
    places: list[dict[str, Any]] = []
    parts: list[bytes] = []
    start = 0
    for name, array in arrays.items():
        array = array.detach().cpu().contiguous()
        data = array.numpy().tobytes()
        shape = list(array.shape)
        places.append({"name": name, "dtype": _NAMES[array.dtype], "shape": shape, "start": start})
        data += bytes(-len(data) % 8)
        parts.append(data)
        start += len(data)
    text = json.dumps({**header, "arrays": places}, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def parse_frame(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the arrays of a frame."""
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    kinds = {name: kind for kind, name in _NAMES.items()}
    arrays: dict[str, Tensor] = {}
    for place in header.pop("arrays"):
        count = 1
        for extent in place["shape"]:
            count *= extent
        kind = kinds[place["dtype"]]
        flat = (
            torch.frombuffer(
                bytearray(data), dtype=kind, count=count, offset=4 + size + place["start"]
            )
            if count
            else torch.empty(0, dtype=kind)
        )
        arrays[place["name"]] = flat.view(place["shape"])
    return header, arrays
