"""Queries, keys and values of a long text, on disk rather than in memory.

Every weight stays within reach, exact, however long the text is; the system reads back the pages
that are asked for and drops them where memory is short. Files are without a name from the moment
they are written, readable by no one else, and gone with the last tensor on them, or the process.
They lie where Python's `tempfile` puts such files: TMPDIR names another place.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor

from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed

ROOM = 1 << 28
"""Bytes of queries, keys and values that a recording keeps in memory: 256 MB."""


def shelve(seen: Seen, calls: int, room: int = ROOM) -> Seen:
    """What was seen, its query, key and value on disk if those of all calls need more than `room`.

    Args:
        seen: of one call.
        calls: how many like it the recording has.
        room: bytes.
    """
    source = seen.source
    if not isinstance(source, Recomputed):
        return seen
    problem = source.problem
    tensors = (problem.query, problem.key, problem.value)
    if not all(tensor.is_cpu for tensor in tensors):
        return seen
    if calls * sum(tensor.nbytes for tensor in tensors) <= room:
        return seen
    try:
        query, key, value = map(on_disk, tensors)
    except (OSError, RuntimeError):  # no such place, or no room there: then in memory
        return seen
    problem = replace(problem, query=query, key=key, value=value)
    _give_back()
    return replace(seen, source=Recomputed(problem))


def _give_back() -> None:
    """Return freed memory to the system: between layers the C library would keep hundreds of MB."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # a C library that is not GNU's
        return None


def on_disk(tensor: Tensor) -> Tensor:
    """The same numbers `b h n d` in a file of their own, one head after the other.

    >>> x = torch.randn(1, 2, 3, 4)
    >>> torch.equal(on_disk(x), x)
    True
    """
    with NamedTemporaryFile(prefix="limelight-") as file:
        for head in tensor.flatten(0, 1):
            file.write(head.contiguous().view(torch.uint8).numpy().data)
        file.flush()
        stored = torch.from_file(file.name, shared=False, size=tensor.numel(), dtype=tensor.dtype)
    return stored.view(tensor.shape)
