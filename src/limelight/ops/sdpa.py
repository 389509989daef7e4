"""PyTorch's `scaled_dot_product_attention`: the same signature and meaning, our kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limelight.checks import (
    check_broadcast,
    check_flag,
    check_groups,
    check_number,
    check_plain,
    check_same_device,
    check_size,
    shape_text,
)
from limelight.errors import DtypeError, ShapeError
from limelight.ops.attend import attend, autocast, autocast_type
from limelight.ops.backends import native
from limelight.ops.bias import is_causal_bias, with_causal_bias
from limelight.ops.calls import AttentionCall, intercepted, run
from limelight.ops.masks.band import causal
from limelight.ops.masks.mask import as_mask
from limelight.ops.masks.region import Extent


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, argument for argument.

    With the same semantics: a bool `attn_mask` is True where a query may attend, a float one is
    added to the scores, `is_causal` is aligned upper-left, leading axes broadcast (`... h i d`; two
    axes are one head), and fewer key heads than query heads need `enable_gqa=True`.

    Where PyTorch's own backends disagree: `is_causal` together with `attn_mask` applies both, as in
    its fused CPU kernel (its math backend raises); a `scale` of NaN gives NaN, as in its math
    backend (its fused kernel gives zeros).

    >>> import torch, limelight as ll
    >>> q, k, v = torch.randn(3, 2, 4, 5, 8)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(ll.scaled_dot_product_attention(q, k, v, is_causal=True), theirs, atol=1e-5)
    True
    """
    output = _plain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if output is not None:
        return output
    enable_gqa = check_flag("enable_gqa", enable_gqa)
    lead, query, key, value = _four_axes(query, key, value, enable_gqa)
    mask = causal(diagonal=0) if check_flag("is_causal", is_causal) else None
    bias = None
    if is_causal_bias(attn_mask):
        b, h, i, _ = query.shape
        extent = Extent(b, h, i, key.shape[2])
        mask = with_causal_bias("attn_mask", attn_mask, mask, extent)
    elif attn_mask is not None:
        attn_mask = _mask_to_four_axes(attn_mask, lead, query, key)
        if attn_mask.dtype != torch.bool:
            # float32 stays under autocast: in a half type its lowest number would become −∞.
            bias = attn_mask if attn_mask.dtype == torch.float32 else autocast(attn_mask)
        else:
            mask = attn_mask if mask is None else mask & as_mask(attn_mask)
    channels = value.shape[-1]
    query, key, value, scale = _within_limits(query, key, value, scale)
    value, dropout = value_and_dropout("dropout_p", value, dropout_p)
    if intercepted():
        call = AttentionCall(query, key, value, mask, bias, scale, dropout=dropout)
        output = run(call)
    else:
        output = attend(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)
    return output[..., :channels].reshape(*lead, output.shape[-2], channels)


_UPPER_LEFT = causal(diagonal=0)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, enable_gqa: bool,
) -> Tensor | None:  # fmt: skip
    """The output of a call that the kernels take as it is; None where it must be checked first.

    In a small call, checks that find nothing take two thirds of the time.
    """
    if attn_mask is not None or type(dropout_p) is not float or dropout_p != 0.0 or intercepted():
        return None
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        return None
    if type(query) is not Tensor or type(key) is not Tensor or query.is_nested or key.is_nested:
        return None
    if query.ndim != 4 or (not enable_gqa and query.shape[:2] != key.shape[:2]):
        return None
    program = _UPPER_LEFT.program() if is_causal else ()
    return None if program is None else native.attend_plain(query, key, value, program, scale)


def _four_axes(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor]:
    """The output's leading axes, and the three tensors as `b h i d`, `b g j d`, `b g j e`."""
    least = 3 if enable_gqa else 2
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_plain(name, tensor)
        if tensor.ndim < least:
            where = " with enable_gqa=True" if enable_gqa else ""
            shape = shape_text(tensor)
            raise ShapeError(f"{name} must have at least {least} axes{where}, found {shape}")
    check_size("key", key, -1, "d", query.shape[-1], "query")
    # With enable_gqa the heads are not broadcast but grouped: each tensor has its own.
    fits = query.shape[:-least] == key.shape[:-least] and key.shape[:-2] == value.shape[:-2]
    if query.ndim == 4 and fits:  # the usual case
        return tuple(query.shape[:2]), query, key, value
    try:
        shared = torch.broadcast_shapes(*(x.shape[:-least] for x in (query, key, value)))
    except RuntimeError:
        raise ShapeError(
            f"query {shape_text(query)}, key {shape_text(key)} and value {shape_text(value)} "
            "have leading axes that do not broadcast"
            + ("" if enable_gqa else "; grouped heads need enable_gqa=True")
        ) from None
    query, key, value = (x.expand(*shared, *x.shape[-least:]) for x in (query, key, value))
    lead = tuple(query.shape[:-2])
    query, key, value = (_one_batch_axis(x) for x in (query, key, value))
    if enable_gqa:
        key, value = _same_groups(query.shape[1], key, value)
    return lead, query, key, value


def _one_batch_axis(table: Tensor) -> Tensor:
    """`... h r c` as `b h r c`; without an axis for heads there is one head."""
    heads = table.shape[-3] if table.ndim > 2 else 1
    return table.reshape(math.prod(table.shape[:-3]), heads, *table.shape[-2:])


def _same_groups(h: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with equal numbers of heads; each may have any number that divides h."""
    check_groups("key", key, h)
    check_groups("value", value, h)
    if key.shape[1] == value.shape[1]:
        return key, value
    key, value = (x.repeat_interleave(h // x.shape[1], dim=1) for x in (key, value))
    return key, value


def _mask_to_four_axes(
    attn_mask: Tensor, lead: tuple[int, ...], query: Tensor, key: Tensor
) -> Tensor:
    check_mask_kind("attn_mask", attn_mask, query)
    check_broadcast("attn_mask", attn_mask, "... i j", (*lead, query.shape[2], key.shape[2]))
    if len(lead) == 2:
        return attn_mask
    table = torch.atleast_2d(attn_mask)
    return _one_batch_axis(table.expand(*lead, *table.shape[-2:]))


def check_mask_kind(name: str, mask: Tensor, query: Tensor) -> None:
    """Raise unless a tensor has a type and a device that a mask or bias of this query may have."""
    check_plain(name, mask)
    check_same_device(name, mask, query, "query")
    if autocast_type(mask) not in (torch.bool, torch.float32, autocast_type(query)):
        raise DtypeError(
            f"{name} is {mask.dtype}, expected bool, float32 or {query.dtype} as the query"
        )


def _within_limits(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, float | None]:
    """The same call with a finite scale and at least one channel, as `attend` requires."""
    if isinstance(scale, float) and not -math.inf < scale < math.inf:
        query, scale = query * scale, 1.0
    if query.shape[-1] == 0:  # a sum over no channels is 0, whatever its scale
        query, key = nn.functional.pad(query, (0, 1)), nn.functional.pad(key, (0, 1))
        scale = 1.0 if scale is None else scale
    return query, key, value if value.shape[-1] else nn.functional.pad(value, (0, 1)), scale


def value_and_dropout(name: str, value: Tensor, probability: float) -> tuple[Tensor, float]:
    """Value and dropout of the same call with a probability below 1, as `attend` requires.

    A probability of 1 drops every weight, which is the same as values of 0.
    """
    probability = check_number(name, probability, "at least 0 and at most 1", low=0.0, high=1.0)
    return (value * 0.0, 0.0) if probability == 1 else (value, probability)
