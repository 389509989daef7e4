"""Chance that can be had again: a stream of it for each purpose, told apart by numbers."""

from __future__ import annotations

import hashlib

import torch


def chance(*numbers: int) -> torch.Generator:
    """A stream of chance that belongs to these numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
