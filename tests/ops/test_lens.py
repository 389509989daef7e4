"""The lens sees exactly what the dense weights hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lens_checks import FULL, MASKS, check_seen, tensors

import limelight as ll
from limelight.errors import OptionError
from limelight.ops.backends import tiled
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.mask import Mask
from limelight.ops.masks.region import Extent, Region


@pytest.fixture(params=["native", "one tile", "small tiles"])
def impl(request, monkeypatch) -> str:
    """The `impl` to request: the kernels, or PyTorch's form in one tile or in many."""
    if request.param == "native":
        return "native"
    monkeypatch.setattr(tiled, "TILE", 600 if request.param == "small tiles" else 1 << 21)
    return "tiled"


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_the_statistics_under_every_mask(mask, impl):
    q, k, v = tensors()
    out, seen = ll.attend(q, k, v, mask=mask, lens=FULL, impl=impl)
    check_seen(seen, q, k, v, mask=mask)
    torch.testing.assert_close(out, ll.attend(q, k, v, mask=mask, impl="reference"))


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0, "scale": 0.9},
        {"bias": torch.randn(4, 19, 23)},
        {"bias": torch.randn(2, 1, 1, 23)},
        {"bias": ll.alibi(4), "mask": ll.causal()},
        {"scale": 8.0, "mask": ll.causal()},
    ],
    ids=["softcap", "bias", "bias a batch row", "alibi", "sharp"],
)
def test_the_statistics_with_every_option(options, impl):
    q, k, v = tensors()
    _, seen = ll.attend(q, k, v, lens=FULL, impl=impl, **options)
    check_seen(seen, q, k, v, tolerance=2e-5, **options)


@pytest.mark.parametrize("mask", [None, ll.causal()], ids=["full", "causal"])
@pytest.mark.parametrize("growth", [1.0, 4.0, 12.0])
def test_the_statistics_over_many_tiles_of_keys(mask, growth):
    """Later keys exceed the running maximum, by little and by far, and the last tile is short."""
    q, k, v = tensors(b=1, i=150, j=1100, d=16, e=16)
    k[:, :, 512:768] *= growth
    _, seen = ll.attend(q, k, v, mask=mask, lens=FULL, impl="native")
    check_seen(seen, q, k, v, tolerance=1e-5 * growth, mask=mask)


def test_sums_over_queries_do_not_depend_on_threads():
    q, k, v = tensors(b=1, i=700, j=700, d=16, e=16)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(ll.attend(q, k, v, mask=ll.causal(), lens=FULL, impl="native")[1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].received, found[1].received)
    assert torch.equal(found[0].map.mean, found[1].map.mean)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_statistics_in_every_precision(dtype):
    q, k, v = tensors(dtype=dtype)
    out, seen = ll.attend(q, k, v, mask=ll.causal(), lens=FULL)
    check_seen(seen, q, k, v, tolerance=1e-12 if dtype == torch.float64 else 1e-5, mask=ll.causal())
    assert out.dtype == dtype
    assert seen.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@settings(max_examples=12, deadline=None)
@given(
    b=st.integers(1, 2), g=st.integers(1, 2), group=st.integers(1, 3),
    i=st.integers(1, 20), j=st.integers(3, 20), d=st.integers(1, 9), budget=st.integers(1, 3000),
    causal=st.booleans(),
)  # fmt: skip
def test_the_statistics_in_any_shape(b, g, group, i, j, d, budget, causal):
    q, k, v = tensors(b, g * group, g, i, j, d, 5, torch.float64)
    options = {"mask": ll.causal()} if causal else {}
    before, tiled.TILE = tiled.TILE, budget
    try:
        _, seen = ll.attend(q, k, v, lens=FULL, **options)
    finally:
        tiled.TILE = before
    check_seen(seen, q, k, v, tolerance=1e-11, **options)


@pytest.mark.parametrize(("b", "i", "j"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_sizes_of_zero_give_tensors_of_those_sizes(b, i, j, impl):
    q, k, v = tensors(b=b, i=i, j=j)
    lens = replace(FULL, columns=())
    out, seen = ll.attend(q, k, v, lens=lens, impl=impl)
    assert out.shape == (b, 4, i, 6)
    assert seen.dense().shape == (b, 4, i, j)
    assert seen.received.shape == (b, 4, j)
    assert seen.top.indices.shape == (b, 4, i, 5)
    assert seen.map.mean.shape == (b, 4, min(7, max(i, 1)), min(5, max(j, 1)))
    assert (seen.map.mean == 0).all()
    if not j:
        assert (seen.lse == -torch.inf).all()


@pytest.mark.parametrize("mask", [m for m in MASKS.values() if isinstance(m, Mask)],
                         ids=[n for n, m in MASKS.items() if isinstance(m, Mask)])  # fmt: skip
def test_a_part_of_a_mask_is_the_part_of_its_dense_form(mask):
    extent = Extent(2, 4, 19, 23)
    whole = mask.dense(19, 23, b=2, h=4)
    rows = torch.tensor([18, 0, 7, 7, 4])
    region = Region.at(extent, slice(1, 2), slice(2, 4), rows, slice(6, 15), rows.device)
    part = mask.allowed(region).expand(1, 2, 5, 9)
    assert torch.equal(part, whole[1:2, 2:4][:, :, rows, 6:15])
    chosen = mask.part(heads=[3, 0], row=1).dense(19, 23, b=1, h=2)
    assert torch.equal(chosen, whole[1:, [3, 0]])


def test_the_gradient_is_that_of_the_plain_call():
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float64))
    out, _ = ll.attend(q, k, v, mask=ll.causal(), lens=FULL)
    with_lens = torch.autograd.grad(out.square().sum(), (q, k, v))
    plain = torch.autograd.grad(ll.attend(q, k, v, mask=ll.causal()).square().sum(), (q, k, v))
    for found, expected in zip(with_lens, plain, strict=True):
        torch.testing.assert_close(found, expected)


def test_statistics_are_of_the_weights_before_dropout():
    q, k, v = tensors()
    torch.manual_seed(3)
    out, seen = ll.attend(q, k, v, dropout=0.4, lens=FULL)
    check_seen(seen, q, k, v)
    torch.manual_seed(3)
    torch.testing.assert_close(out, ll.attend(q, k, v, dropout=0.4))


def test_a_band_wider_than_any_number_is_the_whole_row():
    q, k, v = tensors()
    _, seen = ll.attend(q, k, v, lens=Lens(band=2**63 - 1))
    torch.testing.assert_close(seen.band, torch.ones(2, 4, 19))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lens(top=-1), "top must be a whole number of at least 0, found -1"),
        (lambda: Lens(top=True), "top must be a whole number"),
        (lambda: Lens(entropy=1), "entropy must be True or False, found 1"),
        (lambda: Lens(map=128), r"map must be \(rows, columns\), found 128"),
        (lambda: Lens(map=(0, 4)), "map size must be a whole number of at least 1, found 0"),
        (lambda: Lens(columns=3), "columns must be a sequence of keys, found 3"),
        (lambda: Lens(columns=(1.5,)), "columns must be whole numbers, found 1.5"),
        (lambda: Lens(columns=("a",)), "columns must be whole numbers, found 'a'"),
        (lambda: Lens(columns=(None,)), "columns must be whole numbers, found None"),
        (lambda: Lens(band=-2), "band must be a whole number of at least 0, found -2"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_a_wrong_option_of_a_lens_is_named(make, words):
    with pytest.raises(OptionError, match=words):
        make()


@pytest.mark.usefixtures("untyped")
def test_a_lens_or_an_index_that_does_not_fit_the_call_is_refused():
    q, k, v = tensors()
    with pytest.raises(OptionError, match="columns names key 23, expected one of the j = 23 keys"):
        ll.attend(q, k, v, lens=Lens(columns=(23,)))
    with pytest.raises(OptionError, match="lens must be a Lens, found int"):
        ll.attend(q, k, v, lens=8)
    _, seen = ll.attend(q, k, v, lens=Lens())
    with pytest.raises(
        OptionError, match=r"entropy was not recorded: Lens\(\) does not request it"
    ):
        _ = seen.entropy
    with pytest.raises(OptionError, match="rows names query 19"):
        seen.rows([19])
    with pytest.raises(OptionError, match="heads names head 4, expected 0 to 3"):
        seen.heads([4])
    for rows in ([0.5], [True, False], torch.tensor([True, False]), [None], ["it"], 3, [[1]]):
        with pytest.raises(OptionError, match="rows must be a list of whole numbers"):
            seen.rows(rows)
    for columns in ([0, 1], slice(0, 4, 2), 3):
        with pytest.raises(OptionError, match="columns must be a run of keys"):
            seen.tile(slice(0, 2), columns)
    assert seen.rows([]).shape == (2, 4, 0, 23)
    assert seen.rows(np.array([1, 2])).shape == (2, 4, 2, 23)


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_a_key_without_weight_is_no_link(impl):
    q, k = torch.full((1, 1, 1, 1), 200.0), torch.tensor([1.0, 0.0, -1.0]).view(1, 1, 3, 1)
    _, seen = ll.attend(q, k, k, scale=1.0, lens=ll.Lens(top=2, value_top=2), impl=impl)
    for links in (seen.top, seen.value_top):
        assert links.indices.tolist() == [[[[0, -1]]]]
        assert links.weights.tolist() == [[[[1.0, 0.0]]]]


def test_a_link_that_fades_to_nothing_is_dropped():
    """The first keys are strong until the last one comes, tiles later."""
    k = torch.zeros(1, 1, 2000, 1)
    k[..., -1, 0] = 300
    _, seen = ll.attend(
        torch.ones(1, 1, 40, 1), k, k, scale=1.0, lens=ll.Lens(top=3), impl="native"
    )
    assert (seen.top.indices == torch.tensor([1999, -1, -1])).all()
