"""Tensors that do not fit a call of the kernels: the error names the argument, and what it is."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from limelight import _kernels

CASES: list[tuple[str, dict[str, Tensor]]] = [
    ("query must have 4 axes, found shape torch.Size([2, 4, 8])", {"query": torch.zeros(2, 4, 8)}),
    (
        "query must be float32, bfloat16 or float16, found torch.float64",
        {"query": torch.zeros(1, 2, 4, 8, dtype=torch.float64)},
    ),
    (
        "value must have a last axis of stride 1, found 2",
        {"value": torch.zeros(1, 2, 4, 16)[..., ::2]},
    ),
    (
        "query (1, 2, 4, 8), key (1, 2, 5, 8) and value (1, 2, 4, 8) do not fit one another",
        {"key": torch.zeros(1, 2, 5, 8)},
    ),
    (
        "query, key and value differ in dtype",
        {"value": torch.zeros(1, 2, 4, 8, dtype=torch.float16)},
    ),
    (
        "the number of key heads must divide that of query heads, found 3 and 2",
        {"key": torch.zeros(1, 3, 4, 8), "value": torch.zeros(1, 3, 4, 8)},
    ),
    ("bias has size 3 on axis 3, expected 1 or 4", {"bias": torch.zeros(1, 1, 1, 3)}),
    (
        "sinks and row_lse exclude one another",
        {"sinks": torch.zeros(2), "row_lse": torch.zeros(1, 2, 4, dtype=torch.float64)},
    ),
    (
        "out must have shape (1, 2, 4, 8), found (1, 2, 3, 8)",
        {"out": torch.zeros(1, 2, 3, 8)},
    ),
    (
        "out must be float32, found bfloat16",
        {"out": torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)},
    ),
    (
        "lse must be torch.float32, found torch.float64",
        {"lse": torch.zeros(1, 2, 4, dtype=torch.float64)},
    ),
    (
        "lse must have 8 elements, found shape torch.Size([1, 2, 3])",
        {"lse": torch.zeros(1, 2, 3)},
    ),
    ("lse must be contiguous", {"lse": torch.zeros(1, 4, 2).mT}),
]


@pytest.mark.parametrize(("message", "tensors"), CASES)
def test_a_tensor_that_does_not_fit_is_named(message: str, tensors: dict[str, Tensor]) -> None:
    x = torch.zeros(1, 2, 4, 8)
    arguments = {
        "query": x, "key": x, "value": x, "bias": None, "slopes": None, "sinks": None,
        "row_lse": None, "tables": [], "program": [], "scale": 1.0, "softcap": 0.0, "dropout": 0.0,
        "seed": 0, "out": torch.zeros(1, 2, 4, 8), "lse": torch.zeros(1, 2, 4),
    }  # fmt: skip
    with pytest.raises(ValueError, match=re.escape(message)):
        _kernels.forward(**{**arguments, **tensors})
