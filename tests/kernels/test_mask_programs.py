"""Mask programs as the kernels read them: every rule against the equivalent dense mask."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from limelight import _kernels
from limelight.ops.kernels import outputs
from limelight.ops.masks.mask import Mask

MASKS = Path(__file__).parents[2] / "csrc" / "masks"

BAND, DILATED, PADDING, ANCHORS, BLOCKS, DENSE, DOCUMENTS, AND, OR, NOT, WITHOUT = range(1, 12)
FAR = 1 << 62
CAUSAL = (BAND, -FAR, 0, 1, 0)

Program = tuple[int, ...]


def links(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2)


def forward(
    q: Tensor, k: Tensor, v: Tensor, program: Program, tables: list[Tensor]
) -> tuple[Tensor, Tensor]:
    out, lse = outputs(q, v, q.dtype)
    _kernels.forward(q, k, v, None, None, None, None, tables, program, 0.2, 0.0, 0.0, 0, out, lse)
    return out, lse


def all_passes(
    q: Tensor, k: Tensor, v: Tensor, program: Program, tables: list[Tensor]
) -> list[Tensor]:
    """The results of forward, backward and lens for one call."""
    out, lse = forward(q, k, v, program, tables)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    grad = torch.cos(torch.arange(out.numel(), dtype=torch.float32)).view_as(out)
    _kernels.backward(
        q, k, v, None, None, None, None, tables, program, 0.2, 0.0, 0.0, 0,
        out, lse, grad, None, *grads, None, None, None,
    )  # fmt: skip
    lens_out, entropy = torch.empty_like(out), torch.empty_like(lse)
    _kernels.lens_forward(
        q, k, v, None, None, None, None, tables, program, 0.2, 0.0, 0.0, 0, lens_out, lse.clone(),
        {"entropy": entropy}, None,
    )  # fmt: skip
    return [out, lse, *grads, lens_out, entropy]


def dense_mask(i: int, j: int, program: Program, tables: list[Tensor]) -> Tensor:
    """The mask of a program, evaluated in plain PyTorch: bool `i j`."""
    numbers = iter(program)

    def read(i: int, j: int) -> Tensor:
        rows, keys = torch.arange(i)[:, None], torch.arange(j)
        match next(numbers):
            case 1:  # BAND
                low, high, aligned, shift = (next(numbers) for _ in range(4))
                offset = keys - rows - (j - i if aligned else shift)
                return (offset >= low) & (offset <= high)
            case 7:  # DOCUMENTS
                starts, has_inner = tables[next(numbers)], next(numbers)
                of_query = torch.bucketize(torch.arange(i), starts[0], right=True)
                of_key = torch.bucketize(torch.arange(j), starts[1], right=True)
                mask = of_query[:, None] == of_key
                if has_inner:
                    lengths = starts.diff()
                    inner = read(int(lengths[0].max()), int(lengths[1].max()))
                    query, key = rows[:, 0] - starts[0][of_query - 1], keys - starts[1][of_key - 1]
                    mask &= inner[query[:, None], key]
                return mask
            case 8:  # AND
                return read(i, j) & read(i, j)
            case 9:  # OR
                return read(i, j) | read(i, j)
            case 10:  # NOT
                return ~read(i, j)
            case 11:  # WITHOUT
                mask = torch.ones(i, j, dtype=torch.bool)
                for query, key in tables[next(numbers)].tolist():
                    if 0 <= query < i and 0 <= key < j:
                        mask[query, key] = False
                return mask
            case other:
                raise AssertionError(other)

    mask = read(i, j)
    assert next(numbers, None) is None
    return mask


def test_rules_have_the_same_code_name_and_file_in_python_and_in_the_kernel() -> None:
    table = re.findall(r"^  X\((\d+), (\w+)\)", (MASKS / "rules.h").read_text(), re.MULTILINE)
    rules = sorted(Mask.kinds.values(), key=lambda rule: rule.code)
    assert [(int(code), name) for code, name in table] == [
        (rule.code, rule.__name__) for rule in rules
    ]
    for rule in rules:
        header = MASKS / "rules" / f"{rule.__module__.rpartition('.')[2]}.h"
        assert f"struct {rule.__name__} :" in header.read_text()


def random_links(count: int, i: int, j: int, seed: int) -> Tensor:
    torch.manual_seed(seed)
    pairs = torch.stack((torch.randint(i, (count,)), torch.randint(j, (count,))), 1)
    return torch.unique(pairs, dim=0)


WHOLE_ROW = links(*((5, j) for j in range(700)), (6, 699))
STARTS = torch.tensor([[0, 300, 300, 600], [0, 300, 400, 700]])
PROGRAMS: dict[str, tuple[Program, list[Tensor]]] = {
    "one link": ((WITHOUT, 0), [links((10, 5))]),
    "no links": ((WITHOUT, 0), [links()]),
    "links outside of the call": ((WITHOUT, 0), [links((-1, 0), (2, 700), (2, FAR), (600, 0))]),
    "a whole row": ((WITHOUT, 0), [WHOLE_ROW]),
    "many links": ((AND, *CAUSAL, WITHOUT, 0), [random_links(9000, 600, 700, seed=1)]),
    "links or causal": ((OR, WITHOUT, 0, *CAUSAL), [random_links(9000, 600, 700, seed=2)]),
    "only these links": ((NOT, WITHOUT, 0), [random_links(900, 600, 700, seed=3)]),
    "the future": ((NOT, *CAUSAL), []),
    "outside of a window": ((AND, *CAUSAL, NOT, BAND, -64, 0, 1, 0), []),
    "twice not": ((NOT, NOT, *CAUSAL), []),
    "other documents": ((NOT, DOCUMENTS, 0, 0), [STARTS]),
    "documents without links": ((DOCUMENTS, 0, 1, WITHOUT, 1), [STARTS, links((0, 0), (299, 7))]),
    "documents of links": (
        (AND, NOT, DOCUMENTS, 0, 1, NOT, WITHOUT, 1, *CAUSAL),
        [STARTS, random_links(500, 300, 300, seed=4)],
    ),
    "a band far away": ((BAND, -FAR, FAR, 0, -FAR), []),
    "limits that overflow": ((BAND, -(2**63), 2**63 - 1, 0, 2**63 - 1), []),
    "nothing": ((NOT, BAND, -(2**63), 2**63 - 1, 1, 0), []),
}


@pytest.mark.parametrize(
    ("name", "queries"),
    # Two queries take the decoding path. Documents are of 600 queries.
    [(name, 600) for name in PROGRAMS]
    + [(name, 2) for name in PROGRAMS if "documents" not in name],
)
def test_a_program_equals_its_dense_mask(name: str, queries: int) -> None:
    program, tables = PROGRAMS[name]
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, queries, 24), torch.randn(1, 2, 700, 24), torch.randn(1, 2, 700, 40)
    if name in ("a band far away", "limits that overflow"):
        dense = torch.ones(queries, 700, dtype=torch.bool)
    else:
        dense = dense_mask(queries, 700, program, tables)
    table = dense.expand(1, 4, queries, 700)
    results = all_passes(q, k, v, program, tables)
    expected = all_passes(q, k, v, (DENSE, 0), [table])
    for result, dense_result in zip(results, expected, strict=True):
        torch.testing.assert_close(result, dense_result, rtol=1e-4, atol=2e-5)


def test_any_nonzero_byte_of_a_bool_tensor_is_true() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16) for n in (50, 70, 70))
    odd = torch.randint(0, 256, (1, 2, 50, 70), dtype=torch.uint8) * (torch.rand(50, 70) < 0.5)
    bits = odd.view(torch.bool)
    layout = torch.tensor([[[2, 0, 128], [1, 255, 0]]], dtype=torch.uint8).view(torch.bool)
    for rule, table in (((DENSE, 0), bits), ((BLOCKS, 0, 25, 24), layout)):
        results = all_passes(q, k, v, rule, [table])
        expected = all_passes(q, k, v, rule, [table.view(torch.uint8) != 0])
        for result, of_normal_bytes in zip(results, expected, strict=True):
            assert torch.equal(result, of_normal_bytes)


@pytest.mark.parametrize(
    "program",
    [
        (NOT,) * 300 + CAUSAL,
        (AND,) * 300 + CAUSAL * 301,
        (DOCUMENTS, 0, 1) * 300 + CAUSAL,
        (NOT,) * 1_000_000,
    ],
    ids=["not", "and", "documents", "a million"],
)
def test_rules_nested_too_deep_are_refused(program: Program) -> None:
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match="nests more than 256 rules"):
        forward(x, x, x, program, [torch.tensor([[0, 4], [0, 4]])])


@pytest.mark.parametrize(
    ("program", "tables", "message"),
    [
        ((WITHOUT, 0), [], "it refers to table 0 of 0"),
        (
            (WITHOUT, 0), [torch.zeros(2, 3, dtype=torch.int64)],
            "a link has 3 numbers, expected 2: query and key",
        ),
        (
            (WITHOUT, 0), [torch.zeros(4, dtype=torch.int64)],
            "table 0 has 1 axes of 8-byte elements, expected 2 of 8",
        ),
        ((WITHOUT, 0), [torch.tensor([[1, 2], [1, 2]])], "links are not sorted, or repeat"),
        ((WITHOUT, 0), [torch.tensor([[1, 2], [0, 3]])], "links are not sorted, or repeat"),
        ((WITHOUT, 0), [torch.tensor([[0, 1], [1, 2]]).T], "a table is not contiguous"),
        ((NOT,), [], "it ends early"),
        (CAUSAL + CAUSAL, [], "its rules end after 5 of 10 numbers"),
        ((DILATED, 0, 0, 0), [], "a dilated band has step 0, expected at least 1"),
        ((DILATED, -(2**63), 0, 0), [], "a dilated band has step -"),
        (
            (BLOCKS, 0, 0, 1), [torch.ones(1, 1, 1, dtype=torch.bool)],
            "a block has 0 queries and 1 keys, expected at least 1",
        ),
        (
            (BLOCKS, 0, 2**63 - 1, 1), [torch.ones(1, 1, 1, dtype=torch.bool)],
            "a layout of blocks is smaller than the call",
        ),
        (
            (BLOCKS, 0, 4, 4), [torch.ones(3, 1, 1, dtype=torch.bool)],
            "a layout of blocks has 3 heads, expected 1 or 1",
        ),
        (
            (DENSE, 0), [torch.ones(1, 1, 4, 3, dtype=torch.bool)],
            "a dense mask has size 3 on axis 3, expected 4",
        ),
        (
            (DOCUMENTS, 0, 0), [torch.zeros(2, 0, dtype=torch.int64)],
            "the first document does not begin at 0",
        ),
        (
            (DOCUMENTS, 0, 0), [torch.tensor([[0, 4], [0, 3]])],
            "documents have 4 queries and 3 keys, expected 4 and 4",
        ),
        (
            (ANCHORS, 0), [torch.zeros(4, dtype=torch.int64)],
            "a table has length 4, expected at least 5",
        ),
        ((2**63 - 1,), [], "there is no rule 9223372036854775807"),
        ((-(2**63),), [], "there is no rule -9223372036854775808"),
    ],
)  # fmt: skip
def test_a_malformed_program_is_refused(
    program: Program, tables: list[Tensor], message: str
) -> None:
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match=f"the mask program is damaged: {message}"):
        forward(x, x, x, program, tables)


@pytest.mark.parametrize("step", [2**63 - 1, 2**62, 5])
def test_a_step_beyond_every_distance_leaves_only_the_query_itself(step: int) -> None:
    torch.manual_seed(0)
    q, v = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
    out, _ = forward(q, q, v, (DILATED, step, -(2**63), 2**63 - 1), [])
    torch.testing.assert_close(out, v)


def test_a_block_larger_than_any_call_covers_it() -> None:
    torch.manual_seed(0)
    q, v = torch.randn(1, 1, 90, 8), torch.randn(1, 1, 90, 8)
    table = torch.ones(1, 1, 1, dtype=torch.bool)
    out, _ = forward(q, q, v, (BLOCKS, 0, 2**63 - 1, 2**63 - 1), [table])
    torch.testing.assert_close(out, forward(q, q, v, (), [])[0])
