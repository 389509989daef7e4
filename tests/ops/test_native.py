"""The kernels: masks, types and strides against the reference, and torch's compile and vmap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import limelight as ll
from limelight import _kernels
from limelight.ops.backends import native, reference
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.masks.region import Extent
from limelight.ops.problem import check_problem

TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def tensors(
    b: int = 2, h: int = 4, g: int = 2, i: int = 150, j: int = 333, d: int = 24, e: int = 40,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    torch.manual_seed(b * 7 + i + j + d)
    return tuple(
        torch.randn(shape).to(dtype) for shape in ((b, h, i, d), (b, g, j, d), (b, g, j, e))
    )


def agree(q: Tensor, k: Tensor, v: Tensor, **options: object) -> None:
    """Output and log-sum-exp of the kernels are those of the reference in float64."""
    problem = check_problem(q, k, v, **options)
    wide = dict(options)
    if isinstance(options.get("bias"), Tensor):
        wide["bias"] = options["bias"].double()
    exact = check_problem(q.double(), k.double(), v.double(), **wide)
    out, lse = native.attend(problem)
    expected, expected_lse = reference.attend(exact)
    tolerance = TOLERANCES[q.dtype]
    assert out.dtype == q.dtype
    assert lse.dtype == torch.float32
    assert torch.allclose(out.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.allclose(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


MASKS: dict[str, Callable[[int, int], object]] = {
    "none": lambda i, j: None,
    "causal": lambda i, j: ll.causal(),
    "upper left": lambda i, j: ll.causal(diagonal=0),
    "window": lambda i, j: ll.window(40, 3),
    "narrow": lambda i, j: ll.causal() & ll.window(0),
    "dilated": lambda i, j: ll.dilated(3, 20, 2),
    "right padding": lambda i, j: ll.padding([j // 2, j]),
    "left padding": lambda i, j: ll.padding([0, j // 3], side="left"),
    "anchors": lambda i, j: ll.anchors([0, j - 1, j // 2]) | ll.window(9),
    "blocks": lambda i, j: ll.blocks(torch.rand(4, -(-i // 32), -(-j // 48)) < 0.5, (32, 48)),
    "tiny blocks": lambda i, j: ll.blocks(torch.rand(-(-i // 3), -(-j // 5)) < 0.5, (3, 5)),
    "dense": lambda i, j: torch.rand(2, 1, i, j) < 0.3,
    "dense column": lambda i, j: torch.rand(2, 4, i, 1) < 0.5,
    "dense row": lambda i, j: torch.rand(j) < 0.5,
    "dense strided": lambda i, j: (torch.rand(j, i) < 0.5).mT,
    "documents": lambda i, j: ll.documents([1, i - 21, 0, 20], [7, j - 57, 10, 40]),
    "documents, causal": lambda i, j: ll.documents(
        [50, i - 50], [60, j - 60], inside=ll.causal() & ll.window(30)
    ),
    "documents, padded": lambda i, j: ll.documents(
        [50, i - 50], [60, j - 60], inside=ll.padding([4, 2], side="left")
    ),
    "documents, anchors": lambda i, j: ll.documents(
        [i // 2, i - i // 2], [j // 2, j - j // 2], inside=ll.anchors(5) | ll.window(20)
    ),
    "of all kinds": lambda i, j: (
        (ll.window(99, 99) | ll.anchors(3)) & ll.padding([j - 3, j - 60]) & (torch.rand(i, j) < 0.9)
    ),
    "nothing": lambda i, j: torch.zeros(i, j, dtype=torch.bool),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("i", "j"), [(150, 333), (333, 150), (64, 64)])
def test_every_mask_agrees_with_the_reference(name: str, i: int, j: int) -> None:
    mask = MASKS[name](i, j)
    q, k, v = tensors(i=i, j=j)
    agree(q, k, v, mask=mask)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("options", [
    {"softcap": 2.0},
    {"bias": "alibi"},
    {"bias": (1, 4, 1, 333)},
    {"bias": (2, 1, 150, 333), "softcap": 30.0},
    {"bias": (150, 1), "scale": 0.7},
    {"bias": "alibi", "softcap": 5.0, "scale": -0.3},
])  # fmt: skip
def test_every_option_agrees_with_the_reference(
    dtype: torch.dtype, options: dict[str, object]
) -> None:
    bias = options.get("bias")
    if bias == "alibi":
        options = {**options, "bias": ll.alibi(4)}
    elif bias is not None:
        options = {**options, "bias": torch.randn(bias).to(dtype)}
    agree(*tensors(dtype=dtype), mask=ll.causal(), **options)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("d", [1, 7, 8, 16, 33, 64, 80, 256, 300])
def test_every_number_of_channels_agrees_with_the_reference(dtype: torch.dtype, d: int) -> None:
    agree(*tensors(i=50, j=90, d=d, e=d, dtype=dtype))
    agree(*tensors(i=13, j=40, d=d, e=257 - d if d < 257 else 1, dtype=dtype))


@pytest.mark.parametrize(
    ("i", "j"), [(0, 5), (5, 0), (0, 0), (1, 1), (1, 700), (700, 1), (97, 257)]
)
def test_every_length_agrees_with_the_reference(i: int, j: int) -> None:
    agree(*tensors(i=i, j=j), mask=ll.causal())
    agree(*tensors(i=i, j=j))


@pytest.mark.parametrize(("h", "g"), [(1, 1), (6, 6), (6, 2), (24, 1), (5, 5), (0, 0)])
def test_every_grouping_of_heads_agrees_with_the_reference(h: int, g: int) -> None:
    agree(*tensors(h=h, g=g, i=60, j=70), mask=ll.window(30, 30))


def test_strides_do_not_change_the_output() -> None:
    q, k, v = tensors(i=40, j=60, d=32, e=32)

    def layouts(x: Tensor) -> list[Tensor]:
        wide = torch.zeros(*x.shape[:3], 96)
        wide[..., 17:49] = x
        return [
            x.transpose(1, 2).contiguous().transpose(1, 2),
            x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
            x.mT.contiguous().mT,
            wide[..., 17:49],
            x.flip(2).contiguous().flip(2),
        ]

    expected = ll.attend(q, k, v, impl="native")
    for views in zip(layouts(q), layouts(k), layouts(v), strict=True):
        assert torch.equal(ll.attend(*views, impl="native"), expected)
    repeated = k[:, :1, :1].expand(2, 2, 60, 32)
    agree(q, repeated, v)


@pytest.mark.parametrize("queries", [1, 40])
def test_strides_beyond_31_bits(queries: int) -> None:
    """Rows 2^30 elements apart: the offset of the third does not fit a signed 32-bit number."""
    q, k, v = tensors(b=1, h=1, g=1, i=queries, j=3, d=16, e=16, dtype=torch.bfloat16)
    far = torch.empty((1 << 31) + 16, dtype=torch.bfloat16)  # only the pages that are used are real
    rows = far.as_strided((1, 1, 3, 16), (0, 0, 1 << 30, 1))
    for part in (k, v):
        rows.copy_(part)
        leaf, near = rows.detach().requires_grad_(), part.clone().requires_grad_()
        found, expected = (
            ll.attend(q, x if part is k else k, x if part is v else v) for x in (leaf, near)
        )
        assert torch.equal(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(leaf.grad, near.grad)


def test_the_output_has_the_layout_of_the_query() -> None:
    q, k, v = (torch.randn(2, 50, 4, 32).transpose(1, 2) for _ in range(3))
    assert ll.attend(q, k, v).transpose(1, 2).is_contiguous()
    assert ll.attend(q, k, v, mask=ll.causal()).transpose(1, 2).is_contiguous()
    assert ll.attend(q.contiguous(), k, v, mask=ll.causal()).is_contiguous()


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_follow_the_reference(name: str, number: float) -> None:
    q, k, v = tensors(i=70, j=300)
    {"query": q, "key": k, "value": v}[name][1, 1, 33, 5] = number
    found = ll.attend(q, k, v, impl="native")
    expected = ll.attend(q, k, v, impl="reference")
    assert torch.equal(found.isfinite(), expected.isfinite())
    finite = expected.isfinite()
    assert torch.allclose(found[finite], expected[finite], atol=1e-5)
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("mask", ["causal", "window", "padding", "dense", "blocks"])
@pytest.mark.parametrize("i", [1, 70])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_forbidden_values_have_no_influence(mask: str, i: int, number: float) -> None:
    """Some queries may see the non-finite value and some may not, in tiles of every kind."""
    q, k, v = tensors(i=i, j=900)
    for j in (0, 33, 300, 600, 890, 899):
        v[1, :, j, 5] = number
    allowed = {
        "causal": ll.causal(),
        "window": ll.window(40, 3),
        "padding": ll.padding([900, 310]),
        "dense": torch.rand(i, 900, generator=torch.Generator().manual_seed(0)) < 0.3,
        "blocks": ll.blocks(torch.eye(-(-i // 32), 29, dtype=torch.bool), 32),
    }[mask]
    lens = ll.Lens(top=2, received=True)
    results = [ll.attend(q, k, v, mask=allowed, impl=impl) for impl in ("native", "reference")]
    results += [
        ll.attend(q, k, v, mask=allowed, lens=lens, impl=impl)[0]
        for impl in ("native", "reference")
    ]
    dense = as_mask(allowed).dense(i, 900, b=2, h=4)
    seen = (dense[1] & ~v[1, 0, :, 5].isfinite()).any(-1)
    for found in results:
        assert torch.equal(~found[1, :, :, 5].isfinite(), seen)
        assert torch.allclose(found, results[1], atol=1e-5, equal_nan=True)
        others = torch.arange(found.shape[-1]) != 5
        assert found[..., others].isfinite().all()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = tensors(i=60, j=300)
    for factor, shift in ((30.0, 0.0), (1.0, 1e4), (1.0, -1e4)):
        bias = torch.full((1, 1), shift)
        found, plain = (
            ll.attend(q * factor, k * factor, v, bias=bias, impl=impl).double()
            for impl in ("native", "reference")
        )
        wide = (q * factor).double(), (k * factor).double(), v.double()
        exact = ll.attend(*wide, bias=bias.double(), impl="reference")
        # Scores of thousands are rounded by up to 1e-4, up or down depending on the build.
        assert bool(((found - exact).abs() <= 4 * (plain - exact).abs().max() + 1e-5).all())


@pytest.mark.parametrize("growth", [3.0, 30.0, float("inf"), float("nan")])
def test_later_keys_far_above_the_running_maximum(growth: float) -> None:
    """Weights are relative to the maximum of earlier keys, unless a later key is far above it."""
    q, k, v = tensors(i=100, j=1024, d=32, e=32)
    q, k = q.abs(), k.abs()
    k[:, :, 512:768] *= growth  # the third tile of keys; the fourth is as low as the first again
    found, plain = (ll.attend(q, k, v, impl=impl).double() for impl in ("native", "reference"))
    assert torch.equal(found.isnan(), plain.isnan())
    if growth < float("inf"):
        exact = ll.attend(q.double(), k.double(), v.double(), impl="reference")
        assert bool(((found - exact).abs() <= 2 * (plain - exact).abs().max() + 1e-6).all())


def test_dropout_is_that_of_the_reference() -> None:
    q, k, v = tensors(i=70, j=310)
    results = []
    for impl in ("native", "reference"):
        torch.manual_seed(11)
        results.append(ll.attend(q, k, v, mask=ll.causal(), dropout=0.3, impl=impl))
    assert torch.allclose(*results, atol=1e-5)


@pytest.mark.parametrize(
    "mask", [None, ll.causal(), ll.causal() & ll.window(5), ll.dilated(2, 3) | ll.window(1)]
)
def test_the_plain_path_and_the_checked_path_agree(mask: Mask | None) -> None:
    q, k, v = tensors(i=33, j=44, d=16, e=16)
    program = () if mask is None else mask.program()
    assert program is not None
    plain = native.attend_plain(q, k, v, program, None)
    assert plain is not None
    assert torch.equal(plain, native.attend(check_problem(q, k, v, mask=mask))[0])
    assert torch.equal(plain, ll.attend(q, k, v, mask=mask))


def test_the_plain_path_declines_what_is_not_plain() -> None:
    q, k, v = tensors(i=3, j=4, d=16, e=16)
    assert native.attend_plain(q.double(), k.double(), v.double(), (), None) is None
    assert native.attend_plain(q, k[:, :, :, :8], v, (), None) is None
    assert native.attend_plain(q, k, v.bfloat16(), (), None) is None
    assert native.attend_plain(q[0], k, v, (), None) is None
    assert native.attend_plain(q.clone().requires_grad_(), k, v, (), None) is None
    assert native.attend_plain(q, k, v, (), float("nan")) is None
    assert native.attend_plain(q.to("meta"), k.to("meta"), v.to("meta"), (), None) is None
    with torch.no_grad():
        assert native.attend_plain(q.clone().requires_grad_(), k, v, (), None) is not None


# --- torch.compile, vmap and autocast -------------------------------------------------------------


def test_the_registered_op_passes_opcheck() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(i=10, j=12, d=8, e=4))
    bias = torch.randn(1, 4, 1, 12, requires_grad=True)
    band = ll.causal().lower(Extent(2, 4, 10, 12), q.device)
    op = torch.ops.limelight.attend.default
    opcheck(op, (q, k, v, bias, None, None, None, None, band.tables, band.program, 0.3, 0.0, 0.0))
    lengths = torch.tensor([3, 12])
    slopes = torch.rand(4)
    opcheck(op, (q, k, v, None, slopes, None, None, None, [lengths], [3, 0, 1], 0.3, 5.0, 0.0))
    sinks = torch.randn(4, requires_grad=True)
    opcheck(op, (q, k, v, None, None, sinks, None, None, [], [], 0.3, 0.0, 0.0))
    lse = torch.randn(2, 4, 10, dtype=torch.float64, requires_grad=True)
    opcheck(op, (q, k, v, None, None, None, lse, None, [], [], 0.3, 0.0, 0.0))
    transposed = torch.randn(2, 10, 4, 8).transpose(1, 2)
    seed = torch.tensor(3)
    call = (transposed, k.detach(), v.detach(), None, None, None, None, seed, [], [], 0.3, 0.0, 0.1)
    opcheck(op, call)


COMPILED = """
import torch, limelight as ll
masks = [
    None, ll.causal(), ll.causal() & ll.window(9), ll.anchors(3) | ll.window(9), ll.dilated(3),
    ll.blocks(torch.rand(4, 2, 3) < 0.6, (30, 30)), ll.padding([40, 90], side="left"),
    ll.documents([20, 40], [30, 60], inside=ll.causal()), torch.rand(60, 90) < 0.5,
]
q, k, v = (torch.randn(2, n, i, 16, requires_grad=True) for n, i in ((4, 60), (2, 90), (2, 90)))
biases = [None, ll.alibi(4), torch.randn(4, 1, 90, requires_grad=True)]
calls = [("native", mask, biases[number % 3]) for number, mask in enumerate(masks)]
# The reference is slow to trace, so one mask holds every rule.
inside = ll.causal() & ll.padding([20, 30], side="left") | ll.dilated(3)
every = (ll.documents([20, 40], [30, 60], inside=inside) | ll.anchors(3)) & masks[5] & masks[-1]
calls.append(("reference", every, ll.alibi(4)))

for impl, mask, bias in calls:
    def call(q, k, v):
        return ll.attend(q * 1, k, v, mask=mask, bias=bias, impl=impl) * 2

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic={dynamic}, backend="aot_eager")
    found, expected = compiled(q, k, v), call(q, k, v)
    assert torch.allclose(found, expected, atol=1e-6), (impl, mask, bias)
    pairs = zip(
        torch.autograd.grad(found.square().sum(), (q, k, v)),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
    )
    assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in pairs), (impl, mask, bias)

torch.compiler.reset()
def pad(q, k, v, lengths):
    return ll.attend(q, k, v, mask=ll.padding(lengths) & ll.window(40))

pads = torch.compile(pad, fullgraph=True, dynamic={dynamic}, backend="aot_eager")
for lengths in ([40, 90], [3, 0]):
    lengths = torch.tensor(lengths, dtype=torch.int32)
    assert torch.allclose(pads(q, k, v, lengths), pad(q, k, v, lengths), atol=1e-6)
for wrong in ([-1, 90], [3, 200]):
    try:
        pads(q, k, v, torch.tensor(wrong, dtype=torch.int32))
    except ValueError as error:
        assert "expected 0 … j = 90" in str(error)
    else:
        raise AssertionError(wrong)

torch.compiler.reset()
def drop(q):
    return ll.attend(q, k, v, dropout=0.5)

drops = torch.compile(drop, fullgraph=True, backend="aot_eager")
torch.manual_seed(0)
first, second = drops(q), drops(q)
assert not torch.equal(first, second)
torch.manual_seed(0)
assert torch.equal(first, drop(q))
assert torch.autograd.grad(second.sum(), q)[0].isfinite().all()

torch.compiler.reset()
layer = ll.Block(ll.Attention(16, heads=4), ll.FeedForward(16))
whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
x = torch.randn(2, 7, 16)
assert torch.allclose(whole(x), layer(x), atol=1e-6)
print("done")
"""


@pytest.mark.parametrize("dynamic", [False, True])
def test_calls_compile_with_fullgraph_and_gradients(dynamic: bool) -> None:
    """In a process of its own: torch.compile cannot trace the type checks that the tests add."""
    ran = subprocess.run(
        [sys.executable, "-c", COMPILED.format(dynamic=dynamic)], capture_output=True, text=True
    )
    assert ran.stdout.strip() == "done", ran.stderr


def test_vmap_and_other_transforms_of_torch_func_agree_with_plain_calls() -> None:
    x = torch.randn(5, 1, 2, 9, 16)

    def call(y: Tensor) -> Tensor:
        return ll.attend(y, y, y, mask=ll.causal())

    assert torch.allclose(torch.vmap(call)(x), torch.stack([call(y) for y in x]))
    # torch.func.grad has no rule for registered ops: "auto" leaves it to the PyTorch form
    grads = torch.vmap(torch.func.grad(lambda y: call(y).sum()))(x)
    leaf = x[0].clone().requires_grad_()
    call(leaf).sum().backward()
    assert torch.allclose(grads[0], leaf.grad, atol=1e-5)
    same = x[:1].expand(5, 1, 2, 9, 16)
    drops = torch.vmap(lambda y: ll.attend(y, y, y, dropout=0.5), randomness="different")(same)
    assert not torch.equal(drops[0], drops[1])
    with pytest.raises(ll.LimelightError, match="lens"):
        torch.vmap(lambda y: ll.attend(y, y, y, lens=ll.Lens(top=1))[0])(x)


def test_autocast_gives_the_type_that_sdpa_gives() -> None:
    q, k, v = tensors(i=9, j=9, h=2, g=2, d=16, e=16)
    with torch.autocast("cpu", torch.bfloat16):
        found = ll.attend(q, k.bfloat16(), v)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.allclose(found, expected, atol=2e-2)


# --- builds for other machines --------------------------------------------------------------------

SCRIPT = """
import torch, limelight as ll
from limelight import _kernels
q, k, v = (torch.randn(2, 2, 77, 40).to(torch.{dtype}) for _ in range(3))
for options in ({{}}, {{"mask": ll.causal()}}, {{"softcap": 2.0, "bias": ll.alibi(2)}}):
    found = ll.attend(q, k, v, impl="native", **options).float()
    error = (found - ll.attend(q, k, v, impl="reference", **options).float()).abs().max()
    assert error < {tolerance}, error
print(_kernels.isa())
"""


def run_with_isa(isa: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LIMELIGHT_ISA": isa, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("isa", _kernels.runnable())
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 2e-3)]
)
def test_each_build_that_runs_here_agrees_with_the_reference(
    isa: str, dtype: str, tolerance: float
) -> None:
    ran = run_with_isa(isa, SCRIPT.format(dtype=dtype, tolerance=tolerance))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == isa


def test_an_unknown_build_is_named() -> None:
    ran = run_with_isa("altivec", "from limelight import _kernels; _kernels.isa()")
    assert ran.returncode != 0
    assert "LIMELIGHT_ISA=altivec cannot run here, expected one of" in ran.stderr


def test_a_damaged_program_is_refused_before_anything_is_read() -> None:
    q, k, v = tensors(i=3, j=4)
    out, lse = torch.empty(2, 4, 3, 40), torch.empty(2, 4, 3)
    for program, tables in [
        ([42], []),
        ([1, 0], []),
        ([3, 0, 0], []),
        ([3, 0, 0], [torch.tensor([9, 9])]),
        ([4, 0], [torch.zeros(3, dtype=torch.int64)]),
        ([5, 0, 2, 2], [torch.ones(1, 1, 1, dtype=torch.bool)]),
        ([6, 0], [torch.ones(2, 4, 3, 3, dtype=torch.bool)]),
        ([7, 0, 0], [torch.tensor([[0, 9], [0, 4]])]),
        ([8, 1, 0, 0, 0, 0], []),
        ([1, 0, 0, 0, 0, 0], []),
    ]:
        with pytest.raises(ValueError, match="the mask program is damaged"):
            _kernels.forward(
                q, k, v, None, None, None, None, tables, program, 1.0, 0.0, 0.0, 0, out, lse
            )  # fmt: skip


def test_an_output_of_another_type_is_refused_before_anything_is_written() -> None:
    x = torch.randn(1, 2, 4, 8)
    out, lse = torch.empty(1, 2, 4, 8, dtype=torch.bfloat16), torch.empty(1, 2, 4)
    with pytest.raises(ValueError, match="out"):
        _kernels.forward(x, x, x, None, None, None, None, [], [], 1.0, 0.0, 0.0, 0, out, lse)
