"""Doors for code written against PyTorch: the same signatures and meanings, our kernels."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias

from limelight.checks import (
    check_broadcast,
    check_groups,
    check_number,
    check_plain,
    check_rank,
    check_same_device,
    check_shape,
    check_size,
    check_tensor,
    shape_text,
)
from limelight.errors import DtypeError, OptionError, ShapeError, UnavailableError
from limelight.ops.attend import attend, autocast, autocast_type
from limelight.ops.bias import with_causal_bias
from limelight.ops.calls import AttentionCall, intercepted, run, run_seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.band import causal
from limelight.ops.masks.mask import Mask, as_mask
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

    Its meanings are kept: a bool `attn_mask` is True where a query may attend, a float one is
    added to the scores, `is_causal` is aligned upper-left, leading axes broadcast (`... h i d`; two
    axes are one head), and fewer key heads than query heads need `enable_gqa=True`.

    Where PyTorch's own implementations differ, this is the one that gives an answer: `is_causal`
    together with `attn_mask` means both, as in its fused CPU kernel (its plain form refuses). And
    the one that says so if the answer is no number: a `scale` of NaN gives NaN, as in its plain
    form (its fused kernel gives zeros).

    >>> import torch, limelight as ll
    >>> q, k, v = torch.randn(3, 2, 4, 5, 8)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(ll.scaled_dot_product_attention(q, k, v, is_causal=True), theirs, atol=1e-5)
    True
    """
    lead, query, key, value = _four_axes(query, key, value, enable_gqa)
    mask = causal(diagonal=0) if is_causal else None
    bias = None
    if isinstance(attn_mask, CausalBias):
        b, h, i, _ = query.shape
        extent = Extent(b, h, i, key.shape[2])
        mask = with_causal_bias(mask, attn_mask, extent)
    elif attn_mask is not None:
        attn_mask = _mask_to_four_axes(attn_mask, lead, query, key)
        if attn_mask.dtype != torch.bool:
            # A half type is autocast's; float32 stays, where the lowest number would become -∞.
            bias = attn_mask if attn_mask.dtype == torch.float32 else autocast(attn_mask)
        else:
            mask = attn_mask if mask is None else mask & as_mask(attn_mask)
    channels = value.shape[-1]
    query, key, value, scale = _usual_numbers(query, key, value, scale)
    value, dropout = _usual_dropout("dropout_p", dropout_p, value)
    if intercepted():
        call = AttentionCall(query, key, value, mask, bias, scale, dropout=dropout)
        output = run(call)
    else:
        output = attend(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)
    return output[..., :channels].reshape(*lead, output.shape[-2], channels)


def _four_axes(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor]:
    """The output's leading axes, and the three tensors as `b h i d`, `b g j d`, `b g j e`."""
    least = 3 if enable_gqa else 2
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_plain(name, tensor)
        if tensor.ndim < least:
            where = " with enable_gqa=True" if enable_gqa else ""
            found = shape_text(tensor)
            raise ShapeError(f"{name} must have at least {least} axes{where}, found {found}")
    check_size("key", key, -1, "d", query.shape[-1], "query")
    # With enable_gqa the heads are not broadcast but grouped: each tensor has its own.
    fits = query.shape[:-least] == key.shape[:-least] and key.shape[:-2] == value.shape[:-2]
    if query.ndim == 4 and fits:  # nothing to do, as most often
        return tuple(query.shape[:2]), query, key, value
    try:
        shared = torch.broadcast_shapes(*(one.shape[:-least] for one in (query, key, value)))
    except RuntimeError:
        raise ShapeError(
            f"query {shape_text(query)}, key {shape_text(key)} and value {shape_text(value)} "
            "have leading axes that do not broadcast"
            + ("" if enable_gqa else "; grouped heads need enable_gqa=True")
        ) from None
    query, key, value = (one.expand(*shared, *one.shape[-least:]) for one in (query, key, value))
    lead = tuple(query.shape[:-2])
    query, key, value = (_one_batch_axis(one) for one in (query, key, value))
    if enable_gqa:
        key, value = _same_groups(query.shape[1], key, value)
    return lead, query, key, value


def _one_batch_axis(table: Tensor) -> Tensor:
    """`... h r c` as `b h r c`; without an axis for heads there is one."""
    heads = table.shape[-3] if table.ndim > 2 else 1
    return table.reshape(math.prod(table.shape[:-3]), heads, *table.shape[-2:])


def _same_groups(h: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with as many heads as each other: either may have any number that divides h."""
    check_groups("key", key, h)
    check_groups("value", value, h)
    if key.shape[1] == value.shape[1]:
        return key, value
    key, value = (one.repeat_interleave(h // one.shape[1], dim=1) for one in (key, value))
    return key, value


def _mask_to_four_axes(
    attn_mask: Tensor, lead: tuple[int, ...], query: Tensor, key: Tensor
) -> Tensor:
    _check_mask_kind("attn_mask", attn_mask, query)
    check_broadcast("attn_mask", attn_mask, "... i j", (*lead, query.shape[2], key.shape[2]))
    if len(lead) == 2:
        return attn_mask
    table = torch.atleast_2d(attn_mask)
    return _one_batch_axis(table.expand(*lead, *table.shape[-2:]))


def _check_mask_kind(name: str, mask: Tensor, query: Tensor) -> None:
    check_plain(name, mask)
    check_same_device(name, mask, query, "query")
    if autocast_type(mask) not in (torch.bool, torch.float32, autocast_type(query)):
        raise DtypeError(
            f"{name} is {mask.dtype}, expected bool, float32 or {query.dtype} as the query"
        )


def _usual_numbers(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, float | None]:
    """The same call with a finite scale and at least one channel, as `attend` wants it."""
    if isinstance(scale, float) and not -math.inf < scale < math.inf:
        query, scale = query * scale, 1.0
    if query.shape[-1] == 0:  # a sum over no channels is 0, whatever its scale
        query, key = nn.functional.pad(query, (0, 1)), nn.functional.pad(key, (0, 1))
        scale = 1.0 if scale is None else scale
    return query, key, value if value.shape[-1] else nn.functional.pad(value, (0, 1)), scale


def _usual_dropout(name: str, probability: float, value: Tensor) -> tuple[Tensor, float]:
    """The same call with a probability below 1, as `attend` wants it.

    Where every weight is dropped, nothing is left of the values.
    """
    probability = check_number(name, probability, "at least 0 and at most 1", low=0.0, high=1.0)
    return (value * 0.0, 0.0) if probability == 1 else (value, probability)


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with its signature and state dict, computed by `attend`.

        head_t = softmax(Q_t K_tᵀ / √d) V_t        output = concat(head_1 … head_h) W_O + b_O

    It loads the weights of the original and gives its outputs. `need_weights=True` (their default)
    gives the exact weights too, of size n² as asked; pass False to keep memory linear. A query
    that may attend to nothing gets zeros where the original gives NaN.

    >>> import torch, limelight as ll
    >>> theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> ours = ll.MultiheadAttention(16, 4, batch_first=True)
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(2, 5, 16)
    >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
    True
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # In eval mode `nn.TransformerEncoderLayer` computes a layer of which this is true by itself
        # and never calls its attention.
        self._qkv_same_embed_dim = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._qkv_same_embed_dim = False

    def __prepare_scriptable__(self) -> NoReturn:
        raise UnavailableError(
            "torch.jit.script cannot compile limelight.MultiheadAttention: use torch.compile, "
            "or torch.nn.MultiheadAttention, which has the same weights"
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As the original's, where `is_causal` is a hint that the given `attn_mask` is causal.

        With `need_weights=False` and no `key_padding_mask` the original takes the hint at its word
        and the mask for said: query i sees keys 0 ... i, so that the keys of `add_bias_kv` and
        `add_zero_attn`, which come last, are hidden too. So it is here, and no mask is read.
        """
        if is_causal and attn_mask is None:
            raise OptionError("is_causal=True needs attn_mask, as in torch.nn.MultiheadAttention")
        self._check(query, key, value, key_padding_mask, attn_mask)
        batched = query.ndim == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        q, k, v = self._project(query, key, value)
        if is_causal and key_padding_mask is None and not need_weights:
            mask, bias = causal(diagonal=0), None
        else:
            mask, bias = self._masks(key_padding_mask, attn_mask, q, k.shape[2])
        dropout = self.dropout if self.training else 0.0
        if intercepted():
            heads, weights = self._intercepted(q, k, v, mask, bias, dropout, need_weights)
        else:
            heads, weights = _attend(q, k, v, mask, bias, dropout, need_weights)
        merged = heads.transpose(1, 2).flatten(2)
        output = nn.functional.linear(merged, self.out_proj.weight, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _intercepted(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | Mask | None,
        bias: Tensor | None,
        dropout: float,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As `_attend`, by the interceptors of this context; the weights are those used."""
        values, probability = _usual_dropout("dropout", dropout, v)
        call = AttentionCall(q, k, values, mask, bias, dropout=probability, module=self)
        if not need_weights:
            return run(call), None
        heads, seen = run_seen(call, Lens())
        return heads, seen.dense().to(q.dtype)

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> None:
        """Raise a LimelightError unless the arguments fit one another and the weights."""
        check_tensor("query", query)
        if query.ndim not in (2, 3):
            raise ShapeError(f"query must have 2 or 3 axes, found {shape_text(query)}")
        axes = "n m" if query.ndim == 2 else "b n m" if self.batch_first else "n b m"
        weight = self.out_proj.weight
        sizes: dict[str, int] = {}  # as the first tensor with such an axis has them
        for name, tensor, positions, width in (
            ("query", query, "i", self.embed_dim),
            ("key", key, "j", self.kdim),
            ("value", value, "j", self.vdim),
        ):
            letters = axes.replace("n", positions)
            check_rank(name, tensor, letters)
            sizes["m"] = width
            named = zip(letters.split(), tensor.shape, strict=True)
            expected = tuple(sizes.setdefault(letter, size) for letter, size in named)
            check_shape(name, tensor, letters, expected)
            check_same_device(name, tensor, weight, "the weights")
            if autocast_type(tensor) != autocast_type(weight):
                found = f"{name} is {tensor.dtype}"
                raise DtypeError(f"{found}, expected {weight.dtype} as the weights")
        b, i, j = sizes.get("b", 1), sizes["i"], sizes["j"]
        if key_padding_mask is not None:
            _check_mask_kind("key_padding_mask", key_padding_mask, query)
            letters, expected = ("j", (j,)) if query.ndim == 2 else ("b j", (b, j))
            check_shape("key_padding_mask", key_padding_mask, letters, expected)
        if attn_mask is not None:
            _check_mask_kind("attn_mask", attn_mask, query)
            if attn_mask.ndim == 3:
                check_shape("attn_mask", attn_mask, "b·h i j", (b * self.num_heads, i, j))
            else:
                check_shape("attn_mask", attn_mask, "i j", (i, j))

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as `b h n d`, with the extra keys of `add_bias_kv` and `add_zero_attn`."""
        if self.in_proj_weight is not None:
            matrices = self.in_proj_weight.chunk(3)
        else:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        offsets = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            nn.functional.linear(x, w, c)
            for x, w, c in zip((query, key, value), matrices, offsets, strict=True)
        )
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(k.shape[0], -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(v.shape[0], -1, -1)], dim=1)
        if self.add_zero_attn:
            zero = k.new_zeros(k.shape[0], 1, k.shape[2])
            k, v = torch.cat([k, zero], dim=1), torch.cat([v, zero], dim=1)
        q, k, v = (x.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _masks(
        self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, q: Tensor, keys: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """(allowed, added): here True *forbids* a key, as the original has it; floats are added."""
        allowed: Tensor | None = None
        added: Tensor | None = None
        tables: list[Tensor] = []
        if key_padding_mask is not None:
            tables.append(key_padding_mask[:, None, None, :])
        if attn_mask is not None:
            by_head = attn_mask.ndim == 3
            tables.append(attn_mask.unflatten(0, q.shape[:2]) if by_head else attn_mask[None, None])
        for table in tables:
            extra = keys - table.shape[-1]  # bias_kv and zero keys are seen by everyone
            table = nn.functional.pad(table, (0, extra)) if extra else table
            if table.dtype == torch.bool:
                allowed = ~table if allowed is None else allowed & ~table
            else:
                added = table.to(q.dtype) if added is None else added + table.to(q.dtype)
        return allowed, added


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | Mask | None,
    bias: Tensor | None,
    dropout: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output `b h i d`, and the dense weights `b h i j` if they are needed.

    The weights come by attending to the identity: its output is the weights themselves. With
    dropout both come of one call, for the weights are those that it left.
    """
    if not need_weights:
        seen, probability = _usual_dropout("dropout", dropout, v)
        return attend(q, k, seen, mask=mask, bias=bias, dropout=probability), None
    eye = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
    if dropout:
        both, probability = _usual_dropout("dropout", dropout, torch.cat((v, eye), dim=-1))
        joint = attend(q, k, both, mask=mask, bias=bias, dropout=probability, impl="reference")
        return joint[..., : v.shape[-1]], joint[..., v.shape[-1] :]
    heads = attend(q, k, v, mask=mask, bias=bias)
    return heads, attend(q, k, eye, mask=mask, bias=bias, impl="reference")
