"""Masks: their rules, their algebra, their drawings, and the errors of wrong ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
import torch

import limelight as ll
from limelight.errors import DeviceError, DtypeError, LimelightError, OptionError, ShapeError
from limelight.ops.masks.band import Band
from limelight.ops.masks.mask import Mask, as_mask, mask_from_json
from limelight.ops.masks.region import Extent


def rows(mask: Mask, i: int, j: int | None = None, b: int = 1, h: int = 1) -> list[str]:
    dense = mask.dense(i, j, b=b, h=h)
    return ["".join(".x"[int(x)] for x in row) for row in dense[-1, -1].tolist()]


def test_causal_puts_the_last_query_on_the_last_key() -> None:
    assert rows(ll.causal(), 2, 4) == ["xxx.", "xxxx"]
    assert rows(ll.causal(diagonal=0), 2, 4) == ["x...", "xx.."]
    assert rows(ll.causal(), 3, 2) == ["..", "x.", "xx"]


def test_window_counts_keys_before_and_after() -> None:
    assert rows(ll.window(1), 4) == ["x...", "xx..", ".xx.", "..xx"]
    assert rows(ll.window(0, 1), 3) == ["xx.", ".xx", "..x"]
    assert rows(ll.window(None, 0), 3) == rows(ll.causal(), 3)


def test_dilated_takes_every_step() -> None:
    assert rows(ll.dilated(2), 4) == ["x.x.", ".x.x", "x.x.", ".x.x"]
    assert rows(ll.dilated(3, left=1, right=0), 5) == ["x....", ".x...", "..x..", "x..x.", ".x..x"]


def test_documents_do_not_see_one_another() -> None:
    assert rows(ll.documents([1, 2]), 3) == ["x..", ".xx", ".xx"]
    inside = ll.documents([1, 2], [2, 3], inside=ll.causal())
    assert rows(inside, 3, 5) == ["xx...", "..xx.", "..xxx"]
    assert rows(ll.documents([0, 2, 0, 1]), 3) == ["xx.", "xx.", "..x"]


ALIKE, UNLIKE = ([5, 5], [6, 6]), ([1, 7, 0, 3], [5, 6, 7, 9])


@pytest.mark.parametrize(
    ("inside", "lengths"),
    [
        (ll.causal(), UNLIKE),
        (ll.causal(diagonal=1), UNLIKE),
        (ll.dilated(2, 1, 1), UNLIKE),
        (ll.anchors([0, 3]), UNLIKE),
        (ll.padding([2, 5]), UNLIKE),
        (ll.padding([2, 5], side="left"), UNLIKE),
        (
            ll.blocks(torch.tensor([[[True, False]], [[False, True]], [[True, True]]]), (8, 5)),
            ALIKE,
        ),
        (ll.documents([2, 3], [4, 2], inside=ll.window(1)), ALIKE),
        (as_mask(torch.arange(30).view(5, 6) % 7 < 4), ALIKE),
    ],
)
def test_a_mask_inside_documents_applies_to_each_as_if_it_were_alone(
    inside: Mask, lengths: tuple[list[int], list[int]]
) -> None:
    alone = [inside.dense(i, j, b=2, h=3) for i, j in zip(*lengths, strict=True)]
    expected = torch.zeros(2, 3, *map(sum, lengths), dtype=torch.bool)
    row = column = 0
    for dense in alone:
        i, j = dense.shape[2:]
        expected[:, :, row : row + i, column : column + j] = dense
        row, column = row + i, column + j
    packed = ll.documents(*lengths, inside=inside)
    assert torch.equal(packed.dense(row, column, b=2, h=3), expected)


def test_padding_on_either_side() -> None:
    assert rows(ll.padding([3, 2]), 1, 3, b=2) == ["xx."]
    assert rows(ll.padding([3, 2], side="left"), 1, 3, b=2) == [".xx"]


def test_blocks_cover_a_ragged_edge() -> None:
    assert rows(ll.blocks([[True, False], [True, True]], 2), 3) == ["xx.", "xx.", "xxx"]
    by_head = torch.tensor([[[True]], [[False]]])
    assert rows(ll.blocks(by_head, 4), 2, h=2) == ["..", ".."]


def test_anchors_see_and_are_seen_by_all() -> None:
    assert rows(ll.anchors(1), 3) == [".x.", "xxx", ".x."]
    assert rows(ll.anchors([2]), 1, 3) == ["xxx"]


def test_masks_combine_with_each_other_and_with_tensors() -> None:
    diagonal = torch.eye(3, dtype=torch.bool)
    assert rows(ll.causal() & ll.window(1, 1), 3) == ["x..", "xx.", ".xx"]
    assert rows(ll.window(0) | ll.anchors(0), 3) == ["xxx", "xx.", "x.x"]
    assert rows(ll.causal() & diagonal, 3) == ["x..", ".x.", "..x"]
    assert rows(diagonal | ll.anchors(0), 3) == ["xxx", "xx.", "x.x"]


NAMED = [
    ll.causal(),
    ll.causal(diagonal=1),
    ll.window(2),
    ll.window(None, 1),
    ll.window(None, None),
    Band(2, 1, diagonal=-1),
    ll.dilated(2),
    ll.dilated(3, left=1, right=0),
    ll.padding([3, 5]),
    ll.padding([3, 5], side="left"),
    ll.documents([1, 3]),
    ll.documents([1, 3], [3, 2]),
    ll.documents([1, 3], [3, 2], inside=ll.padding([1, 2], side="left")),
    ll.documents([2, 2], inside=ll.causal() & torch.tensor([[True, False], [True, True]])),
    ll.blocks([[True, False, True]], (4, 2)),
    ll.blocks(torch.tensor([[[True]], [[False]], [[True]]]), 5),
    ll.anchors([]),
    ll.anchors([3, 0]),
    ll.causal() & ll.window(2, 2),
    ll.padding([3, 5], side="left") & (ll.anchors(1) | ll.dilated(2)),
    torch.tensor([True, False, True, True, False]) | ll.causal(),
    ll.without([]),
    ll.without([(3, 1), (0, 2)]) & ll.causal(),
    ~ll.window(1) | ~(ll.causal() & ll.padding([3, 5])),
    ll.documents([1, 3], [3, 2], inside=~ll.causal() | ll.anchors(0)),
]


@pytest.mark.parametrize("mask", NAMED, ids=[mask.name() for mask in NAMED])
def test_the_name_of_a_mask_is_the_expression_that_makes_it(mask: Mask) -> None:
    makers = {name: getattr(ll, name) for name in ll.__all__}
    made = eval(mask.name(), makers | {"torch": torch, "Band": Band})
    assert made.name() == mask.name()
    keys = 4 if mask.natural_extent() == Extent(1, 1, 4, 4) else 5
    assert torch.equal(made.dense(4, keys, b=2, h=3), mask.dense(4, keys, b=2, h=3))


@pytest.mark.parametrize("mask", NAMED, ids=[mask.name() for mask in NAMED])
def test_a_mask_round_trips_through_json(mask: Mask) -> None:
    tensors: dict[str, torch.Tensor] = {}
    stored = json.loads(json.dumps(mask.to_json("m", tensors)))
    again = mask_from_json(stored, tensors)
    keys = 4 if mask.natural_extent() == Extent(1, 1, 4, 4) else 5
    assert again.name() == mask.name()
    assert torch.equal(again.dense(4, keys, b=2, h=3), mask.dense(4, keys, b=2, h=3))


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (3, "must be an object, found int"),
        ({}, "lacks 'kind'"),
        ({"kind": "no such"}, "of kind 'no such', expected one of anchors, and"),
        ({"kind": ["band"]}, "of kind"),
        ({"kind": "band", "left": 3, "right": "x", "diagonal": None}, "window right"),
        ({"kind": "band"}, "lacks 'diagonal'"),
        ({"kind": "dense", "tensor": "m"}, "names the tensor 'm', which is missing"),
        ({"kind": "and", "masks": []}, "must list masks"),
        ({"kind": "without", "pairs": [[1, -2]]}, "key of a pair"),
        ({"kind": "without", "pairs": 7}, "must be .query, key. pairs"),
        ({"kind": "padding", "lengths": [1], "side": "top"}, "padding side"),
    ],
)
def test_a_damaged_mask_is_named(stored: object, words: str, untyped: None) -> None:
    with pytest.raises(OptionError, match=words):
        mask_from_json(stored, {})
    nested: object = {"kind": "band", "left": 1, "right": 1, "diagonal": None}
    for _ in range(90):
        nested = {"kind": "not", "mask": {"kind": "or", "masks": [nested]}}
    with pytest.raises(OptionError, match="128 levels"):
        mask_from_json(nested, {})


def test_the_name_of_a_large_table_is_its_shape() -> None:
    table = torch.ones(4, 5, dtype=torch.bool)
    assert (table & ll.causal()).name() == "(bool tensor (4, 5) & causal())"
    assert ll.blocks(table, 16).name() == "blocks(bool tensor (4, 5), (16, 16))"


def test_documents_are_drawn_with_the_batch_and_heads_of_the_inner_mask() -> None:
    by_head = ll.blocks(torch.tensor([[[True]], [[False]]]), 2)
    drawing = ll.documents([1, 2], inside=ll.padding([1, 0]) & by_head).draw()
    assert drawing.splitlines()[1:] == ["■ · ·", "· ■ ·", "· ■ ·"]


def test_a_drawing_of_anchors_includes_the_last() -> None:
    assert len(str(ll.anchors(9)).splitlines()[1:]) == 10
    assert len(str(ll.anchors(0)).splitlines()[1:]) == 8
    assert len(str(ll.documents([4, 8]) & ll.anchors(9)).splitlines()[1:]) == 12


def test_a_large_mask_draws_itself_pooled() -> None:
    drawing = ll.causal().draw(128)
    lines = drawing.splitlines()
    assert "128 queries" in lines[0]
    assert len(lines) == 33
    assert lines[1].split().count("▒") == 1
    assert lines[-1].split() == ["■"] * 31 + ["▒"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ll.window(-1), "window left must be a whole number of at least 0, found -1"),
        (lambda: ll.window(2, -3), "window right must be"),
        (lambda: ll.window(1.5), "found 1.5"),
        (lambda: ll.dilated(0), "dilated step must be a whole number of at least 1"),
        (lambda: ll.anchors([-1]), "anchors token"),
        (lambda: ll.padding([1], side="top"), "padding side"),
        (lambda: ll.blocks([[True]], 0), "blocks size"),
        (lambda: ll.documents([2, -1]), "documents length"),
        (lambda: ll.window(float("nan")), "window left must be a whole number .* found nan"),
        (lambda: ll.window(float("inf")), "window left must be a whole number .* found inf"),
        (lambda: ll.window("a"), "window left must be a whole number .* found 'a'"),
        (lambda: ll.window(10**30), "window left must be a whole number of at most"),
        (lambda: ll.causal("a"), "causal diagonal must be a whole number .* found 'a'"),
        (lambda: ll.causal(1.5), "causal diagonal must be a whole number .* found 1.5"),
        (lambda: ll.causal(-(10**30)), "causal diagonal must be a whole number of at least"),
        (lambda: ll.dilated(None), "dilated step must be a whole number .* found None"),
        (lambda: ll.dilated(2**62, 5, 5), "dilated step must be a whole number of at most"),
        (lambda: ll.dilated(2**40, 2**40), "dilated left in keys must be a whole number of at"),
        (lambda: ll.documents(6), "each documents length must be a whole number .* found 6"),
        (lambda: ll.documents([2], 3), "each documents key length must be"),
        (lambda: ll.padding(3), "each padding length must be a whole number .* found 3"),
        (lambda: ll.padding(torch.tensor(3)), "each padding length must be"),
        (lambda: ll.padding(torch.ones(2, device="meta")), "each padding length must be"),
        (lambda: ll.padding([10**30]), "padding length must be a whole number of at most"),
        (lambda: ll.padding(torch.ones(2, 2).int()), r"padding length must be .* found \[1, 1\]"),
        (lambda: ll.anchors("a"), "anchors token must be a whole number .* found 'a'"),
        (lambda: ll.anchors(None), "each anchors token must be"),
        (lambda: ll.blocks([[True], [True, False]], 2), "blocks layout must be a tensor, or"),
        (lambda: ll.blocks("a", 2), "blocks layout must be a tensor, or"),
        (lambda: ll.blocks([[True]], (1, 2, 3)), r"blocks size must be one .* found \(1, 2, 3\)"),
        (lambda: ll.blocks([[True]], "a"), "blocks size must be one number or two"),
        (lambda: ll.blocks([[True]], None), "blocks size must be a whole number"),
        (lambda: ll.without([(1, -1)]), "key of a pair must be a whole number of at least 0"),
        (lambda: ll.without([(1, 2, 3)]), r"pairs must be \(query, key\) pairs"),
        (lambda: ll.without(3), r"pairs must be \(query, key\) pairs, found 3"),
        (
            lambda: ll.without(torch.ones(2, 2)),
            "pairs must be whole numbers of shape",
        ),
        (lambda: ll.alibi("a"), "alibi slopes must be a tensor, or"),
        (lambda: ll.alibi(None), "alibi slopes must be a tensor, or"),
        (lambda: ll.alibi(0), "alibi heads must be a whole number of at least 1, found 0"),
    ],
)
def test_a_wrong_option_is_named(make: object, words: str, untyped: None) -> None:
    with pytest.raises(OptionError, match=words):
        make()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (lambda: ll.documents([2, 3]), "sum to 5, expected i = 4"),
        (lambda: ll.documents([4], [5]), "sum to 5, expected j = 6"),
        (lambda: ll.padding([6, 6, 6]), "3 lengths, expected b = 2"),
        (lambda: ll.padding([7, 1]), "length of 7, expected at most j = 6"),
        (lambda: ll.anchors(6), "token 6, expected tokens below j = 6"),
        (lambda: ll.blocks(torch.ones(2, 2), 2), "2 x 2 blocks of 2 x 2, expected 2 x 3"),
        (lambda: torch.ones(4, 5, dtype=torch.bool), r"\(4, 5\), expected one that broadcasts"),
        (lambda: torch.ones(3, 1, 4, 6, dtype=torch.bool), r"\(b, h, i, j\) = \(2, 4, 4, 6\)"),
        (lambda: torch.ones(1, 1, 1, 4, 6, dtype=torch.bool), "at most 4 axes"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: object, words: str) -> None:
    q, k = torch.randn(2, 4, 4, 8), torch.randn(2, 4, 6, 8)
    with pytest.raises(ShapeError, match=words):
        ll.attend(q, k, k, mask=mask())


@pytest.mark.parametrize(
    "mask",
    [
        lambda far: far,
        lambda far: ll.causal() & far,
        lambda far: ll.documents([4], inside=ll.window(2) | far),
        lambda far: ll.blocks(far, 1),
    ],
)
def test_a_mask_on_another_device_is_refused(
    mask: Callable[[torch.Tensor], Mask | torch.Tensor],
) -> None:
    x = torch.randn(1, 1, 4, 8)
    with pytest.raises(DeviceError, match="mask is on meta, expected cpu as query"):
        ll.attend(x, x, x, mask=mask(torch.ones(4, 4, dtype=torch.bool, device="meta")))


def test_the_complement_of_a_mask_is_a_mask() -> None:
    assert rows(~ll.causal(), 3) == [".xx", "..x", "..."]
    assert rows(ll.window(1, 1) & ~ll.causal(), 3) == [".x.", "..x", "..."]
    assert rows(~(ll.causal() | ll.anchors(2)), 3) == [".x.", "...", "..."]
    assert rows(~ll.documents([1, 2]), 3) == [".xx", "x..", "x.."]
    assert rows(ll.documents([1, 2], inside=~ll.causal()), 3) == ["...", "..x", "..."]
    assert rows(~ll.padding([1, 2]), 1, 3, b=2) == ["..x"]
    assert ~~ll.causal() == ll.causal()


def test_single_links_are_cut() -> None:
    assert rows(ll.without([(2, 0), (0, 1)]), 3) == ["x.x", "xxx", ".xx"]
    assert rows(ll.causal() & ll.without([(2, 0), (0, 1)]), 3) == ["x..", "xx.", ".xx"]
    assert rows(~ll.without(torch.tensor([[2, 0], [2, 0]])), 3) == ["...", "...", "x.."]
    assert rows(ll.without([]), 2) == ["xx", "xx"]
    assert rows(ll.documents([1, 2], inside=ll.without([(0, 0)])), 3) == ["...", "..x", ".xx"]


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_a_cut_link_has_no_weight(impl: str) -> None:
    """600 keys in several tiles; links at the edges of tiles, and rows that lose all of theirs."""
    x = torch.randn(1, 2, 600, 16)
    cut = [(599, 0), (300, 299), (300, 256), (255, 255), (0, 0), (128, 127), (599, 599)]
    mask = ll.causal() & ll.without(cut)
    table = torch.ones(600, 600, dtype=torch.bool).tril()
    table[tuple(torch.tensor(cut).T)] = False
    expected = ll.attend(x, x, x, mask=table, impl=impl)
    assert torch.allclose(ll.attend(x, x, x, mask=mask, impl=impl), expected, atol=1e-6)
    only = ll.attend(x, x, x, mask=~ll.without(cut), impl=impl)
    assert torch.allclose(only[:, :, 255], x[:, :, 255], atol=1e-6)
    assert not only[:, :, 1].any()


def test_chains_may_be_long_and_nesting_has_a_limit() -> None:
    chain = ll.window(3)
    for n in range(3000):
        chain = chain & ll.without([(n % 7, n % 5)])
    x = torch.randn(1, 1, 8, 4)
    assert torch.isfinite(ll.attend(x, x, x, mask=chain)).all()
    deep = reduce(lambda mask, _: ~(mask & ll.window(3)), range(63), ll.causal())
    with pytest.raises(OptionError, match="at most 128 levels deep, found 129"):
        _ = ~(~(deep | ll.window(2)) | ll.window(1))
    assert torch.isfinite(ll.attend(x, x, x, mask=deep)).all()


def test_a_mask_draws_itself_in_a_notebook() -> None:
    class Printer:
        def text(self, words: str) -> None:
            self.words = words

    mask = ll.causal() & ll.without([(3, 1)])
    printer = Printer()
    mask._repr_pretty_(printer, False)
    assert printer.words == str(mask) == mask.draw()
    assert "■ · ■ ■ · · · ·" in mask._repr_html_()
    assert "<pre" in mask._repr_html_()
    assert len((ll.without([(8000, 5)]) & ll.causal()).draw().splitlines()) == 33


def test_numbers_of_numpy_and_tensors_of_one_are_whole_numbers(untyped: None) -> None:
    limits = np.int64(1), torch.tensor(1)
    assert [ll.window(limit) for limit in limits] == [ll.window(1)] * 2
    assert ll.anchors(torch.tensor([2, 0])) == ll.anchors([0, 2])


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_a_bool_tensor_inside_documents_applies_to_each(impl: str) -> None:
    inside = torch.tensor([[True, False, True], [False, True, False], [True, True, False]])
    assert rows(ll.documents([3, 3], inside=inside), 6) == [
        "x.x...", ".x....", "xx....", "...x.x", "....x.", "...xx."
    ]  # fmt: skip
    x = torch.randn(6, 2, 8)
    packed = ll.attend_packed(x, x, x, [3, 3], mask=inside, impl=impl)
    alone = ll.attend_packed(x[3:], x[3:], x[3:], [3], mask=inside, impl=impl)
    assert torch.allclose(packed[3:], alone, atol=1e-6)
    with pytest.raises(ShapeError, match=r"mask has shape \(3, 3\), .* = \(1, 2, 2, 2\)"):
        ll.attend_packed(x, x, x, [2, 4], mask=inside, impl=impl)
    with pytest.raises(DtypeError, match="go into bias="):
        ll.attend_packed(x, x, x, [3, 3], mask=inside.float())


def test_a_mask_of_numbers_is_refused_in_favour_of_bias() -> None:
    x = torch.randn(1, 1, 4, 8)
    with pytest.raises(DtypeError, match="go into bias="):
        ll.attend(x, x, x, mask=torch.zeros(4, 4))


def test_documents_of_different_count_are_refused() -> None:
    with pytest.raises(LimelightError, match="2 key lengths, expected 1"):
        ll.documents([3], [1, 2])


@pytest.mark.parametrize(
    ("kind", "code", "why"),
    [
        ("band", 99, "but Band has kind 'band' and code 1"),
        ("new", 11, "but Without has kind 'without' and code 11"),
        ("new", None, "expected both"),
    ],
)
def test_a_rule_cannot_take_the_kind_or_the_code_of_another(
    kind: str, code: int | None, why: str
) -> None:
    with pytest.raises(TypeError, match=f"New has kind '{kind}' and code {code}, {why}"):

        class New(Mask, kind=kind, code=code):
            pass

    assert "new" not in Mask.kinds
