"""The drop-ins for code written against PyTorch: the same results, as documented there."""

from __future__ import annotations

import inspect
import itertools
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import limelight as ll
from limelight.errors import DeviceError, DtypeError, LimelightError, OptionError, ShapeError


def same(*args: torch.Tensor, **options: object) -> None:
    expected = F.scaled_dot_product_attention(*args, **options)
    found = ll.scaled_dot_product_attention(*args, **options)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert torch.allclose(found, expected, atol=2e-5), (found - expected).abs().max()


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize(("i", "j"), [(5, 5), (3, 7), (7, 3)])
def test_any_leading_axes_and_upper_left_causality(lead: tuple[int, ...], i: int, j: int) -> None:
    q, k, v = torch.randn(*lead, i, 8), torch.randn(*lead, j, 8), torch.randn(*lead, j, 4)
    same(q, k, v)
    same(q, k, v, is_causal=True)
    same(q, k, v, scale=0.5)


def test_leading_axes_broadcast() -> None:
    same(torch.randn(2, 3, 5, 8), torch.randn(1, 3, 6, 8), torch.randn(3, 6, 8))


@pytest.mark.parametrize("shape", [(5, 6), (1, 6), (3, 5, 6), (2, 3, 5, 6), (2, 1, 1, 6)])
def test_bool_and_float_masks(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8)
    allowed = torch.rand(shape) < 0.7
    allowed[..., 0] = True
    same(q, k, k, attn_mask=allowed)
    same(q, k, k, attn_mask=torch.randn(shape))
    infinite = torch.zeros(shape).masked_fill(~allowed, float("-inf"))
    same(q, k, k, attn_mask=infinite)


def test_a_row_of_minus_infinity_gives_zeros() -> None:
    q = torch.randn(1, 1, 4, 8)
    mask = torch.zeros(4, 4)
    mask[1] = float("-inf")
    assert bool((ll.scaled_dot_product_attention(q, q, q, attn_mask=mask)[:, :, 1] == 0).all())


def test_grouped_heads() -> None:
    q, k = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 6, 16)
    same(q, k, k, enable_gqa=True)
    with pytest.raises(LimelightError, match="enable_gqa=True"):
        ll.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((2, 4, 5, 8), (1, 2, 6, 8), (2, 2, 6, 8)),
        ((1, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)),
        ((2, 4, 5, 8), (2, 6, 8), (2, 6, 8)),
        ((4, 5, 8), (2, 6, 8), (2, 6, 8)),
        ((4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8)),
        ((3, 1, 4, 5, 8), (1, 2, 2, 6, 8), (3, 2, 2, 6, 8)),
        ((2, 12, 5, 8), (2, 4, 6, 8), (2, 6, 6, 8)),
        ((2, 4, 5, 8), (2, 1, 6, 8), (2, 4, 6, 8)),
    ],
)
def test_grouped_heads_with_broadcast_axes_and_different_groups_of_key_and_value(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> None:
    q, k, v = torch.randn(query), torch.randn(key), torch.randn(value)
    same(q, k, v, enable_gqa=True)
    same(q, k, v, enable_gqa=True, is_causal=True)
    same(q, k, v, enable_gqa=True, attn_mask=torch.randn(query[-3], 5, 6))


def test_causal_together_with_a_mask_means_both_as_in_pytorchs_fused_kernel() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    allowed = torch.rand(5, 6) < 0.6
    allowed[:, 0] = True
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        same(q, k, v, attn_mask=allowed, is_causal=True)
        same(q, k, v, attn_mask=torch.randn(5, 6), is_causal=True)
    # Where PyTorch has only its math backend, which raises, the meaning is still the same.
    found = ll.scaled_dot_product_attention(q[0], k[0], v[0, ..., :3], allowed, is_causal=True)
    both = allowed & torch.ones(5, 6, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(q[0], k[0], v[0, ..., :3], both)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_dropout_of_one_gives_zeros() -> None:
    ours = [torch.randn(2, 3, 4, 8, requires_grad=True) for _ in range(3)]
    same(*ours, dropout_p=1.0)
    ll.scaled_dot_product_attention(*ours, dropout_p=1.0).sum().backward()
    assert all(bool((x.grad == 0).all()) for x in ours)


@pytest.mark.parametrize(("d", "e"), [(0, 8), (8, 0), (0, 0)])
def test_tensors_without_channels(d: int, e: int) -> None:
    q, k, v = torch.randn(2, 3, 5, d), torch.randn(2, 3, 6, d), torch.randn(2, 3, 6, e)
    same(q, k, v)
    same(q, k, v, scale=2.0)
    same(q[0], k[0], v[0], is_causal=True)
    same(q, k, v, attn_mask=torch.randn(5, 6))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_gives_nan(scale: float) -> None:
    q = torch.randn(2, 3, 5, 8)
    with sdpa_kernel(SDPBackend.MATH):
        assert F.scaled_dot_product_attention(q, q, q, scale=scale).isnan().all()
    assert ll.scaled_dot_product_attention(q, q, q, scale=scale).isnan().all()


def test_autocast_takes_a_mask_of_its_own_type_or_wider() -> None:
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8)
    mask = torch.randn(5, 6)
    plain = F.scaled_dot_product_attention(q, k, k, mask)
    with torch.autocast("cpu", torch.bfloat16):
        for bias in (mask, mask.bfloat16(), mask.half()):
            found = ll.scaled_dot_product_attention(q, k, k, bias)
            assert found.dtype == torch.bfloat16
            assert torch.allclose(found.float(), plain, atol=0.05)


def test_the_signature_is_pytorchs() -> None:
    documented = F.scaled_dot_product_attention.__doc__.split(" -> ")[0]
    ours = inspect.signature(ll.scaled_dot_product_attention).parameters
    assert all(name in documented for name in ours)
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    by_keyword = [name for name, parameter in ours.items() if parameter.kind == keyword_only]
    assert by_keyword == ["scale", "enable_gqa"]


def sdpa(*shapes: tuple[int, ...], **options: object) -> Callable[[], object]:
    return lambda: ll.scaled_dot_product_attention(*(torch.randn(s) for s in shapes), **options)


@pytest.mark.parametrize(
    ("kind", "words", "call"),
    [
        (ShapeError, r"attn_mask has shape \(1, 5, 6\), .* \(..., i, j\) = \(5, 6\)",
         sdpa((5, 8), (6, 8), (6, 8), attn_mask=torch.ones(1, 5, 6))),
        (ShapeError, r"attn_mask has shape \(2, 4, 5, 6\)",
         sdpa((4, 5, 8), (4, 6, 8), (4, 6, 8), attn_mask=torch.ones(2, 4, 5, 6) > 0)),
        (ShapeError, r"attn_mask has shape \(1, 2, 4, 5, 6\)",
         sdpa((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), attn_mask=torch.ones(1, 2, 4, 5, 6))),
        (ShapeError, r"attn_mask has shape \(5, 5\)",
         sdpa((4, 5, 8), (4, 6, 8), (4, 6, 8), attn_mask=torch.ones(5, 5))),
        (DtypeError, "attn_mask is torch.int64, expected bool, float32 or torch.float32",
         sdpa((5, 8), (6, 8), (6, 8), attn_mask=torch.ones(5, 6, dtype=torch.int64))),
        (DtypeError, "attn_mask is torch.float64",
         sdpa((1, 1, 5, 8), (1, 1, 6, 8), (1, 1, 6, 8), attn_mask=torch.ones(5, 6).double())),
        (DeviceError, "attn_mask is on meta, expected cpu",
         sdpa((5, 8), (6, 8), (6, 8), attn_mask=torch.ones(5, 6, device="meta"))),
        (OptionError, "dropout_p must be at least 0 and at most 1, found 1.5",
         sdpa((5, 8), (6, 8), (6, 8), dropout_p=1.5)),
        (OptionError, "dropout_p must be", sdpa((5, 8), (6, 8), (6, 8), dropout_p=-1.0)),
        (OptionError, "dropout_p must be", sdpa((5, 8), (6, 8), (6, 8), dropout_p=math.nan)),
        (ShapeError, "key has d = 1", sdpa((5, 0), (6, 1), (6, 8))),
        (ShapeError, r"query must have at least 3 axes with enable_gqa=True, found \(5, 8\)",
         sdpa((5, 8), (6, 8), (6, 8), enable_gqa=True)),
        (ShapeError, "value has g = 3 heads .* divides query's h = 4",
         sdpa((2, 4, 5, 8), (2, 2, 6, 8), (2, 3, 6, 8), enable_gqa=True)),
        (ShapeError, "key has g = 0 heads",
         sdpa((4, 5, 8), (0, 6, 8), (0, 6, 8), enable_gqa=True)),
        (ShapeError, "leading axes that do not broadcast$",
         sdpa((2, 4, 5, 8), (3, 2, 6, 8), (3, 2, 6, 8), enable_gqa=True)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    kind: type[Exception], words: str, call: Callable[[], object]
) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_arguments_of_a_wrong_type_are_named(untyped: None) -> None:
    x = torch.randn(4, 5, 8)
    with pytest.raises(DtypeError, match=r"key must be a torch.Tensor, found NoneType"):
        ll.scaled_dot_product_attention(x, None, x)
    with pytest.raises(DtypeError, match=r"attn_mask must be a torch.Tensor, found list"):
        ll.scaled_dot_product_attention(x, x, x, [[True]])
    with pytest.raises(OptionError, match="scale must be a finite number, found 'a'"):
        ll.scaled_dot_product_attention(x, x, x, scale="a")


def test_gradients_agree() -> None:
    inputs = [torch.randn(2, 3, 20, 16, requires_grad=True) for _ in range(3)]
    grad = torch.randn(2, 3, 20, 16)
    F.scaled_dot_product_attention(*inputs, is_causal=True).backward(grad)
    expected = [x.grad.clone() for x in inputs]
    for x in inputs:
        x.grad = None
    ll.scaled_dot_product_attention(*inputs, is_causal=True).backward(grad)
    for x, g in zip(inputs, expected, strict=True):
        assert torch.allclose(x.grad, g, atol=1e-5)


MODULES = [
    {},
    {"bias": False},
    {"kdim": 10, "vdim": 6},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"batch_first": True},
]


@pytest.mark.parametrize("options", MODULES)
def test_multihead_attention_loads_weights_and_gives_outputs(options: dict[str, object]) -> None:
    theirs = torch.nn.MultiheadAttention(16, 4, **options).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = ll.MultiheadAttention(16, 4, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    query, key = torch.randn(5, 5, 16), torch.randn(5, 5, int(options.get("kdim", 16)))
    value = torch.randn(5, 5, int(options.get("vdim", 16)))
    mask = torch.rand(5, 5) < 0.4
    mask.fill_diagonal_(False)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    for attn_mask, padding, weights, average in itertools.product(
        [None, mask, torch.randn(5, 5), torch.randn(20, 5, 5)],
        [None, hidden],
        [True, False],
        [True, False],
    ):
        if padding is not None and attn_mask is not None and attn_mask.dtype != padding.dtype:
            padding = torch.zeros(5, 5).masked_fill(hidden, float("-inf"))
        call = {"attn_mask": attn_mask, "key_padding_mask": padding}
        expected = theirs(
            query, key, value, need_weights=weights, average_attn_weights=average, **call
        )
        found = ours(query, key, value, need_weights=weights, average_attn_weights=average, **call)
        some = ~expected[0].isnan()
        assert torch.allclose(found[0][some], expected[0][some], atol=1e-5)
        assert (found[1] is None) == (expected[1] is None)
        if weights:
            some = ~expected[1].isnan()
            assert torch.allclose(found[1][some], expected[1][some], atol=1e-5)


def test_multihead_attention_without_a_batch_axis() -> None:
    theirs = torch.nn.MultiheadAttention(8, 2)
    ours = ll.MultiheadAttention(8, 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(6, 8)
    for found, expected in zip(ours(x, x, x), theirs(x, x, x), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize(("i", "j"), [(5, 5), (3, 6), (7, 4)])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_causal_hint_is_treated_as_in_pytorch(
    extra: dict[str, bool], i: int, j: int, weights: bool, padded: bool
) -> None:
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True, **extra)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours = ll.MultiheadAttention(16, 4, batch_first=True, **extra)
    ours.load_state_dict(theirs.state_dict())
    x, y = torch.randn(2, i, 16), torch.randn(2, j, 16)
    causal = torch.ones(i, j, dtype=torch.bool).triu(1)
    hidden = torch.zeros(2, j, dtype=torch.bool)
    hidden[1, -1] = True
    call = {"attn_mask": causal, "is_causal": True, "need_weights": weights}
    call["key_padding_mask"] = hidden if padded else None
    assert torch.allclose(ours(x, y, y, **call)[0], theirs(x, y, y, **call)[0], atol=1e-5)


def test_one_tensor_as_both_masks() -> None:
    theirs, ours = torch.nn.MultiheadAttention(16, 4), ll.MultiheadAttention(16, 4)
    ours.load_state_dict(theirs.state_dict())
    x, mask = torch.randn(5, 5, 16), torch.randn(5, 5)
    call = {"attn_mask": mask, "key_padding_mask": mask}
    assert torch.allclose(ours(x, x, x, **call)[0], theirs(x, x, x, **call)[0], atol=1e-5)


def test_multihead_attention_with_a_dropout_of_one() -> None:
    theirs = torch.nn.MultiheadAttention(16, 4, dropout=1.0)
    ours = ll.MultiheadAttention(16, 4, dropout=1.0)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 2, 16)
    for found, expected in zip(ours(x, x, x), theirs(x, x, x), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


def bools(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool)


WRONG: list[tuple[type[Exception], str, list[tuple[int, ...]], dict[str, object]]] = [
    (ShapeError, r"key_padding_mask has shape \(2, 4\), expected \(b, j\) = \(2, 5\)",
     [(2, 5, 16)], {"key_padding_mask": bools(2, 4)}),
    (ShapeError, r"key_padding_mask has shape \(5\), expected \(b, j\) = \(2, 5\)",
     [(2, 5, 16)], {"key_padding_mask": bools(5)}),
    (ShapeError, r"key_padding_mask has shape \(2, 5\), expected \(j\) = \(5,\)",
     [(5, 16)], {"key_padding_mask": bools(2, 5)}),
    (DtypeError, "key_padding_mask is torch.uint8, expected bool",
     [(2, 5, 16)], {"key_padding_mask": bools(2, 5).byte()}),
    (ShapeError, r"attn_mask has shape \(5, 4\), expected \(i, j\) = \(5, 5\)",
     [(2, 5, 16)], {"attn_mask": bools(5, 4)}),
    (ShapeError, r"attn_mask has shape \(1, 5\)", [(2, 5, 16)], {"attn_mask": bools(1, 5)}),
    (ShapeError, r"attn_mask has shape \(5\)", [(2, 5, 16)], {"attn_mask": bools(5)}),
    (ShapeError, r"attn_mask has shape \(2, 5, 5\), expected \(b·h, i, j\) = \(8, 5, 5\)",
     [(2, 5, 16)], {"attn_mask": bools(2, 5, 5)}),
    (ShapeError, r"attn_mask has shape \(5, 4\)",
     [(2, 5, 16)], {"attn_mask": bools(5, 4), "is_causal": True, "need_weights": False}),
    (DtypeError, "attn_mask is torch.int64", [(2, 5, 16)], {"attn_mask": bools(5, 5).long()}),
    (DtypeError, "attn_mask is torch.float64", [(2, 5, 16)], {"attn_mask": bools(5, 5).double()}),
    (DeviceError, "attn_mask is on meta", [(2, 5, 16)], {"attn_mask": bools(5, 5).to("meta")}),
    (ShapeError, r"query has shape \(2, 5, 8\), expected \(b, i, m\) = \(2, 5, 16\)",
     [(2, 5, 8), (2, 5, 16), (2, 5, 16)], {}),
    (ShapeError, r"key has shape \(2, 5, 8\), expected \(b, j, m\) = \(2, 5, 16\)",
     [(2, 5, 16), (2, 5, 8), (2, 5, 16)], {}),
    (ShapeError, r"key must have 3 axes \(b j m\), found 2",
     [(2, 5, 16), (5, 16), (5, 16)], {}),
    (ShapeError, r"key must have 2 axes \(j m\), found 3",
     [(5, 16), (2, 5, 16), (2, 5, 16)], {}),
    (ShapeError, r"key has shape \(1, 5, 16\), expected \(b, j, m\) = \(2, 5, 16\)",
     [(2, 5, 16), (1, 5, 16), (1, 5, 16)], {}),
    (ShapeError, r"value has shape \(2, 4, 16\), expected \(b, j, m\) = \(2, 5, 16\)",
     [(2, 5, 16), (2, 5, 16), (2, 4, 16)], {}),
    (ShapeError, "query must have 2 or 3 axes", [(16,)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "words", "shapes", "call"), WRONG)
def test_multihead_attention_names_what_does_not_fit(
    kind: type[Exception], words: str, shapes: list[tuple[int, ...]], call: dict[str, object]
) -> None:
    module = ll.MultiheadAttention(16, 4, batch_first=True)
    tensors = [torch.randn(shape) for shape in shapes] * (3 if len(shapes) == 1 else 1)
    with pytest.raises(kind, match=words):
        module(*tensors, **call)


def test_multihead_attention_names_an_input_of_another_type_than_the_weights() -> None:
    module = ll.MultiheadAttention(16, 4, batch_first=True)
    wide = torch.randn(2, 5, 16, dtype=torch.float64)
    with pytest.raises(DtypeError, match=r"query is torch.float64, expected torch.float32"):
        module(wide, wide, wide)
    half = torch.randn(2, 5, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(half, half, half)[0].dtype == torch.bfloat16


COMPILED = """
import torch, limelight as ll
module = ll.MultiheadAttention(16, 4, batch_first=True)
x, hidden = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
q, k, v = torch.randn(2, 4, 5, 8), torch.randn(1, 2, 6, 8), torch.randn(2, 1, 6, 8)

def multihead(x):
    return module(x, x, x, key_padding_mask=hidden, need_weights=False)[0]

def sdpa(q):
    allowed = torch.ones(5, 6, dtype=torch.bool)
    call = dict(scale=0.3, is_causal=True, enable_gqa=True, attn_mask=allowed)
    return ll.scaled_dot_product_attention(q, k, v, **call)

for call, tensor in ((multihead, x), (sdpa, q)):
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        assert torch.allclose(compiled(tensor), call(tensor), atol=1e-6)
print("done")
"""


def test_both_drop_ins_compile_with_fullgraph() -> None:
    """In a process of its own: torch.compile cannot trace the type checks that the tests add."""
    ran = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert ran.stdout.strip() == "done", ran.stderr


@pytest.mark.parametrize("masked", [False, True])
def test_the_weights_returned_in_training_are_those_that_dropout_left(masked: bool) -> None:
    layer = ll.MultiheadAttention(8, 2, dropout=0.5, batch_first=True, bias=False)
    with torch.no_grad():
        layer.out_proj.weight.copy_(torch.eye(8))
    x = torch.randn(3, 6, 8)
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1) if masked else None
    output, weights = layer(x, x, x, attn_mask=mask, average_attn_weights=False)
    values = (x @ layer.in_proj_weight[16:].T).unflatten(2, (2, 4)).transpose(1, 2)
    assert torch.allclose((weights @ values).transpose(1, 2).flatten(2), output, atol=1e-5)
    whole = layer.eval()(x, x, x, attn_mask=mask, average_attn_weights=False)[1]
    kept = weights != 0
    assert 0 < kept.sum() < (whole != 0).sum()
    assert torch.allclose(weights[kept], 2 * whole[kept], atol=1e-6)
