"""The lens sees exactly what the dense weights hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from limelight.errors import OptionError
from limelight.ops.backends import reference, tiled
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.lens.statistics import Collector
from limelight.ops.masks.mask import Mask
from limelight.ops.masks.region import Extent, Region
from limelight.ops.problem import check_problem

FULL = Lens(
    top=5,
    entropy=True,
    distance=True,
    columns=(0, 2, -1),
    band=3,
    received=True,
    map=(7, 5),
    value_top=4,
)


def sizes(b=2, h=4, g=2, i=19, j=23, d=8, e=6, dtype=torch.float32):
    torch.manual_seed(b + h + i + j)
    return (
        torch.randn(b, h, i, d, dtype=torch.float64).to(dtype),
        torch.randn(b, g, j, d, dtype=torch.float64).to(dtype),
        torch.randn(b, g, j, e, dtype=torch.float64).to(dtype),
    )


def dense64(q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, Tensor]:
    """Scores and weights of the specification, in float64."""
    if isinstance(options.get("bias"), Tensor):
        options["bias"] = options["bias"].double()
    problem = check_problem(q.double(), k.double(), v.double(), **options)
    scores = reference.scores(problem)
    return scores, reference.normalise(scores)[0]


def check_pooled(pooled, dense: np.ndarray, cells: tuple[int, int], tolerance: float) -> None:
    b, h, rows, columns = dense.shape
    cells = (min(cells[0], rows), min(cells[1], columns))
    assert pooled.mean.shape == pooled.max.shape == (b, h, *cells)
    row_cell = np.arange(rows) * cells[0] // max(rows, 1)
    column_cell = np.arange(columns) * cells[1] // max(columns, 1)
    for r in range(cells[0]):
        for c in range(cells[1]):
            cell = dense[:, :, row_cell == r][..., column_cell == c].reshape(b, h, -1)
            np.testing.assert_allclose(pooled.mean[:, :, r, c], cell.mean(-1), atol=tolerance)
            np.testing.assert_allclose(pooled.max[:, :, r, c], cell.max(-1), atol=tolerance)


def check_links(links, dense: Tensor, k: int, tolerance: float) -> None:
    """The k largest of each row, largest first, each with its own place.

    A link without weight is no link: −1 stands where fewer than k keys have a weight. Weights too
    small to be normal numbers may be nothing or not, as an implementation rounds.
    """
    b, h, i, j = dense.shape
    assert links.weights.shape == links.indices.shape == (b, h, i, k)
    assert links.indices.dtype == torch.int64
    kept = min(k, j)
    best = torch.zeros(b, h, i, k, dtype=torch.float64)
    best[..., :kept] = dense.topk(kept).values
    torch.testing.assert_close(links.weights.double(), best, atol=tolerance, rtol=0)
    there = links.indices >= 0
    assert torch.equal(there, links.weights > 0)
    assert (links.weights.diff(dim=-1) <= 0).all()
    count = there.sum(-1)
    assert (count >= (dense >= torch.finfo(links.weights.dtype).tiny).sum(-1).clamp_max(k)).all()
    assert (count <= (dense > 0).sum(-1).clamp_max(k)).all()
    if j:
        at = dense.gather(-1, links.indices.clamp_min(0))
        torch.testing.assert_close(
            torch.where(there, at, 0.0), links.weights.double(), atol=tolerance, rtol=0
        )
    for row in links.indices.reshape(-1, k).tolist():
        real = [index for index in row if index >= 0]
        assert len(set(real)) == len(real)


def check_seen(seen: Seen, q: Tensor, k: Tensor, v: Tensor, tolerance=1e-5, **options) -> None:
    """Every statistic of the full lens against its formula on the float64 dense weights."""
    scores, weights = dense64(q, k, v, **options)
    b, h, i, j = weights.shape
    lens = seen.lens

    def close(found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
        torch.testing.assert_close(found.double(), expected, atol=tolerance * scale, rtol=tolerance)

    close(seen.lse, torch.logsumexp(scores, -1))
    close(seen.max_score, scores.amax(-1) if j else torch.full((b, h, i), -torch.inf).double())
    logs = torch.where(weights > 0, weights.log(), 0.0)
    close(seen.entropy, -(weights * logs).sum(-1))
    away = (torch.arange(i)[:, None] + (j - i) - torch.arange(j)).abs()
    close(seen.distance, (weights * away).sum(-1), scale=max(j, 1))
    close(seen.columns, weights[..., list(lens.columns)])
    close(seen.band, (weights * (away <= lens.band)).sum(-1))
    close(seen.received, weights.sum(-2))
    check_links(seen.top, weights, lens.top, tolerance)
    check_pooled(seen.map, weights.numpy(), lens.map, tolerance)
    norms = v.double().norm(dim=-1).repeat_interleave(h // v.shape[1], 1)[:, :, None]
    check_links(seen.value_top, weights * norms, lens.value_top, tolerance * 4)
    close(seen.dense(), weights)


MASKS = {
    "none": None,
    "causal": ll.causal(),
    "upper left": ll.causal(0),
    "window": ll.window(4, 2),
    "dilated": ll.dilated(3, 2, 1),
    "padding": ll.padding([5, 23]),
    "left padding": ll.padding([5, 23], side="left") & ll.causal(),
    "empty rows": ll.padding([0, 3], side="left") & ll.causal(),
    "documents": ll.documents([4, 0, 15], [7, 0, 16]),
    "causal documents": ll.documents([4, 15], [7, 16], inside=ll.causal() & ll.window(3)),
    "anchors": ll.anchors([0, 9]) | ll.window(2),
    "blocks": ll.blocks(
        torch.rand(4, 4, 3, generator=torch.Generator().manual_seed(1)) > 0.4, (5, 8)
    ),
    "dense": torch.rand(2, 1, 19, 23, generator=torch.Generator().manual_seed(2)) > 0.5,
    "dense by head": torch.rand(4, 19, 1, generator=torch.Generator().manual_seed(3)) > 0.3,
}


@pytest.fixture(params=["native", "one tile", "small tiles"])
def form(request, monkeypatch) -> str:
    """The `impl` to ask for: the kernels, or PyTorch in one tile or in many."""
    if request.param == "native":
        return "native"
    monkeypatch.setattr(tiled, "TILE", 600 if request.param == "small tiles" else 1 << 21)
    return "tiled"


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_every_mask(mask, form):
    q, k, v = sizes()
    out, seen = ll.attend(q, k, v, mask=mask, lens=FULL, impl=form)
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
def test_every_option(options, form):
    q, k, v = sizes()
    _, seen = ll.attend(q, k, v, lens=FULL, impl=form, **options)
    check_seen(seen, q, k, v, tolerance=2e-5, **options)


@pytest.mark.parametrize("mask", [None, ll.causal()], ids=["full", "causal"])
@pytest.mark.parametrize("growth", [1.0, 4.0, 12.0])
def test_many_tiles_of_keys(mask, growth):
    """Also where later keys overtop all before them, little and far, and a last tile is short."""
    q, k, v = sizes(b=1, i=150, j=1100, d=16, e=16)
    k[:, :, 512:768] *= growth
    _, seen = ll.attend(q, k, v, mask=mask, lens=FULL, impl="native")
    check_seen(seen, q, k, v, tolerance=1e-5 * growth, mask=mask)


def test_sums_over_queries_do_not_depend_on_threads():
    q, k, v = sizes(b=1, i=700, j=700, d=16, e=16)
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
def test_every_precision(dtype):
    q, k, v = sizes(dtype=dtype)
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
def test_any_shape(b, g, group, i, j, d, budget, causal):
    q, k, v = sizes(b, g * group, g, i, j, d, 5, torch.float64)
    options = {"mask": ll.causal()} if causal else {}
    before, tiled.TILE = tiled.TILE, budget
    try:
        _, seen = ll.attend(q, k, v, lens=FULL, **options)
    finally:
        tiled.TILE = before
    check_seen(seen, q, k, v, tolerance=1e-11, **options)


@pytest.mark.parametrize(("b", "i", "j"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_sizes_of_zero(b, i, j, form):
    q, k, v = sizes(b=b, i=i, j=j)
    lens = replace(FULL, columns=())
    out, seen = ll.attend(q, k, v, lens=lens, impl=form)
    assert out.shape == (b, 4, i, 6)
    assert seen.dense().shape == (b, 4, i, j)
    assert seen.received.shape == (b, 4, j)
    assert seen.top.indices.shape == (b, 4, i, 5)
    assert seen.map.mean.shape == (b, 4, min(7, max(i, 1)), min(5, max(j, 1)))
    assert (seen.map.mean == 0).all()
    assert (seen.lse == -torch.inf).all() or j


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


def test_drill_down_equals_the_dense_weights():
    q, k, v = sizes()
    bias = torch.randn(4, 19, 23)
    _, seen = ll.attend(q, k, v, mask=ll.causal(), bias=bias, lens=FULL)
    _, weights = dense64(q, k, v, mask=ll.causal(), bias=bias)

    def close(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)

    close(seen.rows([5, -1, 5]), weights[:, :, [5, 18, 5]])
    close(seen.rows(slice(3, 9, 2)), weights[:, :, 3:9:2])
    close(seen.tile(rows=slice(2, 9), columns=slice(-8, None)), weights[:, :, 2:9, -8:])
    some = seen.heads([3, 0])
    close(some.dense(), weights[:, [3, 0]])
    assert torch.equal(some.top.indices, seen.top.indices[:, [3, 0]])
    assert torch.equal(some.received, seen.received[:, [3, 0]])
    one = some.batch_row(1)
    close(one.dense(), weights[1:, [3, 0]])
    assert torch.equal(one.map.max, some.map.max[1:])


def test_dense_refuses_beyond_its_limit():
    q, k, v = sizes()
    _, seen = ll.attend(q, k, v, lens=Lens())
    with pytest.raises(OptionError, match=r"need 13.7 KB, more than limit = 1000 bytes; .*rows"):
        seen.dense(limit=1000)
    assert seen.dense(limit=2 * 4 * 19 * 23 * 4).shape == (2, 4, 19, 23)


def test_nothing_quadratic_is_made(monkeypatch):
    """However long the text, no tile has more than its share of the weights."""
    sizes: list[int] = []
    add = Collector.add

    def watch(sheet, tile):
        sizes.append(tile.weights.numel())
        add(sheet, tile)

    monkeypatch.setattr(Collector, "add", watch)
    monkeypatch.setattr(tiled, "TILE", 1 << 13)
    q = torch.randn(1, 2, 512, 4)
    ll.attend(q, q, q, mask=ll.causal(), lens=Lens(top=2, map=(8, 8)), impl="tiled")
    assert max(sizes) <= 1 << 13
    assert sum(sizes) == 2 * 512 * 512


def test_a_seen_keeps_references_or_nothing():
    q, k, v = sizes()
    q.requires_grad_()
    out, seen = ll.attend(q, k, v, lens=Lens(top=2))
    assert seen.source.problem.query.data_ptr() == q.data_ptr()
    assert not seen.source.problem.query.requires_grad
    assert out.requires_grad
    assert not seen.top.weights.requires_grad
    _, seen = ll.attend(q, k, v, lens=Lens(top=2, keep=False))
    assert seen.source is None
    with pytest.raises(OptionError, match="keep=False"):
        seen.rows([0])


def test_the_gradient_is_that_of_the_plain_call():
    q, k, v = (x.requires_grad_() for x in sizes(dtype=torch.float64))
    out, _ = ll.attend(q, k, v, mask=ll.causal(), lens=FULL)
    with_lens = torch.autograd.grad(out.square().sum(), (q, k, v))
    plain = torch.autograd.grad(ll.attend(q, k, v, mask=ll.causal()).square().sum(), (q, k, v))
    for one, two in zip(with_lens, plain, strict=True):
        torch.testing.assert_close(one, two)


def test_statistics_are_of_the_weights_before_dropout():
    q, k, v = sizes()
    torch.manual_seed(3)
    out, seen = ll.attend(q, k, v, dropout=0.4, lens=FULL)
    check_seen(seen, q, k, v)
    torch.manual_seed(3)
    torch.testing.assert_close(out, ll.attend(q, k, v, dropout=0.4))


def test_a_seen_stands_for_its_dense_weights():
    q, k, v = sizes()
    _, seen = ll.attend(q, k, v, lens=Lens())
    weights = seen.dense()
    assert seen.shape == weights.shape
    assert len(seen) == 2
    assert torch.equal(torch.as_tensor(seen), weights)
    np.testing.assert_array_equal(np.asarray(seen), weights.numpy())
    assert torch.equal(torch.stack([seen, seen])[1], weights)
    assert torch.equal(seen[0, 3, :, 2:4], weights[0, 3, :, 2:4])
    assert torch.equal(seen[-1, -2], weights[-1, -2])
    assert torch.equal(seen[:, 1], weights[:, 1])
    assert torch.equal(seen[1], weights[1])
    assert all(map(torch.equal, seen, weights))
    with pytest.raises(IndexError, match="index 2 is out of bounds for 2"):
        _ = seen[2]
    assert torch.equal(seen.mean(dim=1), weights.mean(dim=1))
    assert torch.equal(2 * seen + seen, 3 * weights)
    assert torch.equal(seen @ seen.mT, weights @ weights.mT)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = seen.nonsense


def test_weights_take_the_operators_of_tensors_and_the_functions_of_numpy():
    weights = torch.rand(1, 2, 3, 4) + 0.1
    one = Seen.of_weights(weights)
    array = weights.numpy()
    for found, expected in (
        (-one, -weights), (+one, weights), (abs(one), weights),
        (one**2, weights**2), (2**one, 2**weights), (1 / one, 1 / weights),
        (one // 0.3, weights // 0.3), (1 // one, 1 // weights),
        (one % 0.3, weights % 0.3), (1 % one, 1 % weights),
        (one == weights[0, 0, 0, 0], weights == weights[0, 0, 0, 0]),
        (one != 0, weights != 0), (weights.mT @ one, weights.mT @ weights),
        ((one > 0.5) & (one < 0.9), (weights > 0.5) & (weights < 0.9)),
    ):  # fmt: skip
        assert torch.equal(found, expected)
    for found, expected in (
        (np.mean(one), array.mean()), (np.mean(one, axis=1), array.mean(axis=1)),
        (np.stack([one, one]), np.stack([array, array])), (np.exp(one), np.exp(array)),
        (array + one, array + array), (np.float64(2) * one, np.float64(2) * array),
        (np.add.reduce(one, axis=3), array.sum(3)), (np.einsum("bhij->hj", one), array.sum((0, 2))),
    ):  # fmt: skip
        assert not isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len({one, one}) == 1


def test_a_seen_is_found_in_a_list():
    """Where == gave a tensor, `in` raised: its truth is ambiguous."""
    one, two = (Seen.of_weights(torch.rand(1, 2, 3, 4)) for _ in range(2))
    assert one in [None, "a", False, two, one]
    assert one not in [None, "a", True, two]
    assert [two, one].index(one) == 1


def test_a_band_wider_than_any_number_is_the_whole_row():
    q, k, v = sizes()
    _, seen = ll.attend(q, k, v, lens=Lens(band=2**63 - 1))
    torch.testing.assert_close(seen.band, torch.ones(2, 4, 19))


def test_weights_are_not_changed_in_place():
    one = Seen.of_weights(torch.rand(1, 2, 3, 4))

    def put() -> None:
        one[0, 0] = 0

    for change in (
        put,
        lambda: one.zero_(),
        lambda: torch.add(one.dense(), 1, out=one),
        lambda: np.add(one, 1, out=one),
    ):
        with pytest.raises(OptionError, match=r"cannot be changed in place.*take dense\(\)"):
            change()


def test_seen_of_weights_is_seen_of_the_call():
    q, k, v = sizes(dtype=torch.float64)
    _, weights = dense64(q, k, v, mask=ll.causal())
    seen = Seen.of_weights(weights, FULL, value=v)
    _, live = ll.attend(q, k, v, mask=ll.causal(), lens=FULL)
    for name in ("entropy", "distance", "columns", "band", "received", "top", "value_top", "map"):
        torch.testing.assert_close(getattr(seen, name), getattr(live, name))
    assert torch.equal(seen.rows([3]), weights[:, :, 3:4])
    with pytest.raises(OptionError, match="no value was given"):
        Seen.of_weights(weights, Lens(value_top=1))


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
def test_a_wrong_lens_is_refused_in_words(make, words):
    with pytest.raises(OptionError, match=words):
        make()


@pytest.mark.usefixtures("untyped")
def test_a_lens_that_does_not_fit_is_refused_before_anything_runs():
    q, k, v = sizes()
    with pytest.raises(OptionError, match="columns names key 23, expected one of the j = 23 keys"):
        ll.attend(q, k, v, lens=Lens(columns=(23,)))
    with pytest.raises(OptionError, match="lens must be a Lens, found int"):
        ll.attend(q, k, v, lens=8)
    _, seen = ll.attend(q, k, v, lens=Lens())
    with pytest.raises(
        OptionError, match=r"entropy was not recorded: Lens\(\) does not ask for it"
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


def test_the_limit_is_told_as_it_is_documented():
    weights = torch.zeros(1).expand(1, 300, 1000, 1000)
    seen = Seen(Extent(1, 300, 1000, 1000), Lens(), Statistics(weights[..., 0]), None)
    with pytest.raises(OptionError, match=r"need 1.1 GB, more than limit = 1.0 GB"):
        seen.dense()


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


@pytest.mark.parametrize("factor", [1, 10, 100, 1000])
def test_recomputed_weights_stay_exact_where_scores_are_large(factor):
    q, k = torch.randn(1, 2, 40, 64) * factor, torch.randn(1, 2, 300, 64)
    _, seen = ll.attend(q, k, k, mask=ll.window(90, 5), lens=ll.Lens())
    exact = torch.softmax(dense64(q, k, k, mask=ll.window(90, 5))[0], -1)
    plain = ll.attend(q, k, k, mask=ll.window(90, 5), lens=ll.Lens(), impl="reference")[1].dense()
    bound = 2 * (plain - exact).abs().max() + 1e-6
    assert (seen.dense() - exact).abs().max() <= bound
    assert (
        seen.tile(slice(3, 9), slice(100, 270)) - exact[:, :, 3:9, 100:270]
    ).abs().max() <= bound
    assert torch.allclose(seen.rows([0, 7]).sum(-1), torch.ones(1, 2, 2), atol=2e-6)
