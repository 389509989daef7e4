"""`attend` as its callers use it: choices, errors, packed input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import limelight as ll
from limelight.errors import DeviceError, DtypeError, OptionError, ShapeError, UnavailableError
from limelight.ops.backends import native
from limelight.ops.backends import torch_fused as torch_kernels
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
def test_what_is_no_tensor_is_named(name: str, found: object, untyped: None) -> None:
    words = f"{name} must be a torch.Tensor, found {type(found).__name__}"
    given = dict.fromkeys(("query", "key", "value"), x(1, 1, 2, 2)) | {name: found}
    packed = dict.fromkeys(("query", "key", "value"), x(2, 1, 2)) | {name: found}
    with pytest.raises(DtypeError, match=words):
        ll.attend(**given)
    with pytest.raises(DtypeError, match=words):
        ll.attend_packed(**packed, lengths=[2])


@pytest.mark.parametrize("option", ["scale", "softcap", "dropout"])
@pytest.mark.parametrize("found", ["a", "0.5", [1.0], ()])
def test_what_is_no_number_is_named(option: str, found: object, untyped: None) -> None:
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


def test_an_implementation_asked_for_by_name_serves_or_raises(untyped: None) -> None:
    wide = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    assert ll.explain_choice(wide, wide, wide).impl == "reference"
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
    # The call it makes is the right one; here on the CPU, where it can be computed.
    q, k, v = x(2, 4, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8)
    found = torch_kernels.attend(check_problem(q, k, v, mask=mask, scale=0.3))
    assert torch.allclose(found, ll.attend(q, k, v, mask=mask, scale=0.3), atol=1e-5)


def test_what_pytorchs_kernels_define_otherwise_stays_with_the_reference() -> None:
    far = torch.empty(1, 2, 3, 8, device="meta"), *[torch.empty(1, 2, 5, 8, device="meta")] * 2
    for options in ({"mask": ll.causal()}, {"softcap": 2.0}, {"mask": ll.window(2)}):
        assert ll.explain_choice(*far, **options).impl == "reference"


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


def test_alibi_is_the_bias_it_stands_for() -> None:
    q, k = x(2, 6, 5, 8), x(2, 6, 9, 8)
    places = torch.arange(5)[:, None] + 4 - torch.arange(9)
    table = -ll.alibi(6).slopes[:, None, None] * places.abs()
    assert torch.allclose(
        ll.attend(q, k, k, bias=ll.alibi(6)), ll.attend(q, k, k, bias=table), atol=1e-5
    )


def test_softcap_bounds_the_scores() -> None:
    q = x(1, 2, 7, 8) * 100
    capped = ll.attend(q, q, q, softcap=2.0)
    scores = 2 * torch.tanh(q @ q.mT / 8**0.5 / 2)
    assert torch.allclose(capped, scores.softmax(-1) @ q, rtol=1e-4, atol=1e-4)
