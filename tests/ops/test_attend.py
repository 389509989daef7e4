"""`attend`: errors, the choice of a backend, packed input, biases, sinks, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import limelight as ll
from limelight import _kernels
from limelight.errors import (
    DeviceError,
    DtypeError,
    OptionError,
    ShapeError,
    UnavailableError,
)
from limelight.ops.attend import compute, compute_with_lens
from limelight.ops.backends import native, tiled
from limelight.ops.backends import torch_fused as torch_kernels
from limelight.ops.masks.padding import Padding
from limelight.ops.problem import check_problem


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


WRONG: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (ShapeError, r"query must have 4 axes \(b h i d\), found 3: \(4, 6, 8\)",
     lambda: ll.attend(x(4, 6, 8), x(1, 4, 6, 8), x(1, 4, 6, 8))),
    (ShapeError, r"key has d = 7 \(shape \(1, 4, 6, 7\)\), expected 8 as in query",
     lambda: ll.attend(x(1, 4, 6, 8), x(1, 4, 6, 7), x(1, 4, 6, 8))),
    (ShapeError, "key has b = 2", lambda: ll.attend(x(1, 4, 6, 8), x(2, 4, 6, 8), x(2, 4, 6, 8))),
    (ShapeError, "value has j = 5", lambda: ll.attend(x(1, 4, 6, 8), x(1, 4, 6, 8), x(1, 4, 5, 8))),
    (ShapeError, "value has g = 2", lambda: ll.attend(x(1, 4, 6, 8), x(1, 4, 6, 8), x(1, 2, 6, 8))),
    (ShapeError, "g = 3 heads .* divides query's h = 4",
     lambda: ll.attend(x(1, 4, 6, 8), x(1, 3, 6, 8), x(1, 3, 6, 8))),
    (ShapeError, "at least 1 channel",
     lambda: ll.attend(x(1, 4, 6, 0), x(1, 4, 6, 0), x(1, 4, 6, 8))),
    (DtypeError, "key is torch.float64, expected torch.float32",
     lambda: ll.attend(x(1, 4, 6, 8), x(1, 4, 6, 8).double(), x(1, 4, 6, 8))),
    (DtypeError, "query is torch.int64",
     lambda: ll.attend(*[torch.ones(1, 1, 2, 2, dtype=torch.int64)] * 3)),
    (DeviceError, "value is on meta, expected cpu",
     lambda: ll.attend(x(1, 1, 2, 2), x(1, 1, 2, 2), x(1, 1, 2, 2).to("meta"))),
    (OptionError, "scale must be a finite number, found nan",
     lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, scale=float("nan"))),
    (OptionError, "softcap must be a positive number, found -1",
     lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, softcap=-1.0)),
    (OptionError, "dropout must be at least 0 and below 1, found 1",
     lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, dropout=1.0)),
    (OptionError, "dropout must be", lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, dropout=-0.1)),
    (ShapeError, r"bias has shape \(3, 2\), expected one that broadcasts",
     lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, bias=x(3, 2))),
    (ShapeError, "expected h = 1",
     lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, bias=ll.alibi(2))),
    (DtypeError, "bias is torch.float16",
     lambda: ll.attend(*[x(1, 1, 2, 2)] * 3, bias=x(2, 2).half())),
    (ShapeError, r"query must have 3 axes \(total h d\)",
     lambda: ll.attend_packed(x(1, 4, 6, 8), x(6, 4, 8), x(6, 4, 8), [6])),
    (ShapeError, "sum to 5, expected i = 6",
     lambda: ll.attend_packed(x(6, 4, 8), x(6, 4, 8), x(6, 4, 8), [2, 3])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "words", "call"), WRONG)
def test_wrong_input_is_named_before_anything_is_computed(
    kind: type[Exception], words: str, call: Callable[[], object]
) -> None:
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("found", [None, "a", [[1.0]]])
def test_an_argument_that_is_not_a_tensor_is_named(name: str, found: object, untyped: None) -> None:
    words = f"{name} must be a torch.Tensor, found {type(found).__name__}"
    tensors = dict.fromkeys(("query", "key", "value"), x(1, 1, 2, 2)) | {name: found}
    packed = dict.fromkeys(("query", "key", "value"), x(2, 1, 2)) | {name: found}
    with pytest.raises(DtypeError, match=words):
        ll.attend(**tensors)
    with pytest.raises(DtypeError, match=words):
        ll.attend_packed(**packed, lengths=[2])


@pytest.mark.parametrize("option", ["scale", "softcap", "dropout"])
@pytest.mark.parametrize("found", ["a", "0.5", [1.0], ()])
def test_an_option_that_is_not_a_number_is_named(option: str, found: object, untyped: None) -> None:
    with pytest.raises(OptionError, match=f"{option} must be .* number|{option} must be at least"):
        ll.attend(*[x(1, 1, 2, 2)] * 3, **{option: found})


def test_slopes_on_another_device_are_refused() -> None:
    with pytest.raises(DeviceError, match="bias is on meta, expected cpu"):
        ll.attend(*[x(1, 1, 2, 2)] * 3, bias=ll.alibi(torch.ones(1, device="meta")))


def test_the_choice_is_explained_under_autocast_too() -> None:
    q, v = x(1, 1, 4, 8), x(1, 1, 4, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert ll.attend(q, q, v).dtype == torch.bfloat16
        assert ll.explain_choice(q, q, v).impl == "native"


def test_an_implementation_requested_by_name_serves_or_raises(untyped: None) -> None:
    wide = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    assert ll.explain_choice(wide, wide, wide).impl == "tiled"
    for name in ("tiled", "reference"):
        assert ll.explain_choice(wide, wide, wide, impl=name).impl == name
    with pytest.raises(UnavailableError, match="impl='native' cannot serve"):
        ll.attend(wide, wide, wide, impl="native")
    with pytest.raises(OptionError, match="impl must be 'auto'"):
        ll.attend(wide, wide, wide, impl="fast")


def test_auto_prefers_the_kernels_where_they_were_built() -> None:
    assert native.missing() is None, "the kernels must be built where the tests run"
    q = torch.randn(1, 1, 4, 8)
    assert ll.explain_choice(q, q, q).impl == "native"


@pytest.mark.parametrize("causal", [False, True])
def test_other_devices_run_on_pytorchs_own_kernels(causal: bool) -> None:
    mask = ll.causal() if causal else None
    far = torch.empty(2, 4, 5, 8, device="meta"), *[torch.empty(2, 2, 5, 8, device="meta")] * 2
    assert ll.explain_choice(*far, mask=mask).impl == "torch"
    assert ll.attend(*far, mask=mask).shape == (2, 4, 5, 8)
    # The same call of PyTorch on the CPU, where it can be computed.
    q, k, v = x(2, 4, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8)
    found, _ = torch_kernels.attend(check_problem(q, k, v, mask=mask, scale=0.3))
    assert torch.allclose(found, ll.attend(q, k, v, mask=mask, scale=0.3), atol=1e-5)


def test_what_pytorchs_kernels_do_not_serve_is_tiled() -> None:
    far = torch.empty(1, 2, 3, 8, device="meta"), *[torch.empty(1, 2, 5, 8, device="meta")] * 2
    for options in (
        {"mask": ll.causal()}, {"softcap": 2.0}, {"mask": ll.window(2)}, {"lens": ll.Lens(top=1)}
    ):  # fmt: skip
        choice = ll.explain_choice(*far, **options)
        assert choice.impl == "tiled"
        assert "the kernels run on the CPU, the tensors are on meta" in choice.reason
    assert ll.attend(*far, mask=ll.window(2)).shape == (1, 2, 3, 8)


def test_packed_equals_each_sequence_alone() -> None:
    lengths, key_lengths = [3, 0, 5, 1], [4, 2, 5, 9]
    q, k, v = x(9, 4, 8), x(20, 2, 8), x(20, 2, 6)
    out = ll.attend_packed(q, k, v, lengths, key_lengths=key_lengths, mask=ll.causal())
    assert out.shape == (9, 4, 6)
    alone = [
        ll.attend(*(t.transpose(0, 1)[None] for t in parts), mask=ll.causal())[0].transpose(0, 1)
        for parts in zip(q.split(lengths), k.split(key_lengths), v.split(key_lengths), strict=True)
    ]
    assert torch.allclose(out, torch.cat(alone), atol=1e-6)


def test_alibi_equals_the_bias_of_its_formula() -> None:
    q, k = x(2, 6, 5, 8), x(2, 6, 9, 8)
    distances = (torch.arange(5)[:, None] + 4 - torch.arange(9)).abs()
    table = -ll.alibi(6).slopes[:, None, None] * distances
    assert torch.allclose(
        ll.attend(q, k, k, bias=ll.alibi(6)), ll.attend(q, k, k, bias=table), atol=1e-5
    )


def test_softcap_bounds_the_scores() -> None:
    q = x(1, 2, 7, 8) * 100
    capped = ll.attend(q, q, q, softcap=2.0)
    scores = 2 * torch.tanh(q @ q.mT / 8**0.5 / 2)
    assert torch.allclose(capped, scores.softmax(-1) @ q, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", [causal_lower_right, causal_upper_left])
def test_pytorchs_causal_biases_are_masks(variant: Callable[[int, int], Tensor]) -> None:
    """Their memory holds no values: read as a tensor they give garbage."""
    q, k, v = x(2, 4, 5, 8), x(2, 4, 8, 8), x(2, 4, 8, 8)
    bias = variant(5, 8)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    for out in (
        ll.attend(q, k, v, bias=bias),
        ll.attend(q, k, v, mask=bias),
        ll.scaled_dot_product_attention(q, k, v, attn_mask=bias),
    ):
        assert torch.allclose(out, expected, atol=1e-5)
    both = ll.attend(q, k, v, bias=bias, mask=ll.window(1, None))
    assert not torch.allclose(both, expected, atol=1e-2)
    with pytest.raises(ShapeError, match=r"bias is causal for \(5, 8\), expected \(i, j\) = "):
        ll.attend(q, k[:, :, :7], v[:, :, :7], bias=bias)


class Subclass(torch.Tensor):
    """A subclass whose memory could mean anything."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: t.as_subclass(Subclass), "is a Subclass, expected a plain torch.Tensor"),
        (lambda t: t.to_sparse(), "is a sparse_coo tensor, expected a dense one"),
        (lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged), "is a nested tensor"),
        (lambda t: torch.nested.nested_tensor(list(t)), "is a nested tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_tensors_whose_memory_does_not_hold_their_values_are_refused(
    make: Callable[[Tensor], Tensor], words: str
) -> None:
    plain = x(2, 2, 4, 8)
    for call in (ll.attend, ll.scaled_dot_product_attention, ll.attend_linear):
        with pytest.raises(DtypeError, match="query " + words):
            call(make(plain), plain, plain)
    with pytest.raises(DtypeError, match="bias " + words):
        ll.attend(plain, plain, plain, bias=make(x(2, 2, 4, 4)))
    with pytest.raises(DtypeError, match="mask " + words):
        ll.attend(plain, plain, plain, mask=make(torch.ones(2, 2, 4, 4, dtype=torch.bool)))
    with pytest.raises(DtypeError, match="factors " + words):
        ll.AttentionCall(plain, plain, plain).scaled(make(torch.ones(2, 2, 4, 4)))
    with pytest.raises(DtypeError, match="pairs " + words):
        ll.without(make(torch.zeros(2, 2, dtype=torch.int64)))


@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_lengths_and_layers_take_dense_tensors(untyped: None) -> None:
    lengths = torch.tensor([2, 1])
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor in (lengths.to_sparse(), nested):
        for make in (ll.padding, ll.documents, ll.anchors, ll.alibi):
            with pytest.raises(DtypeError, match="expected a dense one"):
                make(tensor)
    with pytest.raises(DtypeError, match="x is a nested tensor"):
        ll.Attention(8, heads=2)(torch.nested.nested_tensor([x(3, 8), x(4, 8)]))
    with pytest.raises(DtypeError, match="query is a nested tensor"):
        ll.attend_packed(nested, nested, nested, [2])


@pytest.mark.parametrize("impl", ["native", "tiled", "reference"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_forbidden_keys_have_no_influence_on_gradients(
    impl: str, bad: float, softcap: float | None
) -> None:
    """Padding may hold anything: 0 · NaN would make the gradient of every query NaN."""
    plain = [x(2, 4, 9, 8), x(2, 2, 9, 8), x(2, 2, 9, 8)]
    padded = [tensor.clone() for tensor in plain]
    for tensor in padded[1:]:
        tensor[0, :, 6:], tensor[1, :, 7:] = bad, -bad
    grads: list[Tensor] = []
    for tensors in (plain, padded):
        leaves = [tensor.requires_grad_() for tensor in tensors]
        mask = ll.padding([6, 7]) & ll.causal()
        out = ll.attend(*leaves, mask=mask, softcap=softcap, impl=impl)
        grads += [out, *torch.autograd.grad(out.square().sum(), leaves)]
    for found, expected in zip(grads[4:], grads[:4], strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_a_key_of_nan_does_not_reach_the_gradient_of_queries_that_do_not_see_it(impl: str) -> None:
    q, k, v = (x(1, 2, 6, 8) for _ in range(3))
    k[:, :, 4] = float("nan")
    q.requires_grad_()
    out = ll.attend(q, k, v, mask=ll.causal(), impl=impl)
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert grad[:, :, :4].isfinite().all()
    assert grad[:, :, 4:].isnan().all()


def test_a_sink_beside_one_key_of_a_very_low_score() -> None:
    q, k, v = (x(1, 2, 3, 8) for _ in range(3))
    for low in (-1e9, -1e5):
        call = ll.AttentionCall(
            q, k[:, :, :1], v[:, :, :1], bias=torch.full((3, 1), low), sinks=torch.full((2,), low)
        )
        _, seen = call.attend(lens=ll.Lens())
        # One key against a sink: its score and the sink are the same but for q·k.
        share = torch.sigmoid(((q * k[:, :, :1]).sum(-1) / 8**0.5 + low) - low)
        torch.testing.assert_close(seen.dense()[..., 0], share, atol=1e-2, rtol=0)


LOW = [-1e9, 1e9, -1.05e9, -2e38, 7e30]


@pytest.mark.parametrize("impl", ["native", "tiled", "reference"])
@pytest.mark.parametrize("low", LOW)
def test_a_sink_shares_with_several_keys_as_low_as_itself(
    impl: str, low: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log-sum-exp of six keys at −1e9 is −1e9 in float32: by it the sink would take 1/2."""
    q, k, v = (x(2, 4, 6, 8) for _ in range(3))
    sinks = torch.full((4,), low, requires_grad=True)
    monkeypatch.setattr(tiled, "TILE", 1 << 6)
    problem = check_problem(q, k, v, bias=torch.full((6, 6), low), sinks=sinks)
    out, total = compute(problem, impl)
    expected = v.mean(2, keepdim=True).expand_as(v) * 6 / 7
    torch.testing.assert_close(out, expected)
    assert torch.allclose(total.float(), torch.full((2, 4, 6), low))
    # d share / d sink = −share · (1 − share)
    (grad,) = torch.autograd.grad(out.sum(), sinks)
    torch.testing.assert_close(grad, -(v.sum((0, 2, 3)) * 6 / 49), atol=1e-4, rtol=1e-4)
    out, seen = compute_with_lens(problem, ll.Lens(top=2, entropy=True), impl)
    torch.testing.assert_close(out, expected)
    sevenths = torch.full((2, 4, 6, 6), 1 / 7)
    torch.testing.assert_close(seen.top.weights, sevenths[..., :2])
    torch.testing.assert_close(seen.entropy, -(sevenths * sevenths.log()).sum(-1))
    torch.testing.assert_close(seen.dense(), sevenths)
    torch.testing.assert_close(seen.tile(slice(1, 3), slice(2, 5)), sevenths[:, :, 1:3, 2:5])


@pytest.mark.parametrize("low", [-1e9, -1.05e9, 0.0])
def test_a_link_cut_among_very_low_scores_leaves_the_other_weights(low: float) -> None:
    q, k, v = (x(2, 4, 6, 8) for _ in range(3))
    call = ll.AttentionCall(q, k, v, bias=torch.full((6, 6), low))
    before = call.attend(lens=ll.Lens())[1].dense()
    out, seen = call.without([(1, 0)], renormalise=False).attend(lens=ll.Lens(top=1))
    before[:, :, 1, 0] = 0.0
    torch.testing.assert_close(seen.dense(), before)
    torch.testing.assert_close(out, before @ v)


@pytest.mark.parametrize("impl", ["native", "tiled", "reference"])
def test_a_given_normaliser_of_minus_infinity_leaves_the_sink(impl: str) -> None:
    """log(exp(−∞) + exp(sink)) is the sink, not NaN."""
    q, k, v = (x(1, 2, 6, 8) for _ in range(3))
    sinks, nothing = torch.tensor([0.3, -2.0]), torch.full((1, 2, 6), -torch.inf)
    problem = check_problem(q, k, v, sinks=sinks, lse=nothing)
    expected = check_problem(q, k, v, lse=sinks.view(1, 2, 1).expand(1, 2, 6))
    for found, exact in zip(compute(problem, impl), compute(expected, "reference"), strict=True):
        torch.testing.assert_close(found, exact, check_dtype=False)


@pytest.mark.parametrize("lens", [None, ll.Lens(top=1)])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_lazily_negated_tensor_is_resolved(which: int, lens: ll.Lens | None) -> None:
    tensors = [x(1, 2, 5, 8) for _ in range(3)]
    lazy = list(tensors)
    tensors[which] = torch.randn(1, 2, 5, 8, dtype=torch.complex64).conj().imag
    lazy[which], tensors[which] = tensors[which], tensors[which].resolve_neg().clone()
    assert lazy[which].is_neg()
    bias = torch.randn(5, 5, dtype=torch.complex64).conj().imag
    for options, plain in (({}, {}), ({"bias": bias}, {"bias": bias.resolve_neg().clone()})):
        out, expected = ll.attend(*lazy, lens=lens, **options), ll.attend(*tensors, **plain)
        assert torch.allclose(out[0] if lens else out, expected, atol=1e-5)


@pytest.mark.parametrize("impl", ["native", "tiled", "reference"])
@pytest.mark.parametrize("low", [-1e4, -1e9])
def test_very_low_scores_are_normalised(impl: str, low: float) -> None:
    """exp(s − lse) in float32 loses log n: rows would sum to n at −1e9."""
    q = x(1, 1, 300, 8)
    bias = torch.full((300, 300), low)
    out, seen = ll.attend(q, q, q, bias=bias, lens=ll.Lens(entropy=True), impl=impl)
    # Of the scores as float32 rounds them beside such a bias.
    scores = (q @ q.mT / 8**0.5 + bias).double()
    weights = scores.softmax(-1)
    for part, exact in (
        (seen.dense(), weights),
        (seen.rows([7]), weights[:, :, 7:8]),
        (seen.tile(slice(3, 9), slice(2, 50)), weights[:, :, 3:9, 2:50]),
    ):
        assert torch.allclose(part.double(), exact, atol=2e-3 / 300)
    assert torch.allclose(out.double(), weights @ q.double(), atol=5e-3)
    assert torch.allclose(seen.entropy.double(), -(weights * weights.log()).sum(-1), atol=5e-3)


def test_linear_memory_without_the_kernels_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU: no tensor on the way is larger than a tile, where the weights are 2 million."""
    monkeypatch.setattr(native, "why_not", lambda *_: "not here")
    monkeypatch.setattr(tiled, "TILE", 1 << 14)
    q, k, v = (x(1, 2, 1024, 8).requires_grad_() for _ in range(3))
    mask = ll.causal() & ll.window(300) & ll.without([(1000, 999)])
    with Largest() as largest:
        out, seen = ll.attend(q, k, v, mask=mask, lens=ll.Lens(top=2, received=True))
        out.square().sum().backward()
    assert largest.numel <= 1 << 16
    plain = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    expected = ll.attend(*plain, mask=mask, impl="reference")
    expected.square().sum().backward()
    assert torch.allclose(out, expected, atol=1e-5)
    for ours, theirs in zip((q, k, v), plain, strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-4)
    assert torch.allclose(seen.received.sum(-1), torch.full((1, 2), 1024.0), rtol=1e-4)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("impl", ["native", "tiled"])
def test_a_lens_with_gradients_sweeps_once(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if impl == "native":
        monkeypatch.setattr(_kernels, "forward", None)  # a second sweep would fail
    q, k, v = (x(2, 2, 40, 8).requires_grad_() for _ in range(3))
    plain = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    options = {"mask": ll.causal(), "bias": x(40, 40)}
    lens = ll.Lens(top=1, received=True, map=(4, 4))
    out, seen = ll.attend(q, k, v, lens=lens, impl=impl, **options)
    out.square().sum().backward()
    expected = ll.attend(*plain, impl="reference", **options)
    expected.square().sum().backward()
    assert not seen.received.requires_grad
    assert torch.allclose(out, expected, atol=1e-5)
    for ours, theirs in zip((q, k, v), plain, strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-4)


def test_a_mask_is_lowered_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = []
    lower = Padding.lower
    monkeypatch.setattr(Padding, "lower", lambda *a: lowered.append(1) or lower(*a))
    q = x(1, 2, 6, 8).requires_grad_()
    ll.attend(q, q, q, mask=ll.padding([4]), lens=ll.Lens(top=1, map=(2, 2)))
    assert lowered == [1]


def test_the_choice_is_made_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = []
    why_not = native.why_not
    monkeypatch.setattr(native, "why_not", lambda *a: choices.append(1) or why_not(*a))
    q = x(1, 2, 6, 8).requires_grad_()
    ll.attend(q, q, q, mask=ll.padding([4]), lens=ll.Lens(top=1, received=True))[0].sum().backward()
    ll.attend(q, q, q, dropout=0.5).sum().backward()
    assert choices == [1, 1]


UNDER_COMPILE = """
import torch, limelight as ll
def call(q, lengths):
    return ll.attend(q, q, q, mask=ll.padding(lengths))
compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
try:
    compiled(torch.zeros(1, 1, 6, 8), torch.tensor([9]))
except ll.LimelightError as error:
    print(error)
wide = torch.randn(1, 2, 6, 8, dtype=torch.float64)
leaves, plain = wide.clone().requires_grad_(), wide.clone().requires_grad_()
output, expected = torch.compile(call, backend="aot_eager")(leaves, [4]), call(plain, [4])
output.sum().backward()
expected.sum().backward()
print("double", torch.allclose(output, expected) and torch.allclose(leaves.grad, plain.grad))
try:
    torch.compile(call, backend="aot_eager", fullgraph=True)(wide, [4])
except RuntimeError as error:
    print("no fused kernel serves" in str(error))
"""


def test_under_compile_errors_are_ours_and_the_tiled_form_breaks_the_graph() -> None:
    """In a process of its own: torch.compile cannot trace the type checks that the tests add."""
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_COMPILE], capture_output=True, text=True, check=False
    )
    assert "padding has a length of 9, expected 0 … j = 6" in ran.stdout, ran.stderr
    assert "double True\nTrue" in ran.stdout, ran.stdout + ran.stderr


def test_the_source_of_a_seen_is_detached() -> None:
    slopes = torch.rand(2, requires_grad=True)
    q = x(1, 2, 6, 8)
    _, seen = ll.attend(q, q, q, bias=ll.alibi(slopes * 2), lens=ll.Lens())
    assert not seen.source.problem.slopes.requires_grad
    assert not seen.dense().requires_grad
