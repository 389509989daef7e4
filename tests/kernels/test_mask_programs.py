"""Mask programs as the kernels read them: every rule against the dense table of its meaning."""

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


def every_path(
    q: Tensor, k: Tensor, v: Tensor, program: Program, tables: list[Tensor]
) -> list[Tensor]:
    """Forward, backward and lens of one call."""
    out, lse = forward(q, k, v, program, tables)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    grad = torch.cos(torch.arange(out.numel(), dtype=torch.float32)).view_as(out)
    _kernels.backward(
        q, k, v, None, None, None, None, tables, program, 0.2, 0.0, 0.0, 0,
        out, lse, grad, None, *grads, None, None, None,
    )  # fmt: skip
    seen, entropy = torch.empty_like(out), torch.empty_like(lse)
    _kernels.lens_forward(
        q, k, v, None, None, None, None, tables, program, 0.2, 0.0, 0.0, 0, seen, lse.clone(),
        {"entropy": entropy}, None,
    )  # fmt: skip
    return [out, lse, *grads, seen, entropy]


def allowed(i: int, j: int, program: Program, tables: list[Tensor]) -> Tensor:
    """What a program means, written as plainly as can be: `i j`."""
    numbers = iter(program)

    def read(i: int, j: int) -> Tensor:
        rows, keys = torch.arange(i)[:, None], torch.arange(j)
        match next(numbers):
            case 1:
                low, high, aligned, shift = (next(numbers) for _ in range(4))
                away = keys - rows - (j - i if aligned else shift)
                return (away >= low) & (away <= high)
            case 7:
                starts, inside = tables[next(numbers)], next(numbers)
                mask = torch.zeros(i, j, dtype=torch.bool)
                document = torch.bucketize(torch.arange(i), starts[0], right=True)
                owner = torch.bucketize(torch.arange(j), starts[1], right=True)
                mask = document[:, None] == owner
                if inside:
                    lengths = starts.diff()
                    longest = read(int(lengths[0].max()), int(lengths[1].max()))
                    own = rows[:, 0] - starts[0][document - 1], keys - starts[1][owner - 1]
                    mask &= longest[own[0][:, None], own[1]]
                return mask
            case 8:
                return read(i, j) & read(i, j)
            case 9:
                return read(i, j) | read(i, j)
            case 10:
                return ~read(i, j)
            case 11:
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


def test_a_rule_has_the_number_and_name_of_its_class_in_the_kernel() -> None:
    table = re.findall(r"^  X\((\d+), (\w+)\)", (MASKS / "rules.h").read_text(), re.MULTILINE)
    rules = sorted(Mask.kinds.values(), key=lambda rule: rule.code)
    assert [(int(number), name) for number, name in table] == [
        (rule.code, rule.__name__) for rule in rules
    ]
    for rule in rules:
        twin = MASKS / "rules" / f"{rule.__module__.rpartition('.')[2]}.h"
        assert f"struct {rule.__name__} :" in twin.read_text()


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
    # Two queries take the decoding path; documents name all 600.
    [(name, 600) for name in PROGRAMS]
    + [(name, 2) for name in PROGRAMS if "documents" not in name],
)
def test_a_program_is_its_dense_table(name: str, queries: int) -> None:
    program, tables = PROGRAMS[name]
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, queries, 24), torch.randn(1, 2, 700, 24), torch.randn(1, 2, 700, 40)
    if name == "a band far away" or name == "limits that overflow":
        dense = torch.ones(queries, 700, dtype=torch.bool)
    else:
        dense = allowed(queries, 700, program, tables)
    table = dense.expand(1, 4, queries, 700)
    found = every_path(q, k, v, program, tables)
    expected = every_path(q, k, v, (DENSE, 0), [table])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


def test_any_byte_but_zero_of_a_bool_tensor_is_true() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16) for n in (50, 70, 70))
    odd = torch.randint(0, 256, (1, 2, 50, 70), dtype=torch.uint8) * (torch.rand(50, 70) < 0.5)
    bits = odd.view(torch.bool)
    layout = torch.tensor([[[2, 0, 128], [1, 255, 0]]], dtype=torch.uint8).view(torch.bool)
    for rule, table in (((DENSE, 0), bits), ((BLOCKS, 0, 25, 24), layout)):
        found = every_path(q, k, v, rule, [table])
        expected = every_path(q, k, v, rule, [table.view(torch.uint8) != 0])
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


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
def test_rules_that_nest_too_deep_are_refused(program: Program) -> None:
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match="nests more than 256 rules"):
        forward(x, x, x, program, [torch.tensor([[0, 4], [0, 4]])])


@pytest.mark.parametrize(
    ("program", "tables"),
    [
        ((WITHOUT, 0), []),
        ((WITHOUT, 0), [torch.zeros(2, 3, dtype=torch.int64)]),
        ((WITHOUT, 0), [torch.zeros(4, dtype=torch.int64)]),
        ((WITHOUT, 0), [torch.tensor([[1, 2], [1, 2]])]),
        ((WITHOUT, 0), [torch.tensor([[1, 2], [0, 3]])]),
        ((WITHOUT, 0), [torch.tensor([[0, 1], [1, 2]]).T]),
        ((NOT,), []),
        ((DILATED, 0, 0, 0), []),
        ((DILATED, -(2**63), 0, 0), []),
        ((BLOCKS, 0, 0, 1), [torch.ones(1, 1, 1, dtype=torch.bool)]),
        ((BLOCKS, 0, 2**63 - 1, 1), [torch.ones(1, 1, 1, dtype=torch.bool)]),
        ((DOCUMENTS, 0, 0), [torch.zeros(2, 0, dtype=torch.int64)]),
        ((2**63 - 1,), []),
        ((-(2**63),), []),
    ],
)
def test_a_program_made_by_hand_is_served_or_refused(
    program: Program, tables: list[Tensor]
) -> None:
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match="the mask program is damaged"):
        forward(x, x, x, program, tables)


@pytest.mark.parametrize("step", [2**63 - 1, 2**62, 5])
def test_a_step_beyond_every_distance_leaves_the_query_itself(step: int) -> None:
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
