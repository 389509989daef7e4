"""Queries, keys and values of a long text, on disk rather than in memory.

Every weight can still be recomputed exactly, however long the text is: the tensors are mapped from
temporary files, of which the system reads the pages that are used and evicts them where memory is
short. The files are unlinked as soon as they are written, readable by no one else, and freed with
the last tensor mapped from them, or the process. TMPDIR names another folder for them.
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

MEMORY_LIMIT = 1 << 28
"""Bytes of queries, keys and values that a recording keeps in memory: 256 MB."""


def offload(seen: Seen, calls: int, limit: int = MEMORY_LIMIT) -> Seen:
    """What was seen, its query, key and value on disk if those of all calls exceed a limit.

    Args:
        seen: of one call.
        calls: how many like it the recording has.
        limit: bytes that all of them may take in memory.
    """
    source = seen.source
    if not isinstance(source, Recomputed):
        return seen
    problem = source.problem
    tensors = (problem.query, problem.key, problem.value)
    if not all(tensor.is_cpu for tensor in tensors):
        return seen
    if calls * sum(tensor.nbytes for tensor in tensors) <= limit:
        return seen
    try:
        query, key, value = map(memory_mapped, tensors)
    except (OSError, RuntimeError):  # no such folder, or a full disk: then in memory
        return seen
    problem = replace(problem, query=query, key=key, value=value)
    trim_heap()
    return replace(seen, source=Recomputed(problem))


def trim_heap() -> None:
    """Return freed memory to the system: between layers the C library would keep hundreds of MB."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # a C library that is not GNU's
        return None


def memory_mapped(tensor: Tensor) -> Tensor:
    """The same numbers `b h n d` in a file of their own, one head after the other.

    >>> x = torch.randn(1, 2, 3, 4)
    >>> torch.equal(memory_mapped(x), x)
    True
    """
    with NamedTemporaryFile(prefix="limelight-") as file:
        for head in tensor.flatten(0, 1):
            file.write(head.contiguous().view(torch.uint8).numpy().data)
        file.flush()
        stored = torch.from_file(file.name, shared=False, size=tensor.numel(), dtype=tensor.dtype)
    return stored.view(tensor.shape)
